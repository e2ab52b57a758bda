"""Chains in the making: one token for each request per pass of whatever model drafts them.

Greedy requests get the most likely token (a point mass), others a draw from the drafter's own processed law q, which
goes into the draft as it was drawn from. When a chain ends is decided from the drafter's side, and every drawn token
stays: exact for any drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from .. import sampling
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs

Law = Callable[[Tensor, DraftRequest, Sequence[int]], Probs]


class Chains:
    """The chains of one round.

    Args:
        requests: one chain each, at most `max_nodes` long.
        eos_ids: a chain ends after one of these was drawn (it stays in the draft).
        confidence: a greedy chain goes on only while the product of the drafter's own probabilities for its tokens is
            at least this; 0 is off. A threshold policy as in SpecDec++ (2405.19715).
        max_length: positions the drafter knows.
        lengths: each text's length in the drafter's own tokens, if those are not the target's; 0 or none: no chain.
        fixed: draft the most likely tokens whatever the request's temperature.

    Attributes:
        active: the requests whose chains still grow.
    """

    def __init__(
        self,
        requests: Sequence[DraftRequest],
        eos_ids: frozenset[int] = frozenset(),
        confidence: float = 0.0,
        max_length: int = 1 << 30,
        *,
        lengths: Mapping[int, int] | None = None,
        fixed: bool = False,
    ):
        self._requests = requests
        self._eos_ids, self._confidence, self._max_length = eos_ids, confidence, max_length
        self._drawn: dict[int, list[int]] = {r.id: [] for r in requests}
        self._laws: dict[int, list[Probs]] = {r.id: [] for r in requests}
        self._survival = {r.id: 1.0 for r in requests}
        self._lengths = {r.id: len(r.tokens) if lengths is None else lengths.get(r.id, 0) for r in requests}
        self._fixed = fixed
        self.active = [r for r in requests if r.max_nodes > 0 and 0 < self._lengths[r.id] <= max_length]

    def drawn(self, request: DraftRequest) -> Sequence[int]:
        """The request's chain so far."""
        return self._drawn[request.id]

    def grow(self, logits: Tensor, law: Law) -> None:
        """One more token for every active chain.

        Args:
            logits: `[B, V']`, a row for each active request.
            law: logits `[1, V']`, the request and its chain so far to q, one row over the target's ids.
        """
        for request, probability in zip(self.active, self._confidences(logits)):
            self._survival[request.id] *= probability
        for i, request in enumerate(self.active):
            q = law(logits[i : i + 1], request, self._drawn[request.id])
            self._drawn[request.id].append(sampling.draw(q, 0, request.generator, "draft"))
            self._laws[request.id].append(q)
        self.active = [request for request in self.active if self._goes_on(request)]

    def drafts(self) -> list[Draft]:
        """The finished chains, one per request."""
        return [self._draft(request) for request in self._requests]

    def _goes_on(self, request: DraftRequest) -> bool:
        drawn = self._drawn[request.id]
        room = self._lengths[request.id] + len(drawn) <= self._max_length
        worth = self._survival[request.id] >= self._confidence
        return len(drawn) < request.max_nodes and room and worth and drawn[-1] not in self._eos_ids

    def _confidences(self, logits: Tensor) -> list[float]:
        """The drafter's probability of its most likely token, for greedy requests; 1 for sampled ones."""
        sure = [self._fixed or request.params.greedy for request in self.active]
        if not self._confidence or not any(sure):
            return [1.0] * len(self.active)
        scores = logits.float() - sampling.highest(logits)[0]
        return [1 / total if own else 1.0 for total, own in zip(scores.exp_().sum(-1).tolist(), sure)]

    def _draft(self, request: DraftRequest) -> Draft:
        drawn = self._drawn[request.id]
        if not drawn:
            return EMPTY_DRAFT
        if self._fixed or request.params.greedy:
            return Draft.chain(drawn)
        return Draft.chain(drawn, Probs.stack(self._laws[request.id]), "independent")
