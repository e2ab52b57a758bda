"""`audit sample`: the whole engine by drawing, on targets whose law is known: random streams, batches, kernels.

Enumeration proves the rules; this tests what enumeration cannot reach: that the random numbers are good and used once,
that rows of a batch do not disturb each other, that the kernels' passes are those of the model. Sample sizes follow
from the smallest total variation that is to be found and the false-alarm rate.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..api import VERIFIERS
from ..engine import Engine
from ..interfaces import Drafter, RandomSource, Target, Verifier
from ..sampling import SeededSource
from ..testing import LawDrafter, RandomTable, TableTarget
from ..types import Draft, Probs, SamplingParams, Verification
from ..verify.law import Prefix, extended
from .exact import PROMPT
from .report import Report, Section
from .rules import DRAWN, Progress, silent
from .stats import gtest, pit, power
from .tiny import TinyPair
from .verdict import Evidence, Verdict, holm

V, LENGTH = 4, 3
"""Vocabulary and length of the texts: 64 cells, so that errors of later tokens show too."""
BATCH = 64
P, Q = RandomTable(V, 1), RandomTable(V, 2)
STREAMS = ("draft", "accept", "residual", "bonus")
MakeSource = Callable[[int, int], RandomSource]


@dataclass(frozen=True)
class Plan:
    """Fields:
    tv: the smallest total variation, of texts of three tokens, that is to be found.
    alpha: false-alarm rate of the whole report.
    seed: of the first text; each text has a seed of its own.
    """

    tv: float = 0.05
    alpha: float = 1e-3
    seed: int = 0

    @property
    def alpha_of_each(self) -> float:
        """With room for all tests, by Bonferroni."""
        return self.alpha / 40

    @property
    def num_texts(self) -> int:
        return power.draws_needed(self.tv, V**LENGTH, self.alpha_of_each)


@dataclass(frozen=True)
class TextLaw:
    """Counted texts of one engine against the law they ought to have.

    Fields:
        certified: with the report's confidence, the system is within this total variation of that law.
    """

    name: str
    test: gtest.GTest
    num_cells: int
    certified: float


@dataclass(frozen=True)
class SampleAudit:
    """What drawing found."""

    plan: Plan
    laws: list[TextLaw]
    evidence: list[Evidence]
    unrepeatable: list[str]

    @property
    def verdict(self) -> Verdict:
        if self.unrepeatable:
            return Verdict.broken(self.unrepeatable[0])
        adjusted = holm([test.p_value for test in self.evidence])
        p, worst = min(zip(adjusted, self.evidence), key=lambda pair: pair[0])
        if p < self.plan.alpha:
            said = f"statistic {worst.statistic:.3g}, p = {p:.2g} after Holm, n = {worst.num}"
            return Verdict.broken(f"{worst.name}: {said}")
        bound = max(law.certified for law in self.laws)
        drawn = sum(law.test.num for law in self.laws)
        basis = f"against every alternative; {drawn} texts of {LENGTH} tokens, {len(self.evidence)} tests"
        return Verdict.lossless(bound, 1 - self.plan.alpha, basis)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.verdict.to_dict(),
            "detectable_tv": self.plan.tv,
            "alpha": self.plan.alpha,
            "tests": [test.to_dict() for test in self.evidence],
            "laws": [
                {"name": law.name, "tv": law.test.tv, "certified_tv": law.certified, "texts": law.test.num}
                for law in self.laws
            ],
            "unrepeatable": self.unrepeatable,
            "seed": self.plan.seed,
        }

    def report(self) -> Report:
        from .model import tests_section

        laws = Section(
            "Texts against their law",
            f"Texts of {LENGTH} tokens through the whole engine, {BATCH} at a time. The certificate holds against "
            f"every alternative, with confidence {1 - self.plan.alpha:g} for all of them together.",
            ("engine", "texts", "cells", "TV found", "TV certified"),
            [(law.name, law.test.num, law.num_cells, law.test.tv, law.certified) for law in self.laws],
        )
        facts = {"smallest TV to be found": self.plan.tv, "false-alarm rate": self.plan.alpha, "seed": self.plan.seed}
        limits = ("Tiny models: rounding and caches of large ones are for audit model.",)
        sections = [laws, tests_section(self.evidence, self.plan.alpha)]
        return Report("The engine by drawing", self.verdict, facts, sections, limits)


def audit(plan: Plan, make_source: MakeSource = SeededSource, progress: Progress = silent) -> SampleAudit:
    """Draw everything.

    Args:
        make_source: seed and index to a source of chance; the engine's own unless the audit itself is on trial.
    """
    systems = list(_systems())
    laws, evidence, unrepeatable = [], [], []
    for done, system in enumerate(systems):
        progress(done, len(systems) + 2, system.name)
        counted = _counted(system, plan, make_source, plan.seed + done * plan.num_texts)
        laws.append(counted)
        power_of = power.table_power(counted.test.num, counted.num_cells, plan.tv, plan.alpha_of_each)
        evidence.append(
            Evidence(f"{system.name}: texts", counted.test.g, counted.test.p_value, counted.test.num, power_of, plan.tv)
        )
        unrepeatable += _unrepeatable(system, make_source)
    progress(len(systems), len(systems) + 2, "one round, draw by draw")
    evidence.append(_joint_law(plan, make_source))
    progress(len(systems) + 1, len(systems) + 2, "random streams")
    evidence += _streams(plan, make_source)
    return SampleAudit(plan, laws, evidence, unrepeatable)


@dataclass(frozen=True)
class _System:
    """A target, a drafter and a verifier, and the law of texts of three tokens."""

    name: str
    target: Callable[[], Target]
    drafter: Callable[[], Drafter]
    verify: Verifier
    law: dict[Prefix, float]
    batch: int = BATCH

    def engine(self, make_source: MakeSource, batch: int | None = None) -> Engine:
        size = batch or self.batch
        return Engine(self.target(), self.drafter(), self.verify, max_draft=2, max_batch=size, make_source=make_source)


def _systems() -> Iterator[_System]:
    law = extended({(): 1.0}, P, LENGTH, PROMPT)
    parents = {"block": (-1, 0), "token": (-1, 0), "traversal": (-1, -1), "auto": (-1, 0)}
    for name, drawn in itertools.product(VERIFIERS, DRAWN):
        shape = parents[name]
        yield _System(
            f"{name}, {drawn}",
            lambda: TableTarget(P),
            lambda drawn=drawn, shape=shape: LawDrafter(Q, drawn=drawn, parents=shape),  # type: ignore[misc]
            VERIFIERS[name],
            law,
        )
    pair = TinyPair(V)
    yield _System("tiny Llamas through their caches", pair.target, pair.drafter, VERIFIERS["auto"], pair.law(LENGTH), 8)


def _counted(system: _System, plan: Plan, make_source: MakeSource, first_seed: int) -> TextLaw:
    engine = system.engine(make_source)
    counts: Counter[Prefix] = Counter()
    for start in range(0, plan.num_texts, 4096):
        size = min(4096, plan.num_texts - start)
        params = [SamplingParams(max_new_tokens=LENGTH, seed=first_seed + start + i) for i in range(size)]
        counts.update(tuple(r.token_ids) for r in engine.generate([list(PROMPT)] * size, params))
    cells = list(system.law)
    observed = [counts[text] for text in cells]
    impossible = sum(counts.values()) - sum(observed)
    test = gtest.g_test([*observed, impossible], [*system.law.values(), 0.0])
    each = 1 - plan.alpha / (len(VERIFIERS) * len(DRAWN) + 1)
    return TextLaw(system.name, test, len(cells), gtest.certificate(test.tv, test.num, len(cells), each))


def _unrepeatable(system: _System, make_source: MakeSource) -> list[str]:
    """Whether a seed's text depends on what shares the batch: alone, among three, among eight, in another order."""
    seeds = range(12)
    params = [SamplingParams(max_new_tokens=12, seed=seed) for seed in seeds]
    alone = [system.engine(make_source, 1).generate([list(PROMPT)], one)[0].token_ids for one in params]
    found = []
    for batch in (3, 8):
        together = system.engine(make_source, batch).generate([list(PROMPT)] * len(params), params[::-1])
        if [result.token_ids for result in together][::-1] != alone:
            found.append(f"{system.name}: the text of a seed changes when {batch} run together in another order")
    return found


