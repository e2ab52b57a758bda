"""The exact law of code that draws at random, by walking through every outcome; no sampling noise.

Production code takes its chance from a `RandomSource`. `EnumeratingSource` answers each request with one of its
possible outcomes and remembers the probability; `exact_law` replays the code, depth first, until every combination
has been seen. So what is checked is the code that runs, not a copy of it.

The second half applies this to whole rounds of drafting and verifying: `distance_from_target` says how far the
emitted tokens are from the target's own law. Laws of context are functions from a prefix (a tuple of ids) to `[V]`
probabilities, best in float64; small vocabularies and drafts only (V <= 4, K <= 4): outcomes grow as V^K.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..interfaces import RandomSource, Verifier
from ..types import Draft, Probs, Verification

Outcome = TypeVar("Outcome", bound=Hashable)
Prefix = tuple[int, ...]
PrefixLaw = Callable[[Prefix], "Tensor | Sequence[float] | Probs"]
"""Prefix -> the law of the next token: `[V]` probabilities, or one row of `Probs` (which may be sparse)."""
Proposer = Callable[[Prefix, RandomSource], Draft]
"""Prefix and source -> a draft, like a drafter but for one context."""


class HiddenChance(RuntimeError):
    """Code under enumeration does not repeat itself: it keeps state or draws from elsewhere."""


class Choice(NamedTuple):
    """One answered request: the stream, the value (accepted or not; or the index drawn) and its probability."""

    stream: str
    value: int
    prob: float


@dataclass
class _Branch:
    options: list[Choice]
    taken: int = 0


class EnumeratingSource:
    """A `RandomSource` on one of finitely many paths; `advance` moves it to the next path, depth first.

    Certain requests (bernoulli at or beyond 0 or 1, categorical with one positive weight) do not branch. Weights are
    normalised by their own sum in float64.
    """

    def __init__(self) -> None:
        self._branches: list[_Branch] = []
        self._depth = 0

    def bernoulli(self, prob: float, stream: str) -> bool:
        if prob <= 0 or prob >= 1:
            return bool(self._choose([Choice(stream, int(prob >= 1), 1.0)]))
        return bool(self._choose([Choice(stream, 1, prob), Choice(stream, 0, 1 - prob)]))

    def categorical(self, weights: Tensor, stream: str) -> int:
        values = weights.tolist()
        total = sum(values)
        if not total > 0 or min(values) < 0:
            raise ValueError(f"cannot draw from {stream} weights {values}")
        return self._choose([Choice(stream, index, w / total) for index, w in enumerate(values) if w > 0])

    def _choose(self, options: list[Choice]) -> int:
        if self._depth == len(self._branches):
            self._branches.append(_Branch(options))
        branch = self._branches[self._depth]
        if branch.options != options:
            raise HiddenChance("the code asked for other chances than on its last run: it keeps state or other chance")
        self._depth += 1
        return branch.options[branch.taken].value

    @property
    def choices(self) -> list[Choice]:
        """The choices of the current path, in the order they were asked for."""
        return [branch.options[branch.taken] for branch in self._branches]

    @property
    def probability(self) -> float:
        """Of the current path: the product over its choices."""
        product = 1.0
        for choice in self.choices:
            product *= choice.prob
        return product

    def advance(self) -> bool:
        """Go on to the next path; False when all have been walked."""
        self._depth = 0
        while self._branches:
            self._branches[-1].taken += 1
            if self._branches[-1].taken < len(self._branches[-1].options):
                return True
            self._branches.pop()
        return False


def exact_law(
    run: Callable[[EnumeratingSource], Outcome],
    observer: Callable[[Outcome, float, list[Choice]], None] | None = None,
) -> dict[Outcome, float]:
    """The law of `run`'s return value, by running it once for every combination of its random choices.

    Args:
        run: takes all its chance from the source it is given and is otherwise the same on every call.
        observer: called after every run with outcome, probability and choices; gives access to joint laws.

    Raises:
        HiddenChance: `run` behaved differently on equal answers, so it has other chance or keeps state.
    """
    law: dict[Outcome, float] = {}
    source = EnumeratingSource()
    while True:
        outcome = run(source)
        probability = source.probability
        law[outcome] = law.get(outcome, 0.0) + probability
        if observer is not None:
            observer(outcome, probability, source.choices)
        if not source.advance():
            return law


def total_variation(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Half the absolute difference of two laws, summed over all outcomes."""
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys()) / 2


