"""A draft seen next to the target's laws: which law each token was drawn from, and what both models say of it."""

from __future__ import annotations

from functools import cached_property

from ..errors import DrafterError
from ..types import Draft, Probs
from .residual import token_probs, without


class Proposal:
    """A checked draft; p(x) and q(x) of all its tokens come in one transfer each.

    Fields:
        p: `[N+1]` rows, the target's laws: row 0 after the root, row i+1 after node i.
        p_x: N floats, the target's probability of each token in front of it.

    Raises:
        DrafterError: tokens that cannot have been drawn as the draft says.
        ValueError: draft and laws do not fit each other.
    """

    def __init__(self, draft: Draft, p: Probs):
        if len(p) != draft.num_nodes + 1:
            raise ValueError(
                f"p must have a row for the root and every drafted token: {draft.num_nodes + 1}, not {len(p)}"
            )
        if any(not 0 <= token < p.vocab_size for token in draft.tokens):
            raise DrafterError(f"drafted tokens must be ids below {p.vocab_size}, not {draft.tokens}")
        self.draft, self.p = draft, p
        self._rows = [parent + 1 for parent in draft.parents]
        self.p_x = token_probs(p, self._rows, draft.tokens)
        self._laws: dict[int, Probs] = {}
        if draft.drawn != "fixed" and draft.tokens:
            self._check_drawn()

    def _check_drawn(self) -> None:
        draft = self.draft
        if self.q.vocab_size != self.p.vocab_size:
            raise DrafterError(f"p and q must share a vocabulary: {self.p.vocab_size} ids, not {self.q.vocab_size}")
        for node, token in enumerate(draft.tokens):
            if not self.is_point_mass(node) and not self._q_x[node] > 0:
                raise DrafterError(f"drafted token {token} has probability 0 under the law it claims to come from")
            if token in self._left_out(node):
                raise DrafterError(f"drafted token {token} is among the siblings its draw is said to leave out")

    @property
    def q(self) -> Probs:
        """The laws as stated, row 0 for the root's children, row i+1 for node i's; only if tokens were drawn."""
        assert self.draft.probs is not None
        return self.draft.probs

    @cached_property
    def _q_x(self) -> list[float]:
        return token_probs(self.q, self._rows, self.draft.tokens)

    def is_point_mass(self, node: int) -> bool:
        """Whether the token was chosen without randomness, so that its law gives it probability 1."""
        drawn = self.draft.drawn
        return drawn == "fixed" or (drawn == "hybrid" and node != self._siblings(node)[0])

    def _siblings(self, node: int) -> tuple[int, ...]:
        return self.draft.children[self._rows[node]]

    def _left_out(self, node: int) -> list[int]:
        """The siblings' tokens that a drawn token cannot be."""
        if self.draft.drawn == "without_replacement":
            return [self.draft.tokens[other] for other in self._siblings(node) if other < node]
        if self.draft.drawn == "hybrid" and not self.is_point_mass(node):
            return [self.draft.tokens[other] for other in self._siblings(node)[1:]]
        return []

    def law(self, node: int) -> Probs:
        """The law a drawn token came from, as one row: its parent's, without the siblings that were left out."""
        if node not in self._laws:
            self._laws[node] = without(self.q, self._rows[node], self._left_out(node))
        return self._laws[node]

    def q_x(self, node: int) -> float:
        """The probability with which the drafter chose the token; 1 for a point mass."""
        if self.is_point_mass(node):
            return 1.0
        return self.law(node).prob(0, self.draft.tokens[node]) if self._left_out(node) else self._q_x[node]
