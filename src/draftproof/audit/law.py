"""`audit law`: the exact law of the production code, the mutation score, and a drafter of one's own, in one result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..api import VERIFIERS
from . import combinations, mutants, own, rules
from .mutants import EXACT, Score
from .own import OwnAudit
from .report import Report, Section
from .rules import Coverage, Progress, RuleCoverage, silent
from .verdict import Verdict


@dataclass(frozen=True)
class LawAudit:
    """What enumeration found; nothing in it is sampled."""

    rules: list[RuleCoverage]
    engine: list[Coverage]
    scores: list[Score]
    own: OwnAudit | None
    seconds: float

    @property
    def tables(self) -> list[Coverage]:
        return [*self.rules, *self.engine]

    @property
    def num_cases(self) -> int:
        return sum(row.num_cases for row in self.tables)

    @property
    def verdict(self) -> Verdict:
        if self.own is not None and not self.own.is_exact:
            return Verdict.broken(f"drafter {self.own.spec}: {self.own.faults[0]}", self.own.max_tv)
        worst = max(self.tables, key=lambda row: row.max_tv)
        if not worst.max_tv < EXACT:
            return Verdict.broken(f"{worst.name}: off by a total variation of {worst.max_tv:.2g}", worst.max_tv)
        missed = [score.name for score in self.scores if not score.caught]
        if missed:
            return Verdict.broken(f"the audit is blind to {len(missed)} mutants, the first of them {missed[0]!r}")
        killed = f"{len(self.scores)} of {len(self.scores)} mutants caught"
        if self.own is None:
            return Verdict.exact(EXACT, f"{self.num_cases} laws enumerated, {killed}")
        return Verdict.exact(
            self.own.tolerance, f"drafter {self.own.spec}: {self.own.num_drafts} drafts walked through; {killed}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.verdict.to_dict(),
            "rules": [row.to_dict() for row in self.rules],
            "engine": [{"name": row.name, "max_tv": row.max_tv, "cases": row.num_cases} for row in self.engine],
            "mutants": [score.to_dict() for score in self.scores],
            "drafter": None if self.own is None else self.own.to_dict(),
            "seconds": self.seconds,
        }

    def report(self) -> Report:
        sections = [] if self.own is None else [_own_section(self.own)]
        sections += [
            Section(
                "Verifiers and ways of drawing",
                "Total variation between what a round emits (continued by the target) and the target's own law, summed "
                "over every outcome of every draw; the largest over the cases. Rounding alone gives some 1e-16.",
                ("verifier", "drawn", "laws", "max TV"),
                [(row.verifier, row.drawn, row.num_cases, row.max_tv) for row in self.rules],
                2,
            ),
            Section(
                "The whole engine",
                "The same for texts that the engine generates, against plain decoding through the same processors.",
                ("combinations", "laws", "max TV"),
                [(row.name, row.num_cases, row.max_tv) for row in self.engine],
            ),
            Section(
                "Mutation score",
                "Rules, drafters and engines broken on purpose. Each differs from a sound one in the part it names, "
                "and is caught if the law is off with the part broken and exact without.",
                ("mutant", "caught", "TV"),
                [(score.name, score.caught, score.broken_tv) for score in self.scores],
            ),
        ]
        facts = {"laws enumerated": self.num_cases, "mutants": len(self.scores), "seconds": round(self.seconds, 1)}
        limits = (
            "Enumeration covers vocabularies of 2 to 4 tokens and drafts of up to 6 nodes: the rules do not depend on "
            "the size, but the random streams, kernels and caches of long runs are for audit sample and audit model.",
            "float64 laws: rounding in lower precision is for audit model.",
        )
        return Report("Exact law by enumeration", self.verdict, facts, sections, limits)


def audit(
    verifiers: Sequence[str] = tuple(VERIFIERS),
    drafter: str | None = None,
    vocab_size: int = 3,
    max_draft: int = 2,
    progress: Progress = silent,
) -> LawAudit:
    """Enumerate everything.

    Args:
        verifiers: names out of `api.VERIFIERS`.
        drafter: a drafter of one's own, `package.module:Class`, or any by name that needs no model.
        vocab_size, max_draft: for that drafter; the rest has its own sizes.

    Raises:
        OptionError: nothing of that name, or it cannot be made.
    """
    started = time.perf_counter()
    made = None
    if drafter is not None:
        own.build(drafter, vocab_size)  # a bad name fails before the work
        made = own.audit(
            drafter, lambda size: own.build(drafter, size), list(verifiers), vocab_size, max_draft, progress
        )
    table = rules.coverage(verifiers, progress)
    return LawAudit(
        table, combinations.coverage(progress), mutants.score(progress), made, time.perf_counter() - started
    )


def _own_section(audit: OwnAudit) -> Section:
    said = " ".join(audit.faults) if audit.faults else "Every draft it can propose was walked through; the law is kept."
    return Section(
        f"Drafter {audit.spec}",
        said,
        ("verifier", "setting", "laws", "max TV"),
        [(row.verifier, row.setting, row.num_cases, row.max_tv) for row in audit.rows],
        2,
    )