def row_of(law: PrefixLaw, prefix: Prefix) -> Probs:
    """The law after `prefix` as one row of `Probs`."""
    values = law(prefix)
    if isinstance(values, Probs):
        return values
    return Probs.dense(torch.as_tensor(values, dtype=None if isinstance(values, Tensor) else torch.float64)[None])


def target_rows(target: PrefixLaw, prefix: Prefix, draft: Draft) -> Probs:
    """p of a draft (chain or tree): row 0 after `prefix`, row i+1 after the path to node i."""
    paths = [tuple(draft.tokens[node] for node in draft.path(i)) for i in range(-1, draft.num_nodes)]
    return Probs.stack([row_of(target, prefix + path) for path in paths])


def round_tokens(draft: Draft, verification: Verification) -> Prefix:
    """What one round emits: the accepted tokens and the residual or bonus token."""
    return (*(draft.tokens[node] for node in verification.path), verification.next_token)


def round_law(target: PrefixLaw, propose: Proposer, verifier: Verifier, prefix: Prefix = ()) -> dict[Prefix, float]:
    """The exact law of the tokens that one round of drafting and verifying emits after `prefix`."""
    drafts: list[Draft] = []

    def draft_once(source: RandomSource) -> int:
        drafts.append(propose(prefix, source))
        return len(drafts)

    law: dict[Prefix, float] = {}
    for draft, drafted in zip(drafts, exact_law(draft_once).values()):
        p = target_rows(target, prefix, draft)
        for verification, probability in exact_law(partial(verifier, draft, p)).items():
            tokens = round_tokens(draft, verification)
            law[tokens] = law.get(tokens, 0.0) + drafted * probability
    return law


def emitted_law(
    target: PrefixLaw, propose: Proposer, verifier: Verifier, rounds: int = 1, prefix: Prefix = ()
) -> dict[Prefix, float]:
    """The exact law of the tokens emitted after `prefix` by consecutive rounds of drafting and verifying."""
    law: dict[Prefix, float] = {(): 1.0}
    for _ in range(rounds):
        longer: dict[Prefix, float] = {}
        for text, probability in law.items():
            for tokens, share in round_law(target, propose, verifier, prefix + text).items():
                longer[text + tokens] = longer.get(text + tokens, 0.0) + probability * share
        law = longer
    return law


def extended(law: Mapping[Prefix, float], target: PrefixLaw, length: int, prefix: Prefix = ()) -> dict[Prefix, float]:
    """`law`, with texts shorter than `length` continued by the target and longer ones cut."""
    result: dict[Prefix, float] = {}
    pending = list(law.items())
    while pending:
        tokens, probability = pending.pop()
        if len(tokens) >= length:
            result[tokens[:length]] = result.get(tokens[:length], 0.0) + probability
            continue
        weights = row_of(target, prefix + tokens).to_dense(0).tolist()
        total = sum(weights)
        pending += [((*tokens, token), probability * w / total) for token, w in enumerate(weights) if w > 0]
    return result


def distance_from_target(
    target: PrefixLaw,
    propose: Proposer,
    verifier: Verifier,
    rounds: int = 1,
    length: int | None = None,
    prefix: Prefix = (),
) -> float:
    """Total variation between what is emitted (continued by the target to `length`) and the target's own law.

    0 up to rounding for an exact rule: below 1e-12 in float64. `length` defaults to the longest text emitted.
    """
    emitted = emitted_law(target, propose, verifier, rounds, prefix)
    length = max(map(len, emitted)) if length is None else length
    truth = extended({(): 1.0}, target, length, prefix)
    return total_variation(extended(emitted, target, length, prefix), truth)