def _joint_law(plan: Plan, make_source: MakeSource) -> Evidence:
    """One drafted token: the joint law of the token drawn, whether it was accepted, and what replaced or followed it.

    Noise used twice leaves each of these right by itself and shows in their joint law alone.
    """
    target, drafted = (np.array(law(PROMPT).tolist()) for law in (P, Q))
    accept = np.minimum(1, target / drafted)
    left = np.maximum(target - drafted, 0)
    expected = {}
    for x in range(V):
        after = P((*PROMPT, x)).tolist()
        for y in range(V):
            expected[x, 1, y] = drafted[x] * accept[x] * after[y]
            expected[x, 0, y] = drafted[x] * (1 - accept[x]) * left[y] / left.sum()
    seen: Counter[tuple[int, int, int]] = Counter()

    def watch(draft: Draft, p: Probs, source: RandomSource) -> Verification:
        made = VERIFIERS["token"](draft, p, source)
        if draft.num_nodes:
            seen[draft.tokens[0], len(made.path), made.next_token] += 1
        return made

    num = power.draws_needed(plan.tv, 2 * V**2, plan.alpha_of_each)
    engine = Engine(TableTarget(P), LawDrafter(Q, 1), watch, max_draft=1, max_batch=BATCH, make_source=make_source)
    for start in range(0, num, 4096):
        size = min(4096, num - start)
        params = [SamplingParams(max_new_tokens=2, seed=plan.seed + (1 << 32) + start + i) for i in range(size)]
        engine.generate([list(PROMPT)] * size, params)
    cells = [cell for cell, chance in expected.items() if chance > 1e-12]
    test = gtest.g_test(
        [*(seen[cell] for cell in cells), sum(seen.values()) - sum(seen[cell] for cell in cells)],
        [*(expected[cell] for cell in cells), 0.0],
    )
    power_of = power.table_power(num, len(cells), plan.tv, plan.alpha_of_each)
    return Evidence("joint law of draft, acceptance and next token", test.g, test.p_value, num, power_of, plan.tv)


