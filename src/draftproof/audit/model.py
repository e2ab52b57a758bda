"""`audit model`: a real target and drafter through the whole engine, against plain decoding of the same target.

Greedy: the texts must be the same, token for token; where they differ, the logit margin says whether rounding explains
it, and plain decoding at another batch size (the control arm) whether speculation is needed for that at all. Sampled:
both arms are read by the target; the drafted one must pass every test, and the plain one, which does no speculation,
shows that the tests themselves are in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine import Engine
from ..params import SamplingParams
from .findings import TESTS_OF_ARM, Findings, compared, pooled
from .greedy import Difference, first_difference
from .judgement import judged
from .reading import Reader
from .report import Report, Section
from .texts import Arm, Text
from .verdict import Evidence, Verdict, holm

Progress = Callable[[int, int, str], None]
Keep = Callable[[Arm], None]

SETTINGS = {
    "T = 0.7, top-p 0.9": SamplingParams(temperature=0.7, top_p=0.9),
    "T = 1": SamplingParams(),
}


@dataclass(frozen=True)
class Plan:
    """Fields:
    tokens: at least so many of each sampled arm.
    max_new_tokens: of each text.
    settings: name to the parameters of the sampled arms.
    greedy: whether to compare greedy texts too.
    alpha: false-alarm rate of the whole report.
    tv: what lossless is to mean: the bound that must be reached.
    seed: of texts and of the auditor's noise.
    """

    tokens: int = 30_000
    max_new_tokens: int = 128
    settings: dict[str, SamplingParams] = field(default_factory=lambda: dict(SETTINGS))
    greedy: bool = True
    alpha: float = 1e-3
    tv: float = 0.015
    seed: int = 0

    @property
    def alpha_of_each(self) -> float:
        """For powers: the level of the first step of Holm's procedure."""
        return self.alpha / max(1, TESTS_OF_ARM * len(self.settings))


@dataclass(frozen=True)
class GreedyResult:
    """Fields:
    texts: how many were compared.
    tokens: of the plain ones.
    differences: of the drafted texts from the plain ones, by prompt.
    control: texts that differ between plain decoding one by one and in batches.
    """

    texts: int
    tokens: int
    differences: dict[int, Difference]
    control: int

    @property
    def faults(self) -> dict[int, Difference]:
        return {prompt: found for prompt, found in self.differences.items() if not found.is_tie}

    def to_dict(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "differing": len(self.differences),
            "ties": len(self.differences) - len(self.faults),
            "control_differing": self.control,
            "differences": [{"prompt": prompt, "note": str(found)} for prompt, found in self.differences.items()],
        }


@dataclass(frozen=True)
class ModelAudit:
    """Everything measured on one pair.

    Fields:
        config: what was loaded.
        drafted, control: findings of the arms with the drafter and without, by setting.
        evidence: the tests of the drafted arms.
    """

    config: dict[str, Any]
    plan: Plan
    greedy: GreedyResult | None
    drafted: list[Findings]
    control: list[Findings]
    evidence: list[Evidence]

    @property
    def verdict(self) -> Verdict:
        if self.greedy is not None and self.greedy.faults:
            prompt, found = next(iter(self.greedy.faults.items()))
            return Verdict.broken(f"greedy text of prompt {prompt + 1} differs from plain decoding: {found}")
        if not self.drafted:
            return Verdict.undecided(self.plan.tokens, "greedy texts agree, and nothing was sampled")
        return judged(self.evidence, self.drafted, self.plan.alpha, self.plan.tv, self.control)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.verdict.to_dict(),
            "tokens": sum(found.num_tokens for found in self.drafted),
            "greedy": None if self.greedy is None else self.greedy.to_dict(),
            "tests": [test.to_dict() for test in self.evidence],
            "arms": [found.to_dict() for found in self.drafted],
            "control": [found.to_dict() for found in self.control],
            "config": self.config,
            "alpha": self.plan.alpha,
            "seed": self.plan.seed,
        }

    def report(self) -> Report:
        sections = [] if self.greedy is None else [_greedy_section(self.greedy)]
        if self.evidence:
            sections += [tests_section(self.evidence, self.plan.alpha), arms_section([*self.drafted, *self.control])]
        title = f"{self.config.get('target')} with drafter {self.config.get('drafter')}"
        return Report(title, self.verdict, self.config, sections, LIMITS)


LIMITS = (
    "A leak of draft tokens is what the drift test sees best and what the bound speaks of. Other errors are seen by "
    "the transforms and the two-sample test, with less power and without a bound.",
    "p is read from the same target through the same kernels: an error that both share, such as wrong weights, is not "
    "seen here. Compare with another implementation by audit texts.",
    "The tests' level holds for the prompts used; a fault that other prompts or settings trigger needs those.",
)


