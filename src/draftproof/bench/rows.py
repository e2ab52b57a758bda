"""A row of a benchmark: one task at one batch size with one way of drafting, from timed runs of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..types import GenerationResult, GenerationStats
from .intervals import Interval, cluster_interval

CONTRACT = (
    *("task", "batch", "drafter", "max_draft", "tok_s", "speedup"),
    *("acceptance_length", "acceptance_rate", "accepted_at", "identical", "ttft_ms", "tpot_ms"),
)
FURTHER = ("draft", "temperature", "goodput", "marginal", "conditional", "intervals")


@dataclass(frozen=True)
class Goals:
    """What a user finds fast enough, in ms: to the first token, and for each further one; None is any time."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        return ttft_ms <= (self.ttft_ms or float("inf")) and tpot_ms <= (self.tpot_ms or float("inf"))


@dataclass
class Row:
    """One task at one batch size with one drafter.

    Fields:
        max_draft: most tokens drafted per round; 0 for none.
        tok_s: new tokens over wall time less the prompts' own passes; median over repeats.
        speedup: `tok_s` over that of none; median of the repeats' ratios.
        acceptance_length, acceptance_rate, accepted_at: over all prompts of the task, of the first repeat.
        identical: the greedy token ids are those of none in every repeat; None if tokens are drawn.
        ttft_ms: from queueing to the first token; median over prompts and repeats.
        tpot_ms: decoding time per new token; likewise.
        difference: the first differing prompt, where its texts part, and whether rounding explains it.
        num_rounds, num_drafted, draft_ms: of the first repeat: rounds, drafted tokens, ms for a token of a draft.
        draft: how drafts are made: "adaptive", a number of tokens, or a shape of trees; empty where it is not told.
        temperature: of the target's law; 0 is greedy.
        goodput: as `tok_s`, counting only prompts that were fast enough (`Goals`).
        marginal: P(accepted at i), of all rounds. conditional: given accepted at i - 1.
        intervals: 95 % of tok_s, speedup and acceptance_length, prompts drawn again; left out with one prompt.
    """

    task: str
    batch: int
    drafter: str
    max_draft: int
    tok_s: float
    speedup: float
    acceptance_length: float
    acceptance_rate: float
    accepted_at: list[int]
    identical: bool | None
    ttft_ms: float
    tpot_ms: float
    difference: dict[str, Any] | None = None
    num_rounds: int = 0
    num_drafted: int = 0
    draft_ms: float = 0.0
    draft: str = ""
    temperature: float = 0.0
    goodput: float = 0.0
    drafted_at: list[int] = field(default_factory=list)
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def marginal(self) -> list[float]:
        return [count / self.num_rounds for count in self.accepted_at] if self.num_rounds else []

    @property
    def conditional(self) -> list[float]:
        """Of the first position the same as marginal."""
        before = [self.num_rounds, *self.accepted_at]
        return [own / other for own, other in zip(self.accepted_at, before) if other]

    @property
    def label(self) -> str:
        """The drafter and how it drafts."""
        return f"{self.drafter} ({self.draft})" if self.draft and self.drafter != "none" else self.drafter

    @property
    def is_fault(self) -> bool:
        """Whether the text differs and rounding does not explain it."""
        return self.identical is False and not (self.difference or {}).get("tie", False)

    def to_dict(self) -> dict[str, Any]:
        """The keys of the JSON document; `difference` only where there is one."""
        entry = {name: getattr(self, name) for name in (*CONTRACT, *FURTHER)}
        return entry if self.difference is None else {**entry, "difference": self.difference}


@dataclass(frozen=True)
class Timed:
    """One run of one task: results group by group, each group's seconds of decoding, and the times of its prompts."""

    groups: list[list[GenerationResult]]
    seconds: list[float]
    ttft_ms: list[float]
    tpot_ms: list[float]

    @property
    def results(self) -> list[GenerationResult]:
        return [result for group in self.groups for result in group]

    @property
    def tok_s(self) -> float:
        return sum(len(r.token_ids) for r in self.results) / sum(self.seconds)

    def goodput(self, goals: Goals) -> float:
        met = (goals.met(*times) for times in zip(self.ttft_ms, self.tpot_ms))
        return sum(len(r.token_ids) for r, good in zip(self.results, met) if good) / sum(self.seconds)


def make_row(
    task: str,
    batch: int,
    name: str,
    draft: str,
    max_draft: int,
    timed: Sequence[Timed],
    plain: Sequence[Timed],
    temperature: float,
    goals: Goals,
) -> Row:
    """The row of the timed repeats of one drafter, and of none in the same repeats; not yet compared."""
    results = timed[0].results
    counts = pooled(results)
    drafting = sum(result.stats.draft_seconds for result in results)
    return Row(
        task=task,
        batch=batch,
        drafter=name,
        max_draft=0 if name == "none" else max_draft,
        tok_s=statistics.median(t.tok_s for t in timed),
        speedup=statistics.median(t.tok_s / p.tok_s for t, p in zip(timed, plain)),
        acceptance_length=counts.acceptance_length,
        acceptance_rate=counts.acceptance_rate,
        accepted_at=counts.accepted_at,
        identical=None,
        ttft_ms=statistics.median(ms for t in timed for ms in t.ttft_ms),
        tpot_ms=statistics.median(ms for t in timed for ms in t.tpot_ms),
        num_rounds=counts.num_rounds,
        num_drafted=counts.num_drafted,
        draft_ms=1e3 * drafting / counts.num_drafted if counts.num_drafted else 0.0,
        draft="" if name == "none" else draft,
        temperature=temperature,
        goodput=statistics.median(t.goodput(goals) for t in timed),
        drafted_at=counts.drafted_at,
        intervals=_intervals(timed, plain),
    )


def _intervals(timed: Sequence[Timed], plain: Sequence[Timed]) -> dict[str, Interval]:
    """A cluster is a group of prompts that ran together; its time is the median over repeats."""
    clusters = []
    for number, group in enumerate(timed[0].groups):
        tokens = [sum(len(r.token_ids) for r in one[0].groups[number]) for one in (timed, plain)]
        seconds = [statistics.median(t.seconds[number] for t in one) for one in (timed, plain)]
        stats = pooled(group)
        clusters.append((tokens[0], seconds[0], tokens[1], seconds[1], stats.num_tokens, stats.num_rounds))
    found = {
        "tok_s": cluster_interval(clusters, lambda sums: sums[:, 0] / sums[:, 1]),
        "speedup": cluster_interval(clusters, lambda s: s[:, 0] / s[:, 1] / (s[:, 2] / s[:, 3])),
        "acceptance_length": cluster_interval(clusters, lambda sums: sums[:, 4] / sums[:, 5]),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


def pooled(results: Sequence[GenerationResult]) -> GenerationStats:
    """The counts of several continuations as those of one: sums, so a ratio of them is not a mean of ratios."""
    total = GenerationStats()
    for stats in (result.stats for result in results):
        total.num_tokens += stats.num_tokens
        total.num_rounds += stats.num_rounds
        total.num_drafted += stats.num_drafted
        total.num_accepted += stats.num_accepted
        _add(total.accepted_at, stats.accepted_at)
        _add(total.drafted_at, stats.drafted_at)
    return total


def _add(total: list[int], counts: Sequence[int]) -> None:
    total += [0] * (len(counts) - len(total))
    for position, count in enumerate(counts):
        total[position] += count