def _streams(plan: Plan, make_source: MakeSource) -> list[Evidence]:
    """Uniforms of every stream, seed by seed: level, and uncorrelated between streams, neighbours and next seeds."""
    num_seeds, num = 200, 50
    even = torch.ones(1 << 10, dtype=torch.float64)
    drawn = np.empty((len(STREAMS), num_seeds, num))
    for seed in range(num_seeds):
        source = make_source(plan.seed + seed, 0)
        for i in range(num):
            for number, stream in enumerate(STREAMS):
                drawn[number, seed, i] = (source.categorical(even, stream) + 0.5) / len(even)
    found = []
    for number, stream in enumerate(STREAMS):
        level = pit.uniformity(drawn[number].ravel())
        found.append(Evidence(f"stream {stream}: uniform", level.distance, level.p_value, level.num))
        serial = pit.serial_correlation(list(drawn[number]))
        found.append(Evidence(f"stream {stream}: neighbours independent", serial.z, serial.p_value, serial.num))
        found.append(_uncorrelated(f"stream {stream}: seeds next to each other", drawn[number][:-1], drawn[number][1:]))
    for one, other in itertools.combinations(range(len(STREAMS)), 2):
        name = f"streams {STREAMS[one]} and {STREAMS[other]}"
        found.append(_uncorrelated(name, drawn[one], drawn[other]))
    return found


def _uncorrelated(name: str, one: Any, other: Any) -> Evidence:
    """Pairs of uniforms; their products have mean 0 and variance 1/144 if they are independent."""
    from scipy import stats

    products = ((one - 0.5) * (other - 0.5)).ravel()
    z = 12 * float(products.sum()) / math.sqrt(len(products))
    return Evidence(name, z, float(2 * stats.norm.sf(abs(z))), len(products))
