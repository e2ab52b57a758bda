"""What an audit concludes, in one line, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["lossless", "not lossless", "undecided"]


@dataclass(frozen=True)
class Evidence:
    """One test of the hypothesis that the output follows the target's law.

    Fields:
        name: what was tested.
        statistic: its value, standardised where that makes sense.
        p_value: chance of a value at least as far off, if the hypothesis is true.
        power: chance of rejecting, had the planted leak of the report been there; None where there is no formula.
        num: tokens, texts or pairs it rests on.
        detectable: the smallest total variation it would have found with the power of the report, or None.
        note: what limits it.
    """

    name: str
    statistic: float
    p_value: float
    num: int
    power: float | None = None
    detectable: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "statistic": self.statistic,
            "p_value": self.p_value,
            "power": self.power,
            "n": self.num,
            "detectable_tv": self.detectable,
            "note": self.note,
        }


@dataclass(frozen=True)
class Verdict:
    """Fields:
    kind: lossless, not lossless, or undecided.
    sentence: the line for people.
    tv_bound: what lossless means here: the total variation is at most this.
    confidence: with which; 1 where nothing was sampled.
    needed: how many more tokens would decide, where it is undecided.
    """

    kind: Kind
    sentence: str
    tv_bound: float | None = None
    confidence: float | None = None
    needed: int | None = None

    @staticmethod
    def exact(tv_bound: float, basis: str) -> Verdict:
        return Verdict("lossless", f"lossless within TV <= {tv_bound:.0e}, exactly ({basis})", tv_bound, 1.0)

    @staticmethod
    def lossless(tv_bound: float, confidence: float, basis: str) -> Verdict:
        line = f"lossless within TV <= {tv_bound:.2g} at confidence {_percent(confidence)} ({basis})"
        return Verdict("lossless", line, tv_bound, confidence)

    @staticmethod
    def broken(evidence: str, tv_bound: float | None = None) -> Verdict:
        return Verdict("not lossless", f"NOT lossless: {evidence}", tv_bound)

    @staticmethod
    def undecided(needed: int, why: str, tv_bound: float | None = None, confidence: float | None = None) -> Verdict:
        return Verdict("undecided", f"undecided: need {needed} more tokens ({why})", tv_bound, confidence, needed)

    def to_dict(self) -> dict[str, object]:
        return {
            "verdict": self.kind,
            "sentence": self.sentence,
            "tv_bound": self.tv_bound,
            "confidence": self.confidence,
            "needed_tokens": self.needed,
        }


def _percent(share: float) -> str:
    return f"{100 * share:.4f}".rstrip("0").rstrip(".") + " %"


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, so that rejecting those below alpha keeps the chance of any false alarm below alpha (Holm).

    Valid however the tests depend on each other.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
