"""Texts of another engine, read by our target: the same tests, and what they can and cannot say.

Another engine may differ from the reading target for reasons that have nothing to do with speculation: precision,
quantisation, a template. A baseline, the same engine with speculation off, separates them. If the baseline passes the
tests against the target, so must the arm in question; if it does not, only the two are compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..interfaces import Drafter, Target
from ..types import EMPTY_DRAFT, Draft
from .findings import Findings, compared, pooled
from .judgement import judged, rejected_by
from .model import arms_section, tests_section
from .reading import Reader, Reading
from .report import Report, Section
from .stats import martingale, pit
from .texts import Arm, Text
from .verdict import Evidence, Verdict

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Gaps:
    """Greedy texts: how far below the highest logit were the tokens?

    Fields:
        not_highest: tokens that are not the target's highest.
        largest: gap of the worst of them, in logits, and where it is.
    """

    name: str
    num_texts: int
    num_tokens: int
    not_highest: int
    largest: float
    where: str

    @staticmethod
    def of(name: str, texts: Sequence[Text], readings: Sequence[Reading]) -> Gaps:
        every = [
            (gap, text, index) for text, read in zip(texts, readings) for index, gap in enumerate(read.gaps) if gap > 0
        ]
        worst = max(every, key=lambda entry: entry[0], default=None)
        where = "" if worst is None else f"token {worst[2] + 1} of a continuation of prompt {worst[1].prompt + 1}"
        num_tokens = sum(len(read.gaps) for read in readings)
        return Gaps(name, len(texts), num_tokens, len(every), 0.0 if worst is None else worst[0], where)


@dataclass(frozen=True)
class ForeignAudit:
    """What was found of one arm.

    Fields:
        arm, baseline: as given.
        findings, control: of the sampled arm and the baseline; None where ids were not to be had.
        gaps: of greedy arms, the baseline's second; `rounding` is what two passes of the target disagree by.
        identical: texts of the arm that are the baseline's, greedy.
        evidence: the tests that count.
        notes: what was left out and why.
    """

    arm: Arm
    baseline: Arm | None
    alpha: float
    tv: float
    findings: Findings | None = None
    control: Findings | None = None
    gaps: Sequence[Gaps] = ()
    rounding: float = 0.0
    identical: int | None = None
    evidence: Sequence[Evidence] = ()
    notes: Sequence[str] = ()

    @property
    def verdict(self) -> Verdict:
        if self.gaps:
            return self._greedy_verdict()
        if self.findings is None:
            return self._blind_verdict()
        return judged(self.evidence, [self.findings], self.alpha, self.tv)

    def _greedy_verdict(self) -> Verdict:
        ours = self.gaps[0]
        allowed = max(2 * self.rounding, *(gaps.largest for gaps in self.gaps[1:]), 0.0)
        basis = f"{ours.num_texts} greedy texts, {ours.num_tokens} tokens"
        if ours.largest <= allowed:
            return Verdict(
                "lossless",
                f"lossless at temperature 0: {basis}, each the target's highest or within rounding of it "
                f"({ours.not_highest} not highest, gap at most {ours.largest:.2g} of {allowed:.2g})",
            )
        hint = "" if self.baseline else "; give a baseline without speculation to tell it from another precision"
        gap = f"{ours.largest:.3g} logits below the highest, rounding explains {allowed:.2g}"
        return Verdict.broken(f"{ours.where} is {gap} ({basis}){hint}")

    def _blind_verdict(self) -> Verdict:
        """Only the two-sample test: it can find a difference, never a bound."""
        if rejected_by(self.evidence, self.alpha):
            worst = min(self.evidence, key=lambda test: test.p_value)
            return Verdict.broken(f"{worst.name}: p = {worst.p_value:.2g}, n = {worst.num}")
        wanted = 0
        if self.evidence and self.evidence[0].detectable:
            wanted = round(self.arm.num_tokens * ((self.evidence[0].detectable / self.tv) ** 2 - 1))
        return Verdict.undecided(max(1, wanted), "no difference seen, but without token ids there is no bound")

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.verdict.to_dict(),
            "engine": self.arm.engine,
            "arm": self.arm.name,
            "baseline": None if self.baseline is None else self.baseline.name,
            "tokens": self.arm.num_tokens,
            "greedy": [vars(gaps) for gaps in self.gaps],
            "identical": self.identical,
            "tests": [test.to_dict() for test in self.evidence],
            "arms": [found.to_dict() for found in (self.findings, self.control) if found is not None],
            "notes": list(self.notes),
            "alpha": self.alpha,
        }

    def report(self) -> Report:
        sections = []
        if self.gaps:
            rows = [(g.name, g.num_texts, g.num_tokens, g.not_highest, g.largest, g.where) for g in self.gaps]
            columns = ("arm", "texts", "tokens", "not highest", "largest gap", "where")
            same = "" if self.identical is None else f" {self.identical} texts are the baseline's, token for token."
            text = f"Two passes of the target disagree by up to {self.rounding:.2g} logits on these texts.{same}"
            sections.append(Section("Greedy texts", text, columns, rows))
        if self.evidence:
            sections.append(tests_section(self.evidence, self.alpha))
        known = [found for found in (self.findings, self.control) if found is not None]
        if known:
            sections.append(arms_section(known))
        facts = {
            "engine": self.arm.engine,
            "arm": self.arm.name,
            "baseline": self.baseline.name if self.baseline else "none",
            "tokens": self.arm.num_tokens,
            **self.arm.notes,
        }
        return Report(f"{self.arm.engine}: {self.arm.name}", self.verdict, facts, sections, [*self.notes, *LIMITS])


LIMITS = (
    "The reading target stands for the model the engine claims to run: other weights, precision or quantisation count "
    "as differences unless a baseline shares them.",
    "An engine is judged on the texts given; other prompts, settings or batch sizes may behave differently.",
)


def audit(
    target: Target,
    arm: Arm,
    baseline: Arm | None = None,
    drafter: Drafter | None = None,
    *,
    with_ids: bool = True,
    alpha: float = 1e-3,
    tv: float = 0.015,
    seed: int = 0,
    batch: int = 8,
    progress: Progress = lambda done, total, text: None,
) -> ForeignAudit:
    """Audit the texts of an engine.

    Args:
        target: reads them; idle.
        arm, baseline: with speculation, and without.
        drafter: whose laws direct the tests, if it is known which one the engine uses.
        with_ids: False where the ids are only our tokenization of a text: what was generated may have been cut
            differently, so neither the target's laws nor greedy gaps apply.
    """
    arms = [one for one in (arm, baseline) if one is not None]
    if not with_ids:
        evidence = [] if baseline is None else [compared(arm.name, arm, baseline, alpha, seed)]
        note = "The server gave no token ids: only whole texts could be compared, which needs far more of them."
        return ForeignAudit(arm, baseline, alpha, tv, evidence=evidence, notes=[note])
    readings = []
    for one in arms:
        reader = Reader(target, one.params, drafter, seed + 1, batch)
        readings.append(reader.read(one.texts, lambda d, t, one=one: progress(d, t, f"reading {one.name}")))  # type: ignore[misc]
    if arm.params.greedy:
        gaps = [Gaps.of(one.name, one.texts, read) for one, read in zip(arms, readings)]
        same = None if baseline is None else _identical(arm, baseline)
        return ForeignAudit(arm, baseline, alpha, tv, gaps=gaps, rounding=rounding(target, arm.texts), identical=same)
    return _sampled(arm, baseline, readings, alpha, tv, seed)


def _sampled(
    arm: Arm, baseline: Arm | None, readings: list[list[Reading]], alpha: float, tv: float, seed: int
) -> ForeignAudit:
    findings = pooled(arm.name, readings[0])
    if baseline is None:
        note = "Without a baseline a difference may also be one of precision, quantisation or template."
        tests = findings.evidence(alpha / 3)
        return ForeignAudit(arm, None, alpha, tv, findings, evidence=tests, notes=[note])
    control = pooled(baseline.name, readings[1])
    each = alpha / 5
    difference = replace(
        findings,
        drift=martingale.relative(findings.drift, control.drift),
        serial=pit.relative(findings.serial, control.serial),
    )
    against, uniform, serial = findings.evidence(each)
    drift, _, neighbours = difference.evidence(each)
    between = replace(drift, name=f"{arm.name}: drift beyond the baseline's")
    two = compared(arm.name, arm, baseline, each, seed)
    if rejected_by(control.evidence(alpha), alpha):
        note = (
            "The baseline itself differs from the reading target (precision, quantisation or template): the verdict "
            "rests on the comparison of the two arms alone."
        )
        tests = [between, replace(neighbours, name=f"{arm.name}: neighbours as in the baseline"), two]
        return ForeignAudit(arm, baseline, alpha, tv, difference, control, evidence=tests, notes=[note])
    tests = [against, uniform, serial, between, two]
    return ForeignAudit(arm, baseline, alpha, tv, findings, control, evidence=tests)


def _identical(arm: Arm, baseline: Arm) -> int:
    plain = baseline.by_prompt()
    return sum(
        one == other for prompt, texts in arm.by_prompt().items() for one, other in zip(texts, plain.get(prompt, []))
    )


def rounding(target: Target, texts: Sequence[Text], num_texts: int = 8) -> float:
    """The largest disagreement between a pass over one token and a pass over nine, in logits, after some prompts."""
    worst = 0.0
    for text in list(texts)[:num_texts]:
        row = target.open(text.prompt_ids[:-1])
        try:
            target.prefill(row, text.prompt_ids[:-1])
            root = text.prompt_ids[-1]
            alone = target.score([row], [root], [EMPTY_DRAFT])[0].logits[0].double()
            together = target.score([row], [root], [Draft.chain(text.token_ids[:8])])[0].logits[0].double()
        finally:
            target.free(row)
        worst = max(worst, float((alone - together).abs().max()))
    return worst
