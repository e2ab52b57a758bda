"""Counts against a known law: the G-test, its bootstrap where cells are few, and a certificate of total variation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

SPARSE = 5.0
"""Cells with a smaller expected count are pooled."""


@dataclass(frozen=True)
class GTest:
    """Fields:
    g: 2 sum of count log(count / expected).
    df: degrees of freedom after pooling.
    p_value: of the chi-square approximation, or of the bootstrap.
    num: counts in all.
    tv: total variation between the empirical law and the stated one, before pooling.
    """

    g: float
    df: int
    p_value: float
    num: int
    tv: float


def g_test(counts: ArrayLike, law: ArrayLike, bootstrap: int = 0, seed: int = 0) -> GTest:
    """Do these counts come from this law?

    Args:
        counts, law: `[C]` each; the law sums to 1.
        bootstrap: p-value from so many tables drawn from the law, instead of the approximation.
        seed: of those tables.

    A count where the law is 0 is impossible: G is infinite and the p-value 0.
    """
    observed, p = np.asarray(counts, dtype=np.float64), np.asarray(law, dtype=np.float64)
    num = int(observed.sum())
    tv = float(np.abs(observed / max(1, num) - p).sum() / 2)
    if bool((observed[p <= 0] > 0).any()):
        return GTest(math.inf, int((p > 0).sum()) - 1, 0.0, num, tv)
    cells = _pooled(p[p > 0] * num)
    df = int(cells.max(initial=0))
    if df < 1:
        return GTest(0.0, 0, 1.0, num, tv)
    expected = np.bincount(cells, p[p > 0] * num).astype(np.float64)
    g = float(_g(np.bincount(cells, observed[p > 0])[None], expected)[0])
    if not bootstrap:
        return GTest(g, df, float(stats.chi2.sf(g, df)), num, tv)
    tables = np.random.default_rng(seed).multinomial(num, expected / expected.sum(), size=bootstrap)
    beyond = int((_g(tables, expected) >= g - 1e-9).sum())
    return GTest(g, df, (1 + beyond) / (1 + bootstrap), num, tv)


def _pooled(expected: NDArray[np.float64]) -> NDArray[np.int64]:
    """The pooled cell of each cell: the small ones together in one, which takes more while it is small itself."""
    order = np.argsort(expected, kind="stable")
    small = int((expected < SPARSE).sum())
    if small:
        while small < len(expected) and expected[order[:small]].sum() < SPARSE:
            small += 1
    cells = np.zeros(len(expected), dtype=np.int64)
    first = 1 if small else 0
    cells[order[small:]] = np.arange(first, first + len(expected) - small)
    return cells


def _g(tables: ArrayLike, expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """G of each table `[R, C]`."""
    observed = np.asarray(tables, dtype=np.float64)
    terms = observed * np.log(np.where(observed > 0, observed, 1.0) / expected)
    return 2 * np.where(observed > 0, terms, 0.0).sum(-1)


def certificate(tv: float, num: int, num_cells: int, confidence: float) -> float:
    """With this confidence the system's law is within this total variation of the stated one.

    The empirical law is off by at most sqrt((C - 1) / n) / 2 on average (Cauchy-Schwarz), and its total variation moves
    by at most 1/n with one draw (McDiarmid).

    Args:
        tv: between the empirical law of `num` independent draws and the stated one, over `num_cells` cells.
    """
    average = 0.5 * math.sqrt((num_cells - 1) / num)
    return min(1.0, tv + average + math.sqrt(math.log(1 / (1 - confidence)) / (2 * num)))
