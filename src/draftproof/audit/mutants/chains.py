"""The token rule and block verification, each with one part replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import torch

from ...interfaces import RandomSource, Verifier
from ...sampling import draw
from ...testing import RandomTable
from ...types import Draft, Probs, Verification
from ...verify import block_rule, excess, path_chances, residual, sampled_chain, token_probs, token_rule
from .mutant import P, Q, broken_rule


def stated(draft: Draft, p: Probs) -> Probs:
    """q of every position."""
    if draft.drawn == "fixed" or draft.probs is None:
        return Probs.one_hot(draft.tokens, p.vocab_size)
    return draft.probs


def variant(
    ratio: Callable[[float, float], float] = lambda p_x, q_x: p_x / q_x,
    replacement: Callable[[Probs, Probs, int], Probs] = lambda p, q, row: residual(p, q, row)[0],
    replacement_row: Callable[[int], int] = lambda i: i,
    bonus_row: Callable[[int], int] = lambda n: n,
) -> Verifier:
    """The token rule with one part replaced."""

    def verify(draft: Draft, p: Probs, source: RandomSource) -> Verification:
        n, q = draft.num_nodes, stated(draft, p)
        chances = zip(token_probs(p, range(n), draft.tokens), token_probs(q, range(n), draft.tokens))
        for i, (p_x, q_x) in enumerate(chances):
            if not source.bernoulli(ratio(p_x, q_x), "accept"):
                token = draw(replacement(p, q, replacement_row(i)), 0, source, "residual")
                return Verification(tuple(range(i)), token, "residual", n)
        return Verification(tuple(range(n)), draw(p, bonus_row(n), source, "bonus"), "bonus", n)

    return verify


def absolute_difference(p: Probs, q: Probs, row: int) -> Probs:
    return Probs.dense((p.to_dense(row) - q.to_dense(row)).abs()[None])


def reusing(interval: Callable[[float, Probs, int], tuple[float, float]]) -> Verifier:
    """The token rule for one token, whose replacement is picked by a uniform that was used before (K = 1).

    Given what is known of that uniform it is spread evenly over an interval, so which of the residual's tokens it picks
    is a finite mixture: a categorical draw expresses it exactly.

    Args:
        interval: acceptance chance, q and drafted token to the ends of the interval.
    """

    def verify(draft: Draft, p: Probs, source: RandomSource) -> Verification:
        q = stated(draft, p)
        (p_x,), (q_x,) = token_probs(p, [0], draft.tokens), token_probs(q, [0], draft.tokens)
        if source.bernoulli(p_x / q_x, "accept"):
            return Verification((0,), draw(p, 1, source, "bonus"), "bonus", 1)
        least, most = interval(p_x / q_x, q, draft.tokens[0])
        edges = residual(p, q, 0)[0].values[0].cumsum(0).tolist()
        parts = [max(0.0, min(most, high) - max(least, low)) for low, high in zip([0.0, *edges], edges)]
        return Verification((), source.categorical(torch.tensor(parts, dtype=torch.float64), "accept"), "residual", 1)

    return verify


def of_the_draw(chance: float, q: Probs, token: int) -> tuple[float, float]:
    """The uniform that drew the token by inverting q's distribution function."""
    edges = [0.0, *q.to_dense(0).cumsum(0).tolist()]
    return edges[token], edges[token + 1]


