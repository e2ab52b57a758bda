"""Two systems, the same prompts, no probabilities: do their texts follow one law? An exact permutation test.

Under that hypothesis the continuations of a prompt can be exchanged between the systems. The statistic compares, prompt
by prompt, how often each system wrote each n-gram near the start of its continuations; its law under exchange is found
by exchanging. No approximation is made, at the price of power: without the laws, a token says little.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NGRAMS = (1, 2, 3)
FIRST = 16
"""Tokens of each continuation that are looked at: later ones follow so many histories that they tell little."""

CHUNK = 1000  # exchanges at a time, for the memory's sake


@dataclass(frozen=True)
class TwoSample:
    """Fields:
    statistic: standardised by its mean and deviation under exchange.
    p_value: share of exchanges at least as far apart, the observed one among them.
    num_prompts, num_each: prompts, and continuations of one system in all.
    num_cells: n-grams told apart, over all prompts.
    """

    statistic: float
    p_value: float
    num_prompts: int
    num_each: int
    num_cells: int


def two_sample(
    one: Sequence[Sequence[Sequence[Hashable]]],
    other: Sequence[Sequence[Sequence[Hashable]]],
    exchanges: int = 9999,
    seed: int = 0,
) -> TwoSample:
    """Compare the continuations of each prompt, two systems side by side.

    Args:
        one, other: for each prompt its continuations, each a sequence of tokens (or characters); at least two
            continuations a prompt and system, else exchanging them changes nothing.
        exchanges: random relabellings; the smallest p-value is 1 / (exchanges + 1).
        seed: of the relabellings.
    """
    chance = np.random.default_rng(seed)
    observed, exchanged = 0.0, np.zeros(exchanges)
    num_cells = num_prompts = num_each = 0
    for ours, theirs in zip(one, other):
        if not ours or not theirs:
            continue
        counts = _counts([*ours, *theirs])
        labels = np.zeros(len(counts), dtype=np.float32)
        labels[: len(ours)] = 1
        observed += float(_distance(labels[None], counts)[0])
        for start in range(0, exchanges, CHUNK):
            part = exchanged[start : start + CHUNK]
            orders = np.argsort(chance.random((len(part), len(counts))), axis=1)
            part += _distance(labels[orders], counts)
        num_cells += counts.shape[1]
        num_prompts, num_each = num_prompts + 1, num_each + len(ours)
    beyond = int((exchanged >= observed - 1e-6 * max(1.0, abs(observed))).sum())
    spread = float(exchanged.std()) or 1.0
    standard = (observed - float(exchanged.mean())) / spread if num_prompts else 0.0
    return TwoSample(standard, (1 + beyond) / (1 + exchanges), num_prompts, num_each, num_cells)


def _counts(texts: Sequence[Sequence[Hashable]]) -> NDArray[np.float32]:
    """How often each text `[R]` has each n-gram of any of them `[C]` among its first tokens; those of one text alone
    are the same under every exchange but for noise, and left out.
    """
    cells: dict[Hashable, dict[int, int]] = {}
    for row, text in enumerate(texts):
        start = tuple(text[:FIRST])
        for size in NGRAMS:
            for i in range(len(start) - size + 1):
                rows = cells.setdefault(start[i : i + size], {})
                rows[row] = rows.get(row, 0) + 1
    kept = [rows for rows in cells.values() if len(rows) > 1]
    counts = np.zeros((len(texts), len(kept)), dtype=np.float32)
    for column, rows in enumerate(kept):
        for row, count in rows.items():
            counts[row, column] = count
    return counts


def _distance(labels: NDArray[np.float32], counts: NDArray[np.float32]) -> NDArray[np.float64]:
    """Chi-square distance of the two systems' counts for each labelling `[E, R]`, summed over the cells."""
    total = counts.sum(0)
    share = labels.sum(1, keepdims=True) / labels.shape[1]
    ours = labels @ counts
    return ((ours - share * total) ** 2 / np.maximum(total, 1e-9)).sum(1).astype(np.float64)
