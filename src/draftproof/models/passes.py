"""What a model's forward is to the rest of the house: blocks of tokens in, logits and features out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from .masks import Block

Want = Literal["all", "last", "none"]


@dataclass(frozen=True)
class PassOutput:
    """One pass over blocks with n_1, n_2, ... tokens.

    Fields:
        logits: `[n_1 + n_2 + ..., V]` (want "all"), `[B, V]` (want "last") or `[0, V]` ("none"), rows in block order.
        features: `[n_1 + n_2 + ..., F]`: the tapped hidden states side by side, or None without taps.
    """

    logits: Tensor
    features: Tensor | None = None


class Slots(Protocol):
    """Keys and values at absolute slots."""

    def move(self, row: int, sources: Sequence[int], start: int) -> None:
        """Gather the slots `sources` of one row to the slots from `start` on."""
        ...

    def copy(self, source: int, row: int, length: int) -> None:
        """The first `length` slots of one row into another."""
        ...


class Forward(Protocol):
    """A model over slotted rows.

    chunk: how many prompt tokens to feed at a time. taps: layers whose input hidden state is given as a feature,
    ascending (the number of layers names the last hidden state, normed). weights: the format's name. bitwise: whether
    results are bit-exact.
    """

    vocab_size: int
    max_length: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    taps: tuple[int, ...]
    weights: str
    bitwise: bool

    @property
    def num_layers(self) -> int: ...

    @property
    def cache(self) -> Slots: ...

    @property
    def chunk(self) -> int: ...

    @property
    def embedding(self) -> Tensor:
        """All input embeddings `[V, H]`."""
        ...

    def __call__(self, blocks: Sequence[Block], want: Want) -> PassOutput:
        """Write the blocks' keys and values at their slots, and give the logits that are wanted."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """The input embeddings `[n, H]` of tokens `[n]`."""
        ...

    def project(self, states: Tensor) -> Tensor:
        """The output layer alone: logits `[n, V]` of normed hidden states `[n, H]`."""
        ...
