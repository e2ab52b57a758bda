"""How much of the next draft will be accepted: counts of each sequence's rounds, drawn towards those of all.

Two kinds of evidence. By position: of the rounds that asked for k tokens, how many drafts went on to the k-th, and how
many texts. Both are conditional on position k - 1, so rounds that asked for less do not bias them (Kaplan and Meier's
way with censored data), and by statement T10 of block verification they do not depend on K. By the drafter's own word,
where it says how likely each node is: how often nodes that were called so likely were right, a draft's first ones apart
from those after them: whether a text follows at all is less certain than whether it goes on as it began.

Older rounds weigh less. Everything here is known before the next draft is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..types import Draft

_RIGHT, _GOES_ON = 0.7, 0.95  # of a drafter that nothing is known about: tokens accepted, drafts not ended by itself
_PRIOR_WEIGHT, _SHARED_WEIGHT = 2.0, 4.0  # rounds' worth of the prior, and of the other sequences
_OWN_MEMORY, _SHARED_MEMORY = 0.95, 0.99  # weight of a round one round later
_BINS = 8
_CENTRES = 2 * tuple((i + 0.5) / _BINS for i in range(_BINS))  # of first nodes, then of later ones


class Tally:
    """Trials and hits by place; adding weighs more and more, which is as good as fading what was added before."""

    __slots__ = ("_memory", "_weight", "hits", "trials")

    def __init__(self, memory: float):
        self._memory, self._weight = memory, 1.0
        self.trials: list[float] = []
        self.hits: list[float] = []

    def fade(self) -> None:
        """One more round has passed."""
        self._weight /= self._memory
        if self._weight > 1e6:
            self.trials = [value / self._weight for value in self.trials]
            self.hits = [value / self._weight for value in self.hits]
            self._weight = 1.0

    def add(self, place: int, hit: bool) -> None:
        if place >= len(self.trials):
            missing = [0.0] * (place + 1 - len(self.trials))
            self.trials += missing
            self.hits += missing
        self.trials[place] += self._weight
        if hit:
            self.hits[place] += self._weight

    def shared(self, size: int, prior: float | Sequence[float]) -> list[float]:
        """Rates of places 0 to size - 1, each drawn towards its prior, or (one prior) to the rate before it."""
        last = prior if isinstance(prior, float) else 0.0
        rates = []
        weight = _PRIOR_WEIGHT * self._weight
        for place in range(size):
            towards = last if isinstance(prior, float) else prior[place]
            if place < len(self.trials):
                last = (self.hits[place] + weight * towards) / (self.trials[place] + weight)
            else:
                last = towards
            rates.append(last)
        return rates

    def own(self, shared: Sequence[float]) -> list[float]:
        """Rates drawn towards the shared ones, bent by how this sequence differs from them on the whole."""
        if not self.trials:
            return list(shared)
        weight = _SHARED_WEIGHT * self._weight
        expected = sum(trials * rate for trials, rate in zip(self.trials, shared))
        bend = (sum(self.hits) + weight) / (expected + weight)
        known = len(self.trials)
        rates = []
        for place, rate in enumerate(shared):
            towards = min(0.99, rate * bend)
            if place < known:
                towards = (self.hits[place] + weight * towards) / (self.trials[place] + weight)
            rates.append(towards)
        return rates


class Part(NamedTuple):
    """What asking for more adds: tokens expected to be accepted, tokens expected to be drafted; the draft's passes and
    the budget with it.
    """

    gain: float
    nodes: float
    layers: int
    budget: int


class _Counts:
    """Everything that is counted, for one sequence or for all."""

    def __init__(self, memory: float):
        self.goes_on, self.right, self.called = Tally(memory), Tally(memory), Tally(memory)
        self.memory = memory
        self.tree_nodes = 0.0


class Acceptance:
    """All sequences of one engine. Greedy and sampled ones are counted apart."""

    def __init__(self) -> None:
        self._shared = {greedy: _Counts(_SHARED_MEMORY) for greedy in (False, True)}
        self._own: dict[int, _Counts] = {}
        self._rates: dict[tuple[str, bool, int], list[float]] = {}  # shared rates, until a round changes them

    def outlook(self, sequence_id: int, greedy: bool, most: int) -> list[Part]:
        """What the next draft would bring, token by token; a drafter of trees takes all it may or nothing."""
        own = self._own.get(sequence_id)
        goes_on = self._blend("goes_on", own, greedy, most, _GOES_ON)
        right = self._blend("right", own, greedy, most, _RIGHT)
        parts, drafted, accepted = [], 1.0, 1.0
        for place in range(most):
            drafted *= goes_on[place]
            accepted *= right[place]
            parts.append(Part(accepted, drafted, place + 1, place + 1))
        nodes = own.tree_nodes if own is not None and own.tree_nodes else self._shared[greedy].tree_nodes
        if nodes and parts:
            depth = sum(part.nodes for part in parts)
            return [Part(sum(part.gain for part in parts), min(nodes, most), max(1, round(depth)), most)]
        return parts

    def chances(self, sequence_id: int, greedy: bool, draft: Draft) -> list[float]:
        """Of a draft whose drafter says how likely its nodes are: how likely they are by what came of such words."""
        rates = self._blend("called", self._own.get(sequence_id), greedy, len(_CENTRES), _CENTRES)
        chances: list[float] = []
        for parent, place in zip(draft.parents, _places(draft)):
            chances.append(rates[place] * (chances[parent] if parent >= 0 else 1.0))
        return chances

    def learn(self, sequence_id: int, greedy: bool, asked: int, draft: Draft, path: Sequence[int]) -> None:
        """What came of one draft.

        Args:
            asked: the budget it was drafted under.
            draft: as it was verified.
            path: its accepted nodes.
        """
        own = self._own.setdefault(sequence_id, _Counts(_OWN_MEMORY))
        places = _places(draft) if draft.survival else ()
        depth = max(draft.depths, default=0)
        for counts in (own, self._shared[greedy]):
            if draft.survival:
                _count_words(counts.called, draft, places, path)
            else:
                _count_positions(counts, asked, depth, len(path))
                if not draft.is_chain:
                    share = 1 - counts.memory if counts.tree_nodes else 1.0
                    counts.tree_nodes += share * (draft.num_nodes - counts.tree_nodes)
        self._rates.clear()

    def release(self, sequence_id: int) -> None:
        """The sequence has ended; what all have in common stays."""
        self._own.pop(sequence_id, None)

    def _blend(
        self, kind: str, own: _Counts | None, greedy: bool, size: int, prior: float | Sequence[float]
    ) -> list[float]:
        shared = self._rates.get((kind, greedy, size))
        if shared is None:
            shared = getattr(self._shared[greedy], kind).shared(size, prior)
            self._rates[kind, greedy, size] = shared
        return shared if own is None else getattr(own, kind).own(shared)


def _count_positions(counts: _Counts, asked: int, depth: int, accepted: int) -> None:
    counts.goes_on.fade()
    counts.right.fade()
    for place in range(min(asked, depth + 1)):
        counts.goes_on.add(place, depth > place)
    for place in range(min(asked, accepted + 1)):
        counts.right.add(place, accepted > place)


def _count_words(called: Tally, draft: Draft, places: Sequence[int], path: Sequence[int]) -> None:
    called.fade()
    on_path = {-1, *path}
    for node, (parent, place) in enumerate(zip(draft.parents, places)):
        if parent in on_path:
            called.add(place, node in on_path)


def _places(draft: Draft) -> list[int]:
    """The bin of each node by the chance its drafter gives it once its parent is accepted."""
    survival, places = draft.survival, []
    for own, parent in zip(survival, draft.parents):
        before, first = (1.0, 0) if parent < 0 else (survival[parent], _BINS)
        places.append(first + min(_BINS - 1, int(_BINS * own / max(1e-9, before))))
    return places
