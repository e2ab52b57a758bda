"""y = f(x) W^T + b by our own kernel, f nothing, a norm or a gate."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ...kernels.library import has_tiles, library
from .arena import take

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
        weight: Tensor | Sequence[Tensor],
        bias: Tensor | None = None,
        *,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
        tiled: bool | None = None,
    ):
        """weight `[N, K]` float32 or bfloat16 (16 bits: bfloat16), or several below one another; bias `[N]` or None;
        `norm`: scale `[K]` and eps; `tiled`: use the matrix unit (None: where there is one).

        Raises:
            RuntimeError: the kernels cannot be used (`library.reason`).
        """
        kernels = library()
        pieces = [weight] if isinstance(weight, Tensor) else list(weight)
        if any(len(piece) % _BLOCK for piece in pieces[:-1]):
            pieces = [torch.cat(pieces)]
        num, width = sum(len(piece) for piece in pieces), pieces[0].shape[1]
        group = _GROUP[bits]
        groups, blocks = -(-width // group), -(-num // _BLOCK)
        size = blocks * groups * _BLOCK
        self._num = num
        self._words = take(size * group * bits // 8, torch.uint8)
        self._scales = take(size if bits < 16 else 0, torch.int16)
        self._zeros = take(size if bits == 4 else 0, torch.uint8)
        self._bias = torch.empty(0) if bias is None else bias.float().contiguous()
        self._norm = torch.empty(0) if norm is None else norm[0].float().contiguous()
        parts = (self._words, self._scales, self._zeros)
        self.num_bytes = sum(part.numel() * part.element_size() for part in parts)
        tiles = has_tiles() if tiled is None else tiled
        first = 0
        for piece in pieces:  # not joined first: a copy would touch as much fresh memory again
            piece, half = piece.contiguous(), piece.dtype == torch.bfloat16
            into = [_address(part[first * len(part) // blocks :]) for part in parts]
            kernels.draftproof_pack(piece.data_ptr(), half, bits, len(piece), width, group, *into)
            first += -(-len(piece) // _BLOCK)
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
