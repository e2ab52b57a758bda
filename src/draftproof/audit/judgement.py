"""From tests to one verdict: rejection, bound, and what is still missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

from .findings import Findings
from .stats.martingale import FEW
from .verdict import Evidence, Verdict, holm


def judged(
    evidence: Sequence[Evidence],
    drafted: Sequence[Findings],
    alpha: float,
    tv: float,
    control: Sequence[Findings] = (),
) -> Verdict:
    """The verdict on sampled arms.

    Args:
        evidence: every test of the arms in question; adjusted together.
        drafted: those arms' findings, for the bound.
        alpha: false-alarm rate of the whole; 1 - alpha is the bound's confidence.
        tv: the bound that lossless must reach.
        control: arms without speculation; if the same tests reject those, nothing can be said of speculation.
    """
    adjusted = holm([test.p_value for test in evidence])
    rejected = [(p, test) for p, test in zip(adjusted, evidence) if p < alpha]
    broken = _rejected_control(control, alpha)
    if rejected and broken:
        return Verdict.undecided(
            sum(found.num_tokens for found in drafted),
            f"plain decoding fails the same tests ({broken}): compare like with like, at one precision",
        )
    if rejected:
        p, worst = min(rejected, key=lambda pair: pair[0])
        line = f"{worst.name}: statistic {worst.statistic:.3g}, p = {p:.2g} after Holm, n = {worst.num}"
        return Verdict.broken(line + (f" ({worst.note})" if worst.note else ""))
    confidence = 1 - alpha
    each = 1 - alpha / len(drafted)
    bound = max(found.drift.bound(each) for found in drafted)
    tokens = sum(found.num_tokens for found in drafted)
    if bound <= tv:
        towards = "towards the draft" if all(found.mean_tv for found in drafted) else "towards the likeliest tokens"
        return Verdict.lossless(bound, confidence, f"per token, {towards}; {tokens} tokens, {len(evidence)} tests")
    missing = sum(_missing(found, each, tv) for found in drafted)
    return Verdict.undecided(missing, f"so far TV <= {bound:.2g}, wanted {tv:g}", bound, confidence)


def _rejected_control(control: Sequence[Findings], alpha: float) -> str | None:
    rejected = rejected_by([test for found in control for test in found.evidence(alpha)], alpha)
    return rejected[0].name if rejected else None


def rejected_by(evidence: Sequence[Evidence], alpha: float) -> list[Evidence]:
    """The tests that reject together at level alpha."""
    return [test for p, test in zip(holm([test.p_value for test in evidence]), evidence) if p < alpha]


def _missing(found: Findings, confidence: float, tv: float) -> int:
    """Tokens to add until the bound is expected to be reached, were there no drift."""
    z = float(stats.norm.isf((1 - confidence) / 2))
    variance = max(found.drift.mean_variance, FEW / max(1, found.num_tokens))
    margin = 0.25 * tv  # the drift seen in a sound system is about as large as a fraction of the bound
    needed = math.ceil(z**2 * variance / (tv - margin) ** 2)
    return max(0, needed - found.num_tokens) or (found.num_tokens if found.drift.bound(confidence) > tv else 0)
