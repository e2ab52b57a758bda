"""The seams of the house: what the engine needs of a target, a drafter, a verifier and of chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from .types import Draft, DraftRequest, Probs, TargetOutput, Verification


class RandomSource(Protocol):
    """All chance in the product. Streams ("draft", "accept", "residual", "bonus") are independent of each other.

    The production source is `sampling.SeededSource`; `verify.law` has one that walks through every outcome, so the
    exact output law of the production code can be computed.
    """

    def bernoulli(self, prob: float, stream: str) -> bool:
        """True with the given probability; values at or beyond 0 and 1 are certain."""
        ...

    def categorical(self, weights: Tensor, stream: str) -> int:
        """An index drawn in proportion to non-negative `weights` `[M]`, whose sum is positive."""
        ...


class Target(Protocol):
    """A language model with a row of cache per sequence (see `models.cached_lm.CachedLM`)."""

    vocab_size: int
    max_length: int

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers whose states `features` gives."""
        ...

    def open(self, tokens: Sequence[int]) -> int:
        """Take a free row, reusing the longest known prefix of `tokens`. Returns the row."""
        ...

    def prefill(self, row: int, tokens: Sequence[int]) -> None:
        """Make the row hold exactly `tokens`."""
        ...

    def features(self, row: int) -> Tensor | None:
        """Hidden states `[T, F]` of every position the row holds, or None where none are recorded."""
        ...

    def score(self, rows: Sequence[int], roots: Sequence[int], drafts: Sequence[Draft]) -> list[TargetOutput]:
        """Feed each row its root and draft in one pass; lengths stay as they are until `keep`."""
        ...

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """After `score`: the row keeps `length` positions (the root the last of them) and then the path's nodes."""
        ...

    def free(self, row: int) -> None:
        """Give the row back."""
        ...


class Drafter(Protocol):
    """Whatever proposes. Stateless from the engine's view: a drafter re-synchronises by `request.tokens`."""

    name: str

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, of at most `max_nodes` nodes; an empty draft is always allowed."""
        ...

    def release(self, sequence_id: int) -> None:
        """The sequence has ended; forget it. Unknown ids are ignored."""
        ...


class Verifier(Protocol):
    """An exact rule: given that the draft came from its stated laws, path and next token follow the target's law p."""

    def __call__(self, draft: Draft, p: Probs, source: RandomSource) -> Verification:
        """p: row 0 after the root, row i+1 after node i."""
        ...
