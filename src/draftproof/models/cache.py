"""The slotted cache: keys and values at absolute slots, one row per sequence, plugged into transformers.

Storage per layer is `[R, heads, capacity, D]`. A pass writes at the slots it names and reads the first S slots of
its rows. Nothing is ever rewound by a difference: which slots count is decided by the caller's lengths alone, and
stale slots are overwritten before a mask lets anyone see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from .masks import Pass
from .slots import grown


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values; transformers calls `update` from inside its attention."""

    def __init__(self, cache: SlotCache):
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, slots = self.cache.num_rows, self.cache.capacity
        self.keys = key_states.new_zeros(rows, key_states.shape[1], slots, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], slots, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write `[B, heads, Q, D]` at the current pass's slots; returns `[B, heads, S, D]` of its rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._exchange(self.keys, key_states), self._exchange(self.values, value_states)

    def _exchange(self, store: Tensor, new: Tensor) -> Tensor:
        current = self.cache.current
        assert current is not None, "a pass must be announced before the model runs"
        rows, first = current.rows, current.rows[0]
        contiguous = rows == tuple(range(first, first + len(rows)))
        if contiguous and current.start is not None:
            store[first : first + len(rows), :, current.start : current.start + new.shape[2]] = new
        else:
            index = torch.tensor(rows, device=store.device)
            store[index[:, None], :, current.slots] = new.transpose(1, 2)
        visible = store[:, :, : current.span]
        if contiguous:
            return visible[first : first + len(rows)]
        return visible.index_select(0, torch.tensor(rows, device=store.device))

    @torch.inference_mode()
    def resize(self, rows: int, slots: int) -> None:
        if not self.is_initialized or (self.keys.shape[0], self.keys.shape[2]) == (rows, slots):
            return
        grown = {}
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(rows, old.shape[1], slots, old.shape[3])
            new[: old.shape[0], :, : old.shape[2]] = old
            grown[name] = new
        self.keys, self.values = grown["keys"], grown["values"]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.cache.current is not None
        return self.cache.current.span, 0

    def get_seq_length(self) -> int:
        current = self.cache.current
        return 0 if current is None else current.span - current.ids.shape[1]

    def get_max_length(self) -> int:
        return -1


class SlotCache(Cache):
    """All layers, with one shared size. `current` is the pass being run."""

    def __init__(self, num_layers: int):
        self.num_rows = 0
        self.capacity = 0
        self.current: Pass | None = None
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])

    def reserve(self, rows: int, slots: int) -> None:
        """Make room for at least so many rows and slots, keeping what is held."""
        if rows <= self.num_rows and slots <= self.capacity:
            return
        capacity, num_rows = grown(self.capacity, slots), max(rows, self.num_rows)
        for layer in self.layers:
            layer.resize(num_rows, capacity)
        self.capacity, self.num_rows = capacity, num_rows  # last: memory may run out before

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], start: int) -> None:
        """Gather the slots `sources` of one row to the slots from `start` on; a no-op where they lie there already."""
        skip = 0
        while skip < len(sources) and sources[skip] == start + skip:
            skip += 1
        if skip == len(sources):
            return
        first, end = start + skip, start + len(sources)
        for layer in self.layers:
            if layer.is_initialized:
                index = torch.tensor(sources[skip:], device=layer.keys.device)
                layer.keys[row, :, first:end] = layer.keys[row].index_select(1, index)
                layer.values[row, :, first:end] = layer.values[row].index_select(1, index)

    @torch.inference_mode()
    def copy(self, source: int, row: int, length: int) -> None:
        """The first `length` slots of one row into another."""
        self.reserve(row + 1, length)
        for layer in self.layers:
            if layer.is_initialized:
                for store in (layer.keys, layer.values):
                    store[row, :, :length] = store[source, :, :length]
