"""Pairs of laws that are awkward to verify against, and the law of a whole text from a model alone."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from .. import sampling
from ..testing import FnTarget, RandomTable
from ..types import Probs, SamplingParams
from ..verify.law import Prefix, PrefixLaw, row_of


def top(law: PrefixLaw, k: int) -> PrefixLaw:
    """The k most likely tokens of a law, renormalised: sparse, as a truncating drafter states it."""

    def truncated(prefix: Prefix) -> Probs:
        row = row_of(law, prefix).to_dense(0)
        values, ids = row.topk(k)
        return Probs((values / values.sum())[None], ids[None], len(row))

    return truncated


def point(law: PrefixLaw) -> PrefixLaw:
    """The law's most likely token with probability 1: greedy decoding."""

    def greedy(prefix: Prefix) -> Probs:
        row = row_of(law, prefix).to_dense(0)
        return Probs.one_hot([int(row.argmax())], len(row))

    return greedy


def processed(law: PrefixLaw, params: SamplingParams, num_prompt: int = 0) -> PrefixLaw:
    """The law after the processors, of which the first `num_prompt` tokens of a prefix are no output."""

    def next_law(prefix: Prefix) -> Probs:
        logits = row_of(law, prefix).to_dense(0).double().log()
        return sampling.probs(logits[None], params, prefix, num_prompt)

    return next_law


def alternating(prefix: Prefix) -> Sequence[float]:
    """Disjoint from `opposite` at every prefix."""
    return [0.3, 0.7, 0.0, 0.0] if len(prefix) % 2 else [0.0, 0.0, 0.6, 0.4]


def opposite(prefix: Prefix) -> Sequence[float]:
    return [0.0, 0.0, 0.5, 0.5] if len(prefix) % 2 else [0.9, 0.1, 0.0, 0.0]


PAIRS: dict[str, tuple[PrefixLaw, PrefixLaw]] = {
    "zero mass in both": (RandomTable(3, 7, 0.5), RandomTable(3, 8, 0.5)),
    "equal laws": (RandomTable(3, 1, 0.2), RandomTable(3, 1, 0.2)),
    "equal one by one, not as objects": (lambda _: [0.1, 0.2, 0.7], lambda _: [0.1, 0.2, 0.7]),
    "disjoint supports": (alternating, opposite),
    "p a point mass": (point(RandomTable(3, 3)), RandomTable(3, 4)),
    "q a point mass": (RandomTable(3, 3), point(RandomTable(3, 4))),
    "q truncated to its top 2": (RandomTable(4, 5), top(RandomTable(4, 6), 2)),
    "p truncated to its top 2": (top(RandomTable(4, 5), 2), RandomTable(4, 6)),
    "both truncated": (top(RandomTable(4, 5), 2), top(RandomTable(4, 6), 2)),
    "p concentrated on a token q rarely draws": (lambda _: [0.98, 0.01, 0.01], lambda _: [0.01, 0.5, 0.49]),
    "q a hair away from p": (lambda _: [0.3, 0.7], lambda _: [0.3 + 1e-9, 0.7 - 1e-9]),
}
"""Name to (p, q)."""


def law_of_texts(
    plain: FnTarget, params: SamplingParams, ends: Collection[int], vocab_size: int = 4, length: int = 3
) -> dict[Prefix, float]:
    """Every text after the prompt (0,), up to `length` tokens or the first of `ends`, and its probability."""
    expected: dict[Prefix, float] = {}
    for text in itertools.product(range(vocab_size), repeat=length):
        end = next((i + 1 for i, token in enumerate(text) if token in ends), length)
        if text[:end] in expected:
            continue
        weight = 1.0
        for i in range(end):
            law = sampling.probs(plain.next_logits((0, *text[:i]))[None], params, (0, *text[:i]), 1)
            weight *= law.prob(0, text[i])
        expected[text[:end]] = weight
    return expected
