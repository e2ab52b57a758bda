"""y = f(x) W^T + b by our own kernel, f nothing, a norm or a gate."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

from ...kernels.library import has_tiles, library

_BLOCK = 16  # outputs per block, as in rows.h
_GROUP = {16: 64, 8: 64, 4: 32}  # bits to inputs per group


class _Layout(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("bits", "n", "k", "group", "groups", "blocks", "threads", "tiled", "gated")
        ),
        ("norm", ctypes.c_void_p),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("words", "scales", "zeros", "bias")),
    ]


class NativeLinear:
    """A row's bits do not depend on how many rows share the call.

    bits 16: bfloat16 weights and activations, exact products added up in float32. bits 8 and 4: see `models.linear`.
    """

    min_rows = 1

    def __init__(
        self,
        bits: int,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
        tiled: bool | None = None,
    ):
        """weight `[N, K]` float32 or bfloat16 (16 bits: bfloat16), bias `[N]` or None; `norm`: scale `[K]` and eps;
        `tiled`: use the matrix unit (None: where there is one).

        Raises:
            RuntimeError: the kernels cannot be used (`library.reason`).
        """
        kernels = library()
        weight = weight.contiguous()
        num, width = weight.shape
        group = _GROUP[bits]
        groups, blocks = -(-width // group), -(-num // _BLOCK)
        size = blocks * groups * _BLOCK
        self._num = num
        self._words = _arena.take(size * group * bits // 8, torch.uint8)
        self._scales = _arena.take(size if bits < 16 else 0, torch.int16)
        self._zeros = _arena.take(size if bits == 4 else 0, torch.uint8)
        self._bias = torch.empty(0) if bias is None else bias.float().contiguous()
        self._norm = torch.empty(0) if norm is None else norm[0].float().contiguous()
        parts = (self._words, self._scales, self._zeros)
        self.num_bytes = sum(part.numel() * part.element_size() for part in parts)
        half = weight.dtype == torch.bfloat16
        tiles = has_tiles() if tiled is None else tiled
        kernels.draftproof_pack(weight.data_ptr(), half, bits, num, width, group, *map(_address, parts))
        self._layout = _Layout(
            *(bits, num, width, group, groups, blocks, torch.get_num_threads(), tiles, gated),
            *(_address(self._norm), norm[1] if norm else 0.0),
            *map(_address, (*parts, self._bias)),
        )
        self._where = ctypes.addressof(self._layout)
        self._apply = kernels.draftproof_product

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        x = x.contiguous()
        y = x.new_empty(len(x), self._num)
        addend = None if add is None else add.contiguous()
        self._layout.threads = torch.get_num_threads()
        where = None if addend is None else addend.data_ptr()
        self._apply(self._where, x.data_ptr(), len(x), x.dtype == torch.bfloat16, where, y.data_ptr())
        return y


def _address(tensor: Tensor) -> int | None:
    return tensor.data_ptr() if tensor.numel() else None


class _Arena:
    """Memory in pages of 2 MB where the system gives them, which is a tenth faster to read through than small pages."""

    _SIZE = 1 << 26

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, num: int, dtype: torch.dtype) -> Tensor:
        """`[num]`, uninitialised, beginning on a cache line; lives as long as it is used."""
        num_bytes = num * dtype.itemsize
        rounded = -(-num_bytes // 64) * 64
        if rounded > len(self._left):
            size = max(self._SIZE, -(-rounded // (1 << 21)) << 21)
            buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                buffer.madvise(mmap.MADV_HUGEPAGE)
            fresh = torch.frombuffer(buffer, dtype=torch.uint8)
            if rounded * 2 > size:  # the rest of the last one still serves small maps
                return fresh[:num_bytes].view(dtype)
            self._left = fresh
        taken, self._left = self._left[:num_bytes], self._left[rounded:]
        return taken.view(dtype)


_arena = _Arena()
