"""Laws for tests: some that are awkward to verify against, and the law of a whole text from a model alone."""

from __future__ import annotations

import itertools

from draftproof import sampling
from draftproof.types import Probs


def top(law, k):
    """The k most likely tokens of a law, renormalised: sparse, as a truncating drafter states it."""

    def truncated(prefix):
        values, ids = law(prefix).topk(k)
        return Probs((values / values.sum())[None], ids[None], law(prefix).shape[0])

    return truncated


def point(law):
    """The law's most likely token with probability 1: greedy decoding."""
    return lambda prefix: Probs.one_hot([int(law(prefix).argmax())], law(prefix).shape[0])


def alternating(prefix):
    """Disjoint from `opposite` at every prefix."""
    return [0.3, 0.7, 0.0, 0.0] if len(prefix) % 2 else [0.0, 0.0, 0.6, 0.4]


def opposite(prefix):
    return [0.0, 0.0, 0.5, 0.5] if len(prefix) % 2 else [0.9, 0.1, 0.0, 0.0]


def law_of_texts(plain, params, ends, vocab_size=4, length=3):
    """Every text after the prompt [0], up to `length` tokens or the first of `ends`, and its probability."""
    expected: dict[tuple[int, ...], float] = {}
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