def audit(
    plain: Engine,
    drafted: Engine,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    progress: Progress = lambda done, total, text: None,
    keep: Keep = lambda arm: None,
) -> ModelAudit:
    """Run all arms.

    Args:
        plain, drafted: over one target, without and with the drafter.
        prompts: as ids.
        keep: called with each arm as soon as it is finished.
    """
    greedy = _greedy(plain, drafted, prompts, plan, progress, keep) if plan.greedy else None
    with_draft, without, evidence = [], [], []
    for number, (name, params) in enumerate(plan.settings.items()):
        arms = []
        for engine, label, offset in ((drafted, "drafted", 0), (plain, "plain", 1 << 40)):
            arm = sample(engine, f"{name}, {label}", prompts, params, plan, offset + (number << 42), progress)
            keep(arm)
            arms.append(arm)
        readings = []
        for arm in arms:
            reader = Reader(plain.target, params, drafted.drafter, plan.seed + 1, plain.max_batch)
            read = reader.read(arm.texts, lambda done, total, arm=arm: progress(done, total, f"reading {arm.name}"))  # type: ignore[misc]
            readings.append(pooled(arm.name, read))
        with_draft.append(readings[0])
        without.append(readings[1])
        alpha = plan.alpha_of_each
        evidence += [*readings[0].evidence(alpha), compared(name, arms[0], arms[1], alpha, plan.seed)]
    return ModelAudit(dict(drafted.config), plan, greedy, with_draft, without, evidence)


def sample(
    engine: Engine,
    name: str,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    plan: Plan,
    first_seed: int,
    progress: Progress,
) -> Arm:
    """Texts of all prompts in turn, until there are enough tokens; each has a seed of its own."""
    texts: list[Text] = []
    num_tokens = num_rounds = num_accepted = 0
    seed = plan.seed + first_seed
    while num_tokens < plan.tokens or len(texts) < 2 * len(prompts):
        for start in range(0, len(prompts), engine.max_batch):
            group = prompts[start : start + engine.max_batch]
            given = [
                replace(params, max_new_tokens=plan.max_new_tokens, seed=seed + len(texts) + i)
                for i in range(len(group))
            ]
            for i, result in enumerate(engine.generate([list(prompt) for prompt in group], given)):
                texts.append(Text(start + i, tuple(group[i]), tuple(result.token_ids)))
                num_tokens += result.stats.num_tokens
                num_rounds += result.stats.num_rounds
                num_accepted += result.stats.num_accepted
            progress(min(num_tokens, plan.tokens), plan.tokens, f"tokens of {name}")
    notes = {"acceptance_length": num_tokens / max(1, num_rounds), "accepted": num_accepted}
    return Arm("draftproof", name, params, texts, notes)


def _greedy(
    plain: Engine,
    drafted: Engine,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    progress: Progress,
    keep: Keep,
) -> GreedyResult:
    params = SamplingParams(temperature=0, max_new_tokens=plan.max_new_tokens)
    runs = {}
    for name, engine, batch in (
        ("greedy, plain", plain, plain.max_batch),
        ("greedy, drafted", drafted, drafted.max_batch),
        ("greedy, plain one by one", plain, 1),
    ):
        texts = []
        for start in range(0, len(prompts), batch):
            progress(start, len(prompts), f"prompts of {name}")
            group = prompts[start : start + batch]
            results = engine.generate([list(prompt) for prompt in group], params)
            texts += [Text(start + i, tuple(group[i]), tuple(r.token_ids)) for i, r in enumerate(results)]
        runs[name] = texts
        keep(Arm("draftproof", name, params, texts))
    base, other, alone = runs.values()
    found = {
        one.prompt: first_difference(plain.target, one.prompt_ids, one.token_ids, two.token_ids)
        for one, two in zip(base, other)
    }
    return GreedyResult(
        len(base),
        sum(len(text.token_ids) for text in base),
        {prompt: difference for prompt, difference in found.items() if difference is not None},
        sum(one.token_ids != two.token_ids for one, two in zip(base, alone)),
    )


def _greedy_section(greedy: GreedyResult) -> Section:
    rows = [(f"prompt {prompt + 1}", str(found)) for prompt, found in greedy.differences.items()]
    text = (
        f"{greedy.texts} texts, {greedy.tokens} tokens: {len(greedy.differences)} differ from plain decoding, "
        f"{len(greedy.faults)} of them by more than rounding. Control: {greedy.control} differ between plain decoding "
        "one by one and in batches, without any speculation."
    )
    counts = [
        ("texts compared", greedy.texts),
        ("differing", len(greedy.differences)),
        ("beyond rounding", len(greedy.faults)),
        ("control: plain alone and in batches", greedy.control),
    ]
    return Section("Greedy identity", text, ("", "texts"), [*counts, *rows])


def tests_section(evidence: Sequence[Evidence], alpha: float) -> Section:
    """Every test with its power, adjusted for their number."""
    adjusted = holm([test.p_value for test in evidence])
    rows = [
        (test.name, test.statistic, test.p_value, p, test.num, test.power, test.detectable, test.note)
        for test, p in zip(evidence, adjusted)
    ]
    columns = ("test", "statistic", "p", "p (Holm)", "n", "power", "detectable TV", "note")
    text = (
        f"Rejected is what has an adjusted p below {alpha:g}, the false-alarm rate of the whole report. Power: the "
        "chance to have seen one token in twenty taken from the draft unverified. Detectable: found with 99 %."
    )
    return Section("Sampled text", text, columns, rows)


def arms_section(findings: Sequence[Findings]) -> Section:
    """The arms themselves, the control included."""
    rows = [
        (f.name, f.num_texts, f.num_tokens, f.drift.per_token, f.drift.p_value, f.uniformity.p_value, f.serial.p_value,
         f.mean_tv, f.drafted, f.impossible)
        for f in findings
    ]  # fmt: skip
    columns = ("arm", "texts", "tokens", "drift", "p drift", "p uniform", "p serial", "TV(p, q)", "drafted", "excluded")
    text = "The plain arms do no speculation: they must pass the same tests, or the tests are not in order here."
    return Section("Arms", text, columns, rows, 1, [f.histogram() for f in findings])
