"""Attention of a pass by our own kernel: rotation, cache update and softmax in one call per layer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.library import library, reason
from ..masks import Block
from ..rotary import Rotary
from ..slots import SlotStore

_MAX_WIDTH = 256  # kMaxParts registers in attention.cpp


class _Layout(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("half", "heads", "kv_heads", "width", "threads")),
        ("head_scale", ctypes.c_void_p),
        ("eps", ctypes.c_double),
    ]


@dataclass(frozen=True)
class _Plan:
    """One pass of T tokens. tokens `[T, 5]`: offset of the row, own slot, start, and where in `extras` its ancestors'
    slots begin, and how many; positions `[T]`; cos and sin `[P, D]` float32."""

    tokens: Tensor
    extras: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor


class NativeAttention:
    """What `models.attention.TorchAttention` gives, up to rounding; always bit-exact, trees included."""

    bitwise = True
    chunk = 128

    def __init__(self, heads: int, kv_heads: int, width: int, eps: float, cache: SlotStore, rotary: Rotary):
        self._kernel = library().draftproof_attend
        self._heads, self._width = heads, width
        self._layout = _Layout(cache.dtype == torch.bfloat16, heads, kv_heads, width, 1, None, eps)
        self._where = ctypes.addressof(self._layout)
        self._cache, self._rotary = cache, rotary

    @staticmethod
    def unsupported(width: int, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why the kernel cannot attend for such a model; None if it can."""
        if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
            return f"the attention kernel needs float32 or bfloat16 on the CPU, not {dtype} on {device.type}"
        if width > _MAX_WIDTH or width % 2:
            return f"the attention kernel knows even head widths up to {_MAX_WIDTH}, not {width}"
        return reason()

    def plan(self, blocks: Sequence[Block]) -> _Plan:
        """Where each token goes and what it sees, once for all layers; room in the cache for them."""
        self._cache.reserve(
            max(block.row for block in blocks) + 1, max(block.start + len(block.tokens) for block in blocks)
        )
        tokens: list[int] = []
        extras: list[int] = []
        positions: list[int] = []
        for block in blocks:
            offset = self._cache.offset(block.row)
            if block.parents is None:
                for slot in range(block.start + block.fed, block.start + len(block.tokens)):
                    tokens += (offset, slot, slot + 1, 0, 0)
                    positions.append(slot)
                continue
            paths: list[list[int]] = []
            for token, parent in enumerate(block.parents):
                paths.append([*(paths[parent] if parent >= 0 else ()), block.start + token])
                if token >= block.fed:
                    tokens += (offset, block.start + token, block.start, len(extras), len(paths[token]))
                    extras += paths[token]
                    positions.append(block.start + len(paths[token]) - 1)
        return _Plan(
            torch.tensor(tokens, dtype=torch.int64),
            torch.tensor(extras, dtype=torch.int32),
            torch.tensor(positions, dtype=torch.int64),
            *self._rotary.table(max(positions)),
        )

    def __call__(self, number: int, qkv: Tensor, head_scale: Tensor | None, plan: _Plan) -> Tensor:
        """qkv `[T, (heads + 2 kv_heads) * D]` of layer `number`; `head_scale` float32 `[heads + kv_heads, D]` or None.

        Returns `[T, heads * D]`; the tokens' keys and values are in the cache then.
        """
        num, size = len(plan.positions), self._heads * self._width
        queries = qkv.new_empty(num, size)
        out = qkv.new_empty(num, size) if len(qkv) == num else qkv.new_zeros(len(qkv), size)  # rows that pad a product
        self._layout.threads = torch.get_num_threads()
        self._layout.head_scale = None if head_scale is None else head_scale.data_ptr()
        self._kernel(
            *(self._where, qkv.data_ptr(), num, plan.cos.data_ptr(), plan.sin.data_ptr(), plan.positions.data_ptr()),
            *(plan.tokens.data_ptr(), plan.extras.data_ptr(), *self._cache.addresses(number), self._cache.stride),
            *(queries.data_ptr(), out.data_ptr()),
        )
        return out
