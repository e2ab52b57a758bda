"""The target's hidden states by row and position, kept beside keys and values for drafters that read them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .slots import grown


class FeatureStore:
    """`[R, capacity, F]`; written, moved and read at the same absolute slots as keys and values."""

    def __init__(self, num_rows: int):
        self._num_rows = num_rows
        self._store: Tensor | None = None

    def clear(self) -> None:
        self._store = None

    @torch.inference_mode()
    def write(self, row: int, start: int, features: Tensor) -> None:
        """features `[n, F]`, at the slots from `start` on."""
        end, held = start + len(features), self._store
        if held is None or held.shape[1] < end:
            capacity = grown(0 if held is None else held.shape[1], end)
            self._store = features.new_zeros(self._num_rows, capacity, features.shape[-1])
            if held is not None:
                self._store[:, : held.shape[1]] = held
        assert self._store is not None
        self._store[row, start:end] = features

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], start: int) -> None:
        """Gather the slots `sources` of one row to the slots from `start` on."""
        if self._store is not None and list(sources) != list(range(start, start + len(sources))):
            self._store[row, start : start + len(sources)] = self._store[row, list(sources)]

    @torch.inference_mode()
    def copy(self, source: int, row: int, length: int) -> None:
        """The first `length` slots of one row into another."""
        if self._store is not None:
            self._store[row, :length] = self._store[source, :length]

    def read(self, row: int, length: int) -> Tensor | None:
        """A view `[length, F]` of the row's first slots; None where nothing was ever recorded."""
        return None if self._store is None else self._store[row, :length]
