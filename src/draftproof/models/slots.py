"""Keys and values of the lean forward: one tensor for all layers, a row per sequence, absolute slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GRAIN = 256  # capacity grows in multiples of this, at least doubling


def grown(capacity: int, slots: int) -> int:
    """The capacity that holds `slots`: the present one if it does."""
    return capacity if slots <= capacity else max(-(-slots // _GRAIN) * _GRAIN, 2 * capacity)


class SlotStore:
    """`[layers, 2, R, kv_heads, capacity, D]`; grows as rows and slots are asked for, keeping what is held."""

    def __init__(self, num_layers: int, kv_heads: int, width: int, dtype: torch.dtype, device: torch.device):
        self._store = torch.zeros(num_layers, 2, 0, kv_heads, 0, width, dtype=dtype, device=device)
        self._views: dict[int, list[tuple[Tensor, Tensor]]] = {}

    @property
    def capacity(self) -> int:
        return self._store.shape[4]

    @torch.inference_mode()
    def reserve(self, rows: int, slots: int) -> None:
        """Room for at least so many rows and slots."""
        old = self._store
        if rows <= old.shape[2] and slots <= old.shape[4]:
            return
        capacity = grown(old.shape[4], slots)
        layers, _, num_rows, heads, held, width = old.shape
        new = old.new_zeros(layers, 2, max(rows, num_rows), heads, capacity, width)
        new[:, :, :num_rows, :, :held] = old
        self._store = new
        self._views.clear()

    @property
    def device(self) -> torch.device:
        return self._store.device

    @property
    def dtype(self) -> torch.dtype:
        return self._store.dtype

    @property
    def stride(self) -> int:
        """Numbers from one head's slots to the next head's, in one row of one layer."""
        return self._store.stride(3)

    def offset(self, row: int) -> int:
        """Numbers from the beginning of a layer's keys (or values) to those of a row."""
        return row * self._store.stride(2)

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where in memory a layer's keys and values begin."""
        size = self._store.element_size()
        keys = self._store.data_ptr() + layer * self._store.stride(0) * size
        return keys, keys + self._store.stride(1) * size

    def row(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """One row's keys and values, a pair `[kv_heads, capacity, D]` per layer, to be written in place."""
        if row not in self._views:
            self._views[row] = [(layer[0], layer[1]) for layer in self._store[:, :, row].unbind()]
        return self._views[row]

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], start: int) -> None:
        """Gather the slots `sources` to the slots from `start` on; a no-op where they lie there already."""
        if list(sources) == list(range(start, start + len(sources))):
            return
        index = torch.tensor(sources, device=self._store.device)
        mine = self._store[:, :, row]
        mine[..., start : start + len(sources), :] = mine.index_select(3, index)

    @torch.inference_mode()
    def copy(self, source: int, row: int, length: int) -> None:
        """The first `length` slots of one row into another."""
        self.reserve(row + 1, length)
        self._store[:, :, row, :, :length] = self._store[:, :, source, :, :length]
