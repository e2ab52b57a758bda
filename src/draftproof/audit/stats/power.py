"""Sample sizes: how much must be drawn so that a given error is found, and what would have been found with what was.

For a table of cells with known probabilities p, any law at total variation d from it has a chi-square divergence
sum of (difference)^2 / p >= 4 d^2 (Cauchy-Schwarz). So Pearson's and the G statistic of n draws have a noncentrality of
at least 4 n d^2 against *every* such law, not only against a chosen one.
"""

from __future__ import annotations

import math

from scipy import optimize, stats

ALPHA = 1e-3
"""False-alarm rate of a report, shared by all its tests."""
POWER = 0.99
"""Chance with which a report's smallest detectable error is found."""


def required_noncentrality(df: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """lambda such that a chi-square test of level alpha with df degrees of freedom rejects with the given power."""
    critical = stats.chi2.isf(alpha, df)

    def missing(noncentrality: float) -> float:
        return float(stats.ncx2.sf(critical, df, noncentrality)) - power

    return float(optimize.brentq(missing, 1e-9, 10 * (critical + 100)))


def draws_needed(tv: float, num_cells: int, alpha: float = ALPHA, power: float = POWER) -> int:
    """Independent draws for a table with known probabilities to find every law at total variation `tv`."""
    return math.ceil(required_noncentrality(num_cells - 1, alpha, power) / (4 * tv**2))


def detectable_tv(num_draws: int, num_cells: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """The total variation that so many draws find, whatever the law."""
    if num_cells < 2:
        return 0.0
    return math.sqrt(required_noncentrality(num_cells - 1, alpha, power) / (4 * num_draws))


def table_power(num_draws: int, num_cells: int, tv: float, alpha: float = ALPHA) -> float:
    """The chance that so many draws find a law at total variation `tv`; at least this."""
    df = num_cells - 1
    return float(stats.ncx2.sf(stats.chi2.isf(alpha, df), df, 4 * num_draws * tv**2))


def tokens_needed(drift: float, variance: float = 0.25, alpha: float = ALPHA, power: float = POWER) -> int:
    """Tokens for the directional test to find a drift per token; 1/4 is the largest variance there can be.

    A leak, y from (1 - e) p + e q, has the drift e TV(p, q).
    """
    z = stats.norm.isf(alpha / 2) + stats.norm.isf(1 - power)
    return math.ceil(z**2 * variance / drift**2)


def drift_power(num_tokens: int, drift: float, variance: float = 0.25, alpha: float = ALPHA) -> float:
    """The chance that the directional test finds a drift per token."""
    if not num_tokens or not variance:
        return 0.0
    critical, shift = stats.norm.isf(alpha / 2), drift * math.sqrt(num_tokens / variance)
    return float(stats.norm.sf(critical - shift) + stats.norm.cdf(-critical - shift))


def detectable_drift(num_tokens: int, variance: float = 0.25, alpha: float = ALPHA, power: float = POWER) -> float:
    """The drift per token that so many tokens find."""
    if not num_tokens:
        return math.inf
    return float(stats.norm.isf(alpha / 2) + stats.norm.isf(1 - power)) * math.sqrt(variance / num_tokens)


def distribution_power(num: int, shift: float, alpha: float = ALPHA) -> float:
    """A lower bound of the chance that the Kolmogorov-Smirnov test of `num` uniforms finds a distribution function that
    is off by `shift` somewhere: that it is seen at this one place is enough, and the variance there is at most 1/4.
    """
    if not num:
        return 0.0
    critical = stats.kstwo.isf(alpha, num)
    return float(stats.norm.sf((critical - shift) * 2 * math.sqrt(num)))
