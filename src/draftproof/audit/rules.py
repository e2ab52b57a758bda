"""Every verifier times every way of drawing: how far is what a round emits from the target's law? By enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from ..api import VERIFIERS
from ..interfaces import RandomSource
from ..testing import RandomTable
from ..types import Draft, Drawn, Probs, SamplingParams
from ..verify import distance_from_target, sampled_chain, tree_of
from ..verify.law import Prefix, PrefixLaw, Proposer
from .laws import PAIRS, processed

DRAWN: tuple[Drawn, ...] = get_args(Drawn)
CHAINS = [tuple(range(-1, k - 1)) for k in range(5)]
TREES = {
    "three children": (-1, -1, -1),
    "two by two": (-1, -1, 0, 0),
    "one child goes on": (-1, -1, 1, 1),
    "depth 3": (-1, 0, 1, -1),
    "a fork at the end": (-1, 0, 1, 1),
    "depth first, three at the root": (-1, 0, 1, -1, -1, 3),
}
SETTINGS = [
    SamplingParams(temperature=0.7),
    SamplingParams(top_k=2),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.5),
    SamplingParams(temperature=0),
    SamplingParams(repetition_penalty=1.4, presence_penalty=0.5),
]
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, text: str) -> None:
    """Progress for nobody."""


@dataclass(frozen=True)
class Coverage:
    """One line of a table of exact laws: the largest total variation over its cases."""

    name: str
    num_cases: int
    max_tv: float


@dataclass(frozen=True)
class RuleCoverage(Coverage):
    """One verifier with tokens drawn one way."""

    verifier: str
    drawn: Drawn

    def to_dict(self) -> dict[str, object]:
        return {"verifier": self.verifier, "drawn": self.drawn, "max_tv": self.max_tv, "cases": self.num_cases}


def is_chain(parents: Sequence[int]) -> bool:
    return tuple(parents) == tuple(range(-1, len(parents) - 1))


def until_unlikely(law: PrefixLaw) -> Proposer:
    """Chains that go on until an unlikely token was drawn; every one of them is handed over."""

    def propose(prefix: Prefix, source: RandomSource) -> Draft:
        tokens: list[int] = []
        rows: list[Probs] = []
        for _ in range(3):
            drafted = sampled_chain(law, 1)((*prefix, *tokens), source)
            assert drafted.probs is not None
            tokens += drafted.tokens
            rows.append(drafted.probs.row(0))
            if rows[-1].prob(0, tokens[-1]) < 0.4:
                break
        return Draft.chain(tokens, Probs.stack(rows), "independent")

    return propose


def until_flat(law: Callable[[Prefix], object]) -> Proposer:
    """Chains that end before a position whose draft law is flat, which is known before anything is drawn there."""

    def propose(prefix: Prefix, source: RandomSource) -> Draft:
        draft = sampled_chain(law, 3)(prefix, source)  # type: ignore[arg-type]
        assert draft.probs is not None
        length = next((i for i in range(3) if float(draft.probs.to_dense(i).max()) < 0.5), 3)
        kept = Probs.stack([draft.probs.row(i) for i in range(max(1, length))])
        return Draft.chain(draft.tokens[:length], kept, "independent")

    return propose


def below_likely(law: PrefixLaw) -> Proposer:
    """Trees with a second level below the children their law is sure of: shapes that depend on drawn parents."""

    def propose(prefix: Prefix, source: RandomSource) -> Draft:
        draft = tree_of(law, (-1, -1), "without_replacement")(prefix, source)
        assert draft.probs is not None
        tokens, parents, rows = list(draft.tokens), list(draft.parents), [draft.probs.row(0)]
        for node, token in enumerate(draft.tokens):
            below = sampled_chain(law, 1)((*prefix, token), source)
            assert below.probs is not None
            rows.append(below.probs.row(0))
            if draft.probs.prob(0, token) > 0.3:
                tokens += below.tokens
                parents.append(node)
        return Draft(tuple(tokens), tuple(parents), Probs.stack(rows), "without_replacement")

    return propose


LENGTHS: dict[Drawn, Mapping[str, Callable[[PrefixLaw], Proposer]]] = {
    "independent": {"until an unlikely token": until_unlikely, "until a flat law": until_flat},
    "without_replacement": {"below likely tokens": below_likely},
}
"""How a drafter may end a draft by itself. What the engine allows it (`engine.budget`) is in `combinations`."""


@dataclass(frozen=True)
class _Case:
    """p, a draft of it, and how many rounds after which prefix."""

    target: PrefixLaw
    propose: Proposer
    chain: bool
    rounds: int = 1
    prefix: Prefix = ()


def _cases(drawn: Drawn) -> Iterator[_Case]:
    for parents in [*CHAINS, *TREES.values()]:
        nodes = len(parents)
        for vocab_size, zeros in ((3, 0.0), (3, 0.4), (4 if nodes < 4 else 2, 0.2)):
            p, q = RandomTable(vocab_size, 1, zeros), RandomTable(vocab_size, 2, zeros)
            yield _Case(p, tree_of(q, parents, drawn), is_chain(parents))
    for target, draft in PAIRS.values():
        for parents in ((-1, 0), (-1, -1, 0, 0)):
            yield _Case(target, tree_of(draft, parents, drawn), is_chain(parents))
        yield _Case(target, tree_of(draft, (-1, -1), drawn), False, rounds=2)
        yield _Case(target, tree_of(draft, (-1,), drawn), True, rounds=2)
    p, q = RandomTable(3, 5, 0.3), RandomTable(3, 25, 0.3)
    for parents in ((-1, 0, 1), (-1, -1, 0)):
        yield _Case(p, tree_of(q, parents, drawn), is_chain(parents), rounds=2, prefix=(1, 2))
    p, q = RandomTable(4, 1), RandomTable(4, 2)
    for params in SETTINGS:
        for parents in ((-1, 0), (-1, -1, 0)):
            propose = tree_of(processed(q, params), parents, drawn)
            yield _Case(processed(p, params), propose, is_chain(parents))
    for ending in LENGTHS.get(drawn, {}).values():
        for seed in (1, 3):
            p, q = RandomTable(3, seed), RandomTable(3, seed + 1)
            yield _Case(p, ending(q), drawn == "independent")


def coverage(verifiers: Sequence[str] = tuple(VERIFIERS), progress: Progress = silent) -> list[RuleCoverage]:
    """The table, verifier by verifier: chains of 0 to 4 tokens, trees, lengths that depend on what was drawn; laws with
    zeros, equal, disjoint, truncated, greedy and penalised; one round and two.

    Args:
        verifiers: names out of `api.VERIFIERS`.
    """
    pairs = [(name, drawn) for name in verifiers for drawn in DRAWN]
    rows = []
    for done, (name, drawn) in enumerate(pairs):
        progress(done, len(pairs), f"{name}, {drawn}")
        distances = [
            distance_from_target(case.target, case.propose, VERIFIERS[name], case.rounds, prefix=case.prefix)
            for case in _cases(drawn)
            if case.chain or name != "block"  # which refuses trees
        ]
        title = f"verifier {name}, drawn {drawn}"
        rows.append(RuleCoverage(title, len(distances), max(distances), name, drawn))
    return rows
