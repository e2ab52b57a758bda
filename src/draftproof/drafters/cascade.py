"""A cascade of drafters: each round every sequence is drafted for by whoever promises most for its cost.

Drafters that can say what they expect of a draft (`offers`, see `offer`) are asked first; that costs next to nothing.
A drafter that cannot is taken to offer its whole budget. Either promise is corrected by what came of the drafter's
earlier drafts for the same sequence, which the text that was committed tells, and set against what drafting costs:

    (1 + tokens expected to be accepted) / (1 + c x tokens expected to be drafted)

The choice is made from drafting's side and past rounds alone, before the chosen drafter draws: exact whatever it is. It
depends on nothing but the sequence, so a seed still fixes a sampled text. Skipped drafters catch up by comparing
prefixes, as every drafter does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..interfaces import Drafter
from ..types import EMPTY_DRAFT, Draft, DraftRequest
from .context import DraftContext

_COST = 0.2  # c of a drafter that cannot say what it expects, where its weights and the target's are not known
_PRIOR = 8.0  # promised tokens' worth of trust that a drafter begins with
_MEMORY = 0.95  # weight of a round one round later


@dataclass
class _Record:
    """What came of one drafter's promises to one sequence: sums over rounds, older ones weighing less."""

    promised: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0

    def fade(self) -> None:
        """Forget a little, so that a drafter that failed is tried again in time."""
        self.promised *= _MEMORY
        self.drafted *= _MEMORY
        self.accepted *= _MEMORY

    def rate(self, promise: float, cost: float) -> float:
        """Tokens per unit of time, the target's pass being the unit."""
        share = promise / (self.promised + _PRIOR)
        return (1 + share * (self.accepted + _PRIOR)) / (1 + cost * share * (self.drafted + _PRIOR))


@dataclass
class _History:
    """One sequence: a record per drafter, and the last draft until it is known what came of it."""

    records: list[_Record]
    length: int = 0
    member: int = 0
    promise: float = 0.0
    draft: Draft = field(default=EMPTY_DRAFT)

    def learn(self, tokens: Sequence[int]) -> None:
        """See in the committed tokens how much of the last draft was accepted."""
        if len(tokens) <= self.length or not self.promise:
            return
        for record in self.records:
            record.fade()
        record = self.records[self.member]
        record.promised += self.promise
        record.drafted += self.draft.num_nodes
        record.accepted += num_accepted(self.draft, tokens[self.length :])
        self.promise = 0.0


def num_accepted(draft: Draft, tokens: Sequence[int]) -> int:
    """How many of the tokens that followed lie on a path of the draft."""
    node = -1
    for depth, token in enumerate(tokens):
        node = next((child for child in draft.children[node + 1] if draft.tokens[child] == token), -1)
        if node < 0:
            return depth
    return len(tokens)


class CascadeDrafter:
    """See the module.

    Args:
        members: the drafters, the favourite among equals first.
        costs: c of each: the time of a drafted token over that of a target's pass; None is 0 for those that make
            offers and 0.2 for others.

    Attributes:
        chosen: how often each member drafted, by name.
        lm: the first member's draft model; absent where none has one.
    """

    lm: Any

    def __init__(self, members: Sequence[Drafter], costs: Sequence[float] | None = None):
        self.members = list(members)
        self.name = ",".join(member.name for member in members)
        self.costs = list(costs) if costs is not None else [_cost(member) for member in members]
        self.chosen: Counter[str] = Counter()
        for member in reversed(self.members):
            if hasattr(member, "lm"):
                self.lm = member.lm
        self._histories: dict[int, _History] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Each member is asked once: for its offers to all, or for drafts for those that chose it."""
        offers = {i: m.offers(requests) for i, m in enumerate(self.members) if hasattr(m, "offers")}
        drafts = [EMPTY_DRAFT] * len(requests)
        asked: dict[int, list[int]] = {}  # member to the places of its requests
        for place, request in enumerate(requests):
            history = self._histories.setdefault(request.id, _History([_Record() for _ in self.members]))
            history.learn(request.tokens)
            promises = [
                offers[i][place].expected if i in offers else float(_paid(request)) for i in range(len(self.members))
            ]
            rates = [r.rate(p, c) for r, p, c in zip(history.records, promises, self.costs)]
            chosen = rates.index(max(rates))
            history.length, history.member, history.promise = len(request.tokens), chosen, promises[chosen]
            self.chosen[self.members[chosen].name] += 1
            if chosen in offers:
                drafts[place] = offers[chosen][place].draft
            else:
                asked.setdefault(chosen, []).append(place)
        for member, places in asked.items():
            paid = [replace(requests[place], max_nodes=_paid(requests[place])) for place in places]
            for place, draft in zip(places, self.members[member].propose(paid)):
                drafts[place] = draft
        for request, draft in zip(requests, drafts):
            self._histories[request.id].draft = draft
        return drafts

    def release(self, sequence_id: int) -> None:
        self._histories.pop(sequence_id, None)
        for member in self.members:
            member.release(sequence_id)

    def forget(self) -> None:
        """Drop what members remember of ended sequences, so that a measurement starts cold."""
        for member in self.members:
            if hasattr(member, "forget"):
                member.forget()


def _paid(request: DraftRequest) -> int:
    """What a member that cannot say what it expects may draft."""
    return request.max_nodes if request.max_paid is None else min(request.max_nodes, request.max_paid)


def _cost(member: Drafter) -> float:
    return getattr(member, "cost", 0.0 if hasattr(member, "offers") else _COST)


def build(members: Sequence[Drafter], context: DraftContext) -> CascadeDrafter:
    """Members with their costs: a draft model's is the share of the target's weights that it reads."""
    whole = getattr(getattr(context.target, "forward", None), "num_bytes", None)
    costs = []
    for member in members:
        own = getattr(getattr(getattr(member, "lm", None), "forward", None), "num_bytes", None)
        costs.append(own / whole if own and whole else _cost(member))
    return CascadeDrafter(members, costs)
