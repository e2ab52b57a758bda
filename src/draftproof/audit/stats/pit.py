"""Randomised probability integral transforms: under the target's law, numbers that are uniform and independent.

u_t = F_t(y_t-) + xi_t p_t(y_t), with F_t the target's distribution function over its tokens in any order known before
token t (here by p/q), and xi_t fresh uniforms of the auditor. If the text follows the target, the u_t are independent
and uniform exactly, at any vocabulary. A wrong marginal bends their distribution; noise used twice makes neighbours
depend on each other, though every single one be right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True)
class Uniformity:
    """Kolmogorov-Smirnov: the largest gap between the empirical and the uniform distribution function."""

    num: int
    distance: float
    p_value: float


def uniformity(u: NDArray[np.float64]) -> Uniformity:
    """Test `[T]` numbers for being uniform; exact p-value."""
    if not len(u):
        return Uniformity(0, 0.0, 1.0)
    found = stats.kstest(u, "uniform")
    return Uniformity(len(u), float(found.statistic), float(found.pvalue))


def dkw(num: int, confidence: float) -> float:
    """The true distribution function is within this of the empirical one everywhere (Dvoretzky-Kiefer-Wolfowitz)."""
    return math.sqrt(math.log(2 / (1 - confidence)) / (2 * num)) if num else 1.0


@dataclass(frozen=True)
class SerialCorrelation:
    """Neighbours' correlation over `num` pairs, its standardised value and two-sided p-value."""

    num: int
    correlation: float
    z: float
    p_value: float


def serial_correlation(texts: list[NDArray[np.float64]]) -> SerialCorrelation:
    """Of consecutive numbers within each text; pairs across texts do not count.

    The sum of (u_t - 1/2)(u_(t+1) - 1/2) has mean 0 and variance 1/144 a pair, exactly: neighbouring products share a
    number but are uncorrelated.
    """
    products = [(u[:-1] - 0.5) * (u[1:] - 0.5) for u in texts if len(u) > 1]
    num = sum(map(len, products))
    if not num:
        return SerialCorrelation(0, 0.0, 0.0, 1.0)
    total = sum(float(part.sum()) for part in products)
    z = 12 * total / math.sqrt(num)
    return SerialCorrelation(num, 12 * total / num, z, float(2 * stats.norm.sf(abs(z))))


def relative(one: SerialCorrelation, other: SerialCorrelation) -> SerialCorrelation:
    """How much more `one` is correlated than `other`: what both share cancels."""
    shift = one.correlation - other.correlation
    spread = math.sqrt(1 / max(1, one.num) + 1 / max(1, other.num))
    z = shift / spread if one.num and other.num else 0.0
    return SerialCorrelation(one.num, shift, z, float(2 * stats.norm.sf(abs(z))))
