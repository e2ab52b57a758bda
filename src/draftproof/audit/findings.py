"""What the readings of one arm say: every test with its power, and the bound that holds if none of them rejects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .reading import Reading
from .report import Histogram
from .stats import martingale, pit, power, twosample
from .texts import Arm
from .verdict import Evidence

LEAK = 0.05
"""The leak that powers are stated for: one token in twenty taken from the draft without verification."""
TESTS_OF_ARM = 4


@dataclass(frozen=True)
class Findings:
    """The readings of one arm, pooled.

    Fields:
        name: of the arm.
        drift, uniformity, serial: what the three tests found.
        mean_tv: average total variation between p_t and q_t; 0 without a drafter's laws.
        drafted: share of tokens at which the drafter had something to say.
        impossible: tokens the target excludes.
        u: all transforms.
    """

    name: str
    num_texts: int
    drift: martingale.Drift
    uniformity: pit.Uniformity
    serial: pit.SerialCorrelation
    mean_tv: float
    drafted: float
    impossible: int
    u: NDArray[np.float64]

    @property
    def num_tokens(self) -> int:
        return self.drift.num_tokens

    def evidence(self, alpha: float) -> list[Evidence]:
        """The tests, with the power each has at level `alpha` to see a leak of 5 %."""
        blind = "" if self.mean_tv else "no drafter's laws: the target's most likely tokens stand in"
        if not self.mean_tv and not self.drift.variance:
            blind = "the drafter never proposed anything"
        n, variance, leak = self.num_tokens, self.drift.mean_variance, LEAK * self.mean_tv
        directional = Evidence(
            f"{self.name}: drift towards the draft",
            self.drift.z,
            self.drift.p_value,
            n,
            power.drift_power(n, leak, variance, alpha) if leak else None,
            power.detectable_drift(n, variance, alpha),
            blind,
        )
        transforms = Evidence(
            f"{self.name}: uniform transforms",
            self.uniformity.distance,
            self.uniformity.p_value,
            n,
            power.distribution_power(n, leak, alpha) if leak else None,
            None,
            blind,
        )
        serial = Evidence(
            f"{self.name}: neighbouring tokens independent", self.serial.z, self.serial.p_value, self.serial.num
        )
        return [directional, transforms, serial]

    def histogram(self) -> Histogram:
        counts, _ = np.histogram(self.u, bins=20, range=(0.0, 1.0))
        return Histogram(f"{self.name}: transforms of {self.num_tokens} tokens in 20 cells", counts.tolist())

    def to_dict(self) -> dict[str, object]:
        return {
            "arm": self.name,
            "texts": self.num_texts,
            "tokens": self.num_tokens,
            "drift_per_token": self.drift.per_token,
            "mean_tv": self.mean_tv,
            "drafted": self.drafted,
            "impossible": self.impossible,
            "p_values": [self.drift.p_value, self.uniformity.p_value, self.serial.p_value],
        }


def pooled(name: str, readings: Sequence[Reading]) -> Findings:
    """The three tests over all texts of an arm."""
    hits = np.array([hit for reading in readings for hit in reading.hits], dtype=bool)
    masses = np.array([mass for reading in readings for mass in reading.masses])
    u = [np.array(reading.u) for reading in readings]
    every = np.concatenate(u) if u else np.zeros(0)
    tv = [value for reading in readings for value in reading.tv]
    drafted = [said for reading in readings for said in reading.drafted]
    return Findings(
        name,
        len(readings),
        martingale.drift(hits, masses),
        pit.uniformity(every),
        pit.serial_correlation(u),
        float(np.mean(tv)) if tv else 0.0,
        float(np.mean(drafted)) if drafted else 0.0,
        sum(reading.impossible for reading in readings),
        every,
    )


def compared(name: str, arm: Arm, baseline: Arm, alpha: float, seed: int) -> Evidence:
    """The two-sample test between two arms over the same prompts."""
    one, other = arm.by_prompt(), baseline.by_prompt()
    shared = sorted(set(one) & set(other))
    found = twosample.two_sample([one[i] for i in shared], [other[i] for i in shared], seed=seed)
    df = max(1, found.num_cells - found.num_prompts)
    detectable = None
    if found.num_each:
        detectable = min(1.0, (power.required_noncentrality(df, alpha) / (2 * found.num_each)) ** 0.5)
    note = f"of the first {twosample.FIRST} tokens; {found.num_each} texts a side over {found.num_prompts} prompts"
    return Evidence(
        f"{name}: two samples alike", found.statistic, found.p_value, found.num_each, None, detectable, note
    )
