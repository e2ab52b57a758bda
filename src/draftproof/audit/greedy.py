"""Two greedy texts that ought to be equal: are they, and if not, is it a fault or a numerical tie?

Kernels may round differently for one row than for several, so two tokens whose logits are equal up to rounding can
swap. At the first difference both passes are repeated on the same prefix: once with the root alone and once with the
tokens that followed. If the gap between the two tokens is no larger than what the two passes disagree by, it is a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..interfaces import Target
from ..types import EMPTY_DRAFT, Draft


@dataclass(frozen=True)
class Difference:
    """The first place where two greedy texts part.

    Fields:
        index: counted in new tokens.
        tokens: the plain and the other id there; None where a text ended.
        margin: gap of the two tokens' logits under the plain pass.
        noise: largest disagreement of the two passes on these logits.
    """

    index: int
    tokens: tuple[int | None, int | None]
    margin: float
    noise: float

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.margin <= 2 * self.noise

    def __str__(self) -> str:
        kind = "numerical tie" if self.is_tie else "NOT a numerical tie"
        plain, other = self.tokens
        return f"{kind} at index {self.index}, margin {self.margin:.3g} (noise {self.noise:.3g}): {plain} or {other}"


def first_difference(
    target: Target, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Difference | None:
    """Compare two greedy continuations of one prompt; None if they are identical.

    Args:
        target: a row of it must be free.
        plain: new tokens without a drafter.
        other: new tokens with one.
    """
    size = max(len(plain), len(other))
    index = next((i for i in range(size) if list(plain[i : i + 1]) != list(other[i : i + 1])), None)
    if index is None:
        return None
    pair = tuple(text[index] if index < len(text) else None for text in (plain, other))
    if None in pair:  # one text ended: no pair of logits to compare
        return Difference(index, (pair[0], pair[1]), float("inf"), 0.0)
    prefix = [*prompt, *plain[:index]]
    row = target.open(prefix[:-1])
    try:
        target.prefill(row, prefix[:-1])
        alone = target.score([row], [prefix[-1]], [EMPTY_DRAFT])[0].logits[0].double()
        following = Draft.chain(tuple(other[index : index + 8]))
        together = target.score([row], [prefix[-1]], [following])[0].logits[0].double()
    finally:
        target.free(row)
    ids = [token for token in pair if token is not None]
    margin = float((alone[ids[0]] - alone[ids[1]]).abs())
    noise = float((alone[ids] - together[ids]).abs().max())
    return Difference(index, (pair[0], pair[1]), margin, noise)