def blocks(
    chances: Callable[[Sequence[float]], list[float]] = lambda ratios: path_chances(
        torch.tensor(ratios, dtype=torch.float64)
    ).tolist(),
    last: Callable[[float, Sequence[float]], float] = lambda a, ratios: a,
    test: Callable[[float, float], float] = lambda mass, a: mass / (mass + 1 - a) if mass + 1 - a > 0 else 1.0,
    scale: Callable[[float], float] = lambda a: a,
    longest: Callable[[Sequence[int]], int] = lambda passed: max(passed, default=0),
) -> Verifier:
    """Block verification as published (2403.10444), every position tested, with one part replaced."""

    def verify(draft: Draft, p: Probs, source: RandomSource) -> Verification:
        n, q = draft.num_nodes, stated(draft, p)
        ratios = [a / b for a, b in zip(token_probs(p, range(n), draft.tokens), token_probs(q, range(n), draft.tokens))]
        a = [1.0, *chances(ratios)]
        tests = [test(float(excess(p, q, i, scale(a[i])).sum()), a[i]) for i in range(1, n)]
        tests.append(last(a[n], ratios))
        tau = longest([i + 1 for i, chance in enumerate(tests) if source.bernoulli(chance, "accept")])
        if tau == n:
            return Verification(tuple(range(n)), draw(p, n, source, "bonus"), "bonus", n)
        token = draw(residual(p, q, tau, scale(a[tau]))[0], 0, source, "residual")
        return Verification(tuple(range(tau)), token, "residual", n)

    return verify


def cap_only_where_exceeded(ratios: Sequence[float]) -> list[float]:
    """The cap of a step stays 1 unless its joint ratio sets a new maximum, as in another public script."""
    a, joint, highest = [], 1.0, 1.0
    for ratio in ratios:
        joint *= ratio
        cap = joint if joint > highest else 1.0
        highest = max(highest, joint)
        a.append(min(1.0, joint / cap))
    return a


def until_the_first_failure(passed: Sequence[int]) -> int:
    return next((i for i in range(len(passed) + 1) if i + 1 not in passed), 0)


TOKEN_RULES = {
    "always accept": variant(ratio=lambda p_x, q_x: 1.0),
    "accept with q / p": variant(ratio=lambda p_x, q_x: q_x / p_x),
    "accept with p alone": variant(ratio=lambda p_x, q_x: p_x),
    "typical acceptance by a threshold on p": variant(ratio=lambda p_x, q_x: float(p_x > 0.3)),
    "lenient ratio": variant(ratio=lambda p_x, q_x: p_x / (0.8 * q_x)),
    "residual from p": variant(replacement=lambda p, q, row: p.row(row)),
    "residual from |p - q|": variant(replacement=absolute_difference),
    "residual of the next position": variant(replacement_row=lambda i: min(i + 1, 1)),
    "residual of the first position": variant(replacement_row=lambda i: 0),
    "bonus from the row before": variant(bonus_row=lambda n: n - 1),
    "bonus from the first row": variant(bonus_row=lambda n: 0),
}

BLOCK_RULES = {
    "HSD's public code: uncapped joint ratio in the last test": blocks(last=lambda a, ratios: math.prod(ratios)),
    "caps left at 1 below the maximum": blocks(chances=cap_only_where_exceeded),
    "product of capped ratios": blocks(chances=lambda r: list(accumulate((min(1.0, x) for x in r), mul))),
    "uncapped products throughout": blocks(chances=lambda ratios: list(accumulate(ratios, mul))),
    "residual of the token rule in a block": blocks(scale=lambda a: 1.0),
    "test without the 1 - a": blocks(test=lambda mass, a: min(1.0, mass)),
    "test with a alone": blocks(test=lambda mass, a: a),
    "stops at the first failure": blocks(longest=until_the_first_failure),
}

REUSED_NOISE = {
    "a uniform shared by acceptance and residual": reusing(lambda chance, q, token: (chance, 1.0)),
    "a uniform shared by draft and residual": reusing(of_the_draw),
}

MUTANTS = [
    *(broken_rule(name, rule, P, sampled_chain(Q, 2), token_rule) for name, rule in TOKEN_RULES.items()),
    *(broken_rule(name, rule, P, sampled_chain(Q, 3), block_rule) for name, rule in BLOCK_RULES.items()),
    *(
        broken_rule(name, rule, RandomTable(4, 5), sampled_chain(RandomTable(4, 6), 1), token_rule)
        for name, rule in REUSED_NOISE.items()
    ),
]
