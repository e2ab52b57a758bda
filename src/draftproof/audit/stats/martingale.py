"""The directional test: are tokens that the drafter likes better than the target emitted too often?

A_t = {x : q_t(x) > p_t(x)} is known before token t. If the emitted text follows the target, then, whatever came before,

    Z = sum over t of (1[y_t in A_t] - p_t(A_t))

is a martingale whose predictable variance is the sum of p_t(A_t) (1 - p_t(A_t)). A system that leaks draft tokens,
y from (1 - e) p + e q, drifts by e TV(p_t, q_t) a token: A_t is the set on which that leak is largest. Only the emitted
text is conditioned on. Tokens must never be told apart by whether they were accepted: those strata do not follow p even
for a perfect system. Any other set that is known before the token will do too (without q: the most likely token), with
less power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FEW = 20.0
"""Below this variance the normal approximation is not trusted, and Bernstein's inequality is taken."""


@dataclass(frozen=True)
class Drift:
    """Fields:
    num_tokens: n.
    total: Z.
    variance: the sum of p (1 - p), which Z has if the text follows the target.
    """

    num_tokens: int
    total: float
    variance: float

    @property
    def per_token(self) -> float:
        return self.total / self.num_tokens if self.num_tokens else 0.0

    @property
    def z(self) -> float:
        return self.total / math.sqrt(self.variance) if self.variance else 0.0

    @property
    def p_value(self) -> float:
        """Two-sided. An event that the target excludes (no variance, yet a difference) has probability 0."""
        if self.variance < 1e-9:
            return 1.0 if abs(self.total) < 1e-6 else 0.0
        if self.variance < FEW:
            size = abs(self.total)
            return min(1.0, 2 * math.exp(-(size**2) / (2 * (self.variance + size / 3))))
        return float(2 * stats.norm.sf(abs(self.z)))

    def bound(self, confidence: float) -> float:
        """The drift per token is, with this confidence, at most this in size."""
        if not self.num_tokens:
            return 1.0
        z = float(stats.norm.isf((1 - confidence) / 2))
        margin = z * math.sqrt(max(self.variance, FEW))
        return min(1.0, abs(self.per_token) + margin / self.num_tokens)

    @property
    def mean_variance(self) -> float:
        """Per token; at most 1/4."""
        return self.variance / self.num_tokens if self.num_tokens else 0.0


def drift(hits: NDArray[np.bool_], masses: NDArray[np.float64]) -> Drift:
    """Whether each token was in its set `[T]`, and the target's probability of that `[T]`."""
    masses = np.clip(masses, 0.0, 1.0)
    return Drift(len(hits), float((hits - masses).sum()), float((masses * (1 - masses)).sum()))


def relative(one: Drift, other: Drift) -> Drift:
    """How much more `one` drifts than `other`, as a drift of its own: what they share, such as another precision than
    the reading target's, cancels.
    """
    num = one.num_tokens
    shift = one.per_token - other.per_token
    variance = one.variance / max(1, num) ** 2 + other.variance / max(1, other.num_tokens) ** 2
    return Drift(num, num * shift, num**2 * variance)
