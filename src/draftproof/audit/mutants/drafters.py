"""Drafters that do not say truly how their tokens were drawn, or keep some of them back."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from ...interfaces import RandomSource
from ...types import EMPTY_DRAFT, Draft, Probs
from ...verify import argmax_chain, sampled_chain, tree_of
from ...verify.law import Prefix, PrefixLaw, Proposer, row_of
from ..laws import top
from .mutant import Q, broken_drafter


def misreporting(drawn_from: PrefixLaw, stated: PrefixLaw) -> Proposer:
    """Draws from one law and states another."""

    def propose(prefix: Prefix, source: RandomSource) -> Draft:
        draft = sampled_chain(drawn_from, 2)(prefix, source)
        rows = [row_of(stated, prefix + draft.tokens[:i]) for i in range(2)]
        return Draft.chain(draft.tokens, Probs.stack(rows), "independent")

    return propose


def at_temperature(law: PrefixLaw, temperature: float) -> PrefixLaw:
    def next_law(prefix: Prefix) -> Tensor:
        return (row_of(law, prefix).to_dense(0).log() / temperature).softmax(-1)

    return next_law


def cut(draft: Draft, length: int) -> Draft:
    """The first tokens of a drawn chain, the others withheld."""
    if not length:
        return EMPTY_DRAFT
    assert draft.probs is not None
    return Draft.chain(draft.tokens[:length], Probs.stack([draft.probs.row(i) for i in range(length)]), "independent")


def drawn_with(draft: Draft, node: int) -> float:
    """The stated chance of a drawn token of a chain."""
    assert draft.probs is not None
    return draft.probs.prob(node, draft.tokens[node])


def dropping_unlikely_tokens(prefix: Prefix, source: RandomSource) -> Draft:
    """Draws a token, finds it improbable, and withholds it: what is kept no longer follows q."""
    draft = sampled_chain(Q, 2)(prefix, source)
    return cut(draft, next((i for i in range(2) if drawn_with(draft, i) < 0.4), 2))


def dropping_by_the_product(prefix: Prefix, source: RandomSource) -> Draft:
    """Withholds the second token where the product of all drawn probabilities, its own among them, is small."""
    draft = sampled_chain(Q, 2)(prefix, source)
    return cut(draft, 2 if drawn_with(draft, 0) * drawn_with(draft, 1) > 0.1 else 1)


COSTS = (1.0, 1.7, 1.9)
"""Of a round that verifies 0, 1 or 2 drafted tokens: a stepped table, as padded batches have."""


def survivals(draft: Draft, prefix: Prefix) -> tuple[float, float]:
    """What a drafter expects of its two tokens, from its laws alone: products of the highest probabilities."""
    first = float(Q(prefix).max())
    return first, first * float(Q((*prefix, draft.tokens[0])).max())


def length_of_best_goodput(prefix: Prefix, source: RandomSource) -> Draft:
    """Keeps as many tokens as promise the most per unit of cost, so the first is kept for what may follow it: the
    second's survival is known only once the first was drawn.
    """
    draft = sampled_chain(Q, 2)(prefix, source)
    one, two = survivals(draft, prefix)
    gains = [1 / COSTS[0], (1 + one) / COSTS[1], (1 + one + two) / COSTS[2]]
    return cut(draft, gains.index(max(gains)))


def length_of_growing_goodput(prefix: Prefix, source: RandomSource) -> Draft:
    """The same, stopped at the first token that promises less than the average so far: exact."""
    draft = sampled_chain(Q, 2)(prefix, source)
    total = 1.0
    for i, survival in enumerate(survivals(draft, prefix)):
        if survival / (COSTS[i + 1] - COSTS[i]) < total / COSTS[i]:
            return cut(draft, i)
        total += survival
    return draft


def dropping_by_goodput(prefix: Prefix, source: RandomSource) -> Draft:
    """Keeps as many drawn tokens as promise most per pass where passes are padded: 1, or all 3."""
    draft = sampled_chain(Q, 3)(prefix, source)
    survival = list(accumulate((drawn_with(draft, i) for i in range(3)), mul))
    return cut(draft, max(range(4), key=lambda num: (1 + sum(survival[:num])) / (1.0, 1.0, 1.2, 1.2)[num]))


def stating_softmax_for_an_argmax(prefix: Prefix, source: RandomSource) -> Draft:
    """Chooses the most likely token and claims to have drawn it."""
    tokens = argmax_chain(Q, 2)(prefix, source).tokens
    return Draft.chain(tokens, torch.stack([Q(prefix + tokens[:i]) for i in range(2)]), "independent")


def claiming_a_point_mass(prefix: Prefix, source: RandomSource) -> Draft:
    """Draws a token but takes it back when it is unlikely, and declares the rest chosen without randomness: exact."""
    return Draft.chain(dropping_unlikely_tokens(prefix, source).tokens)


def pruned(prefix: Prefix, source: RandomSource) -> Draft:
    """Draws two siblings without replacement and withholds the less likely one."""
    draft = tree_of(Q, (-1, -1), "without_replacement")(prefix, source)
    assert draft.probs is not None
    best = max(draft.tokens, key=lambda token: draft.probs.prob(0, token))  # type: ignore[union-attr]
    return Draft((best,), (-1,), draft.probs, "without_replacement")


CHAIN = sampled_chain(Q, 2)
DRAFTERS: dict[str, tuple[Proposer, Proposer]] = {
    "q stated at another temperature": (misreporting(at_temperature(Q, 0.7), Q), CHAIN),
    "q stated without the drafter's top-k": (misreporting(top(Q, 2), Q), misreporting(top(Q, 2), top(Q, 2))),
    "q rounded to bfloat16 before it is stated": (misreporting(Q, lambda prefix: Q(prefix).bfloat16().double()), CHAIN),
    "q of the wrong context": (misreporting(Q, lambda prefix: Q(prefix[:-1] if prefix else (0,))), CHAIN),
    "drawn token dropped for its low probability": (dropping_unlikely_tokens, CHAIN),
    "drawn token dropped for the product up to it": (dropping_by_the_product, CHAIN),
    "drawn tokens dropped where goodput is best": (dropping_by_goodput, sampled_chain(Q, 3)),
    "length by a goodput that looks ahead": (length_of_best_goodput, length_of_growing_goodput),
    "softmax stated for an argmax": (stating_softmax_for_an_argmax, argmax_chain(Q, 2)),
    "drawn sibling pruned by its score": (pruned, tree_of(Q, (-1, -1), "without_replacement")),
}
"""Name to the broken drafter and its sound counterpart."""

MUTANTS = [broken_drafter(name, broken, sound) for name, (broken, sound) in DRAFTERS.items()]
