"""Tasks x batch x drafter in one run, each next to plain decoding (drafter none).

The runs of one task and batch take turns, A B A B, so a machine that slows down slows all drafters alike. Every run
starts cold: no row of target or draft model holds a prompt already.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..engine.engine import Engine, Prompt, is_ids
from ..errors import OptionError
from ..interfaces import Target
from ..types import GenerationResult, GenerationStats, SamplingParams

WARM_UP_TOKENS = 16
CONTRACT = (
    *("task", "batch", "drafter", "max_draft", "tok_s", "speedup"),
    *("acceptance_length", "acceptance_rate", "accepted_at", "identical", "ttft_ms", "tpot_ms"),
)

Progress = Callable[[int, int, str], None]  # runs done, runs in all, what comes next
Observe = Callable[[str, int, str, list[GenerationResult]], None]  # task, batch, drafter, results of the first repeat


class Difference(Protocol):
    """Where two greedy texts part, as `audit.greedy.first_difference` finds it."""

    @property
    def index(self) -> int: ...

    @property
    def tokens(self) -> tuple[int | None, int | None]: ...

    @property
    def margin(self) -> float: ...

    @property
    def noise(self) -> float: ...

    @property
    def is_tie(self) -> bool: ...


Explain = Callable[[Target, Sequence[int], Sequence[int], Sequence[int]], Difference | None]


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

    @property
    def is_fault(self) -> bool:
        """Whether the text differs and rounding does not explain it."""
        return self.identical is False and not (self.difference or {}).get("tie", False)

    def to_dict(self) -> dict[str, Any]:
        """The keys of the JSON document; `difference` only where there is one."""
        entry = {name: getattr(self, name) for name in CONTRACT}
        return entry if self.difference is None else {**entry, "difference": self.difference}


@dataclass(frozen=True)
class _Timed:
    """One run of one task: its results, the seconds spent decoding, and the times of each prompt in ms."""

    results: list[GenerationResult]
    seconds: float
    ttft_ms: list[float]
    tpot_ms: list[float]

    @property
    def tok_s(self) -> float:
        return sum(len(r.token_ids) for r in self.results) / self.seconds


def run(
    plain: Engine,
    drafters: Mapping[str, Engine],
    prompts_by_task: Mapping[str, Sequence[Prompt]],
    batches: Sequence[int] = (1,),
    params: SamplingParams | None = None,
    repeats: int = 3,
    progress: Progress | None = None,
    *,
    explain: Explain | None = None,
    observe: Observe | None = None,
    warm_up: Prompt | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    """Measure every task at every batch size, plainly and with every drafter.

    Args:
        plain: the engine with drafter none.
        drafters: name to an engine over the same target.
        prompts_by_task: prompts run in full groups of the batch size; the last group is filled up from the first.
        params: greedy if None.
        repeats: timed runs of each; medians count.
        progress: called before every timed run.
        explain: `audit.greedy.first_difference`; asked where a greedy text differs from the plain one.
        observe: called with the results of every first repeat.
        warm_up: the prompt of the untimed runs, one for each drafter and batch size; None is the first of all.
        clock: seconds.

    Raises:
        OptionError: a batch size that an engine has no rows for, or nothing to run.
    """
    engines = {"none": plain, **{name: engine for name, engine in drafters.items() if name != "none"}}
    params = params or SamplingParams(temperature=0)
    _check(engines, prompts_by_task, batches, repeats)
    tasks = {task: [encoded(plain, prompt) for prompt in prompts] for task, prompts in prompts_by_task.items()}
    first = next(iter(tasks.values()))[0] if warm_up is None else encoded(plain, warm_up)
    short = replace(params, max_new_tokens=min(WARM_UP_TOKENS, params.max_new_tokens), ignore_eos=True)
    for batch in dict.fromkeys(batches):
        for engine in engines.values():
            engine.generate([first] * batch, short)
    rows, done, total = [], 0, len(tasks) * len(batches) * len(engines) * repeats
    for task, prompts in tasks.items():
        for batch in batches:
            timed: dict[str, list[_Timed]] = {name: [] for name in engines}
            for repeat in range(repeats):
                for name, engine in engines.items():
                    if progress:
                        progress(done, total, f"{task} with {name}" + (f", batch {batch}" if len(batches) > 1 else ""))
                    timed[name].append(_timed(engine, prompts, batch, params, clock))
                    done += 1
                    if observe and not repeat:
                        observe(task, batch, name, timed[name][0].results)
            for name, engine in engines.items():
                row = _row(task, batch, name, engine.max_draft, timed[name], timed["none"])
                if params.greedy:
                    _compare(row, plain, groups(prompts, batch), timed[name], timed["none"], explain)
                rows.append(row)
    return rows


def groups(prompts: Sequence[Any], batch: int) -> list[list[Any]]:
    """The prompts in groups of exactly `batch`, the last one filled up from the first on."""
    missing = -len(prompts) % batch
    filled = [*prompts, *(prompts[i % len(prompts)] for i in range(missing))]
    return [filled[i : i + batch] for i in range(0, len(filled), batch)]


def encoded(engine: Engine, prompt: Prompt) -> Prompt:
    """The prompt as ids, so that tokenizing it is not timed."""
    if is_ids(prompt) or engine.codec is None:
        return prompt
    return engine.codec.encode(prompt) if isinstance(prompt, str) else engine.codec.encode_chat(prompt)  # type: ignore[arg-type]


def forget(engine: Engine) -> None:
    """Drop what idle rows of target and draft model hold, so that no prompt is known already."""
    for part in (engine.target, engine.drafter, getattr(engine.drafter, "lm", None)):
        drop = getattr(part, "forget", None)
        if callable(drop):
            drop()


def pooled(results: Sequence[GenerationResult]) -> GenerationStats:
    """The counts of several continuations as those of one: sums, so a ratio of them is not a mean of ratios."""
    total = GenerationStats()
    for stats in (result.stats for result in results):
        total.num_tokens += stats.num_tokens
        total.num_rounds += stats.num_rounds
        total.num_drafted += stats.num_drafted
        total.num_accepted += stats.num_accepted
        total.accepted_at += [0] * (len(stats.accepted_at) - len(total.accepted_at))
        for position, count in enumerate(stats.accepted_at):
            total.accepted_at[position] += count
    return total


def _check(
    engines: Mapping[str, Engine], tasks: Mapping[str, Sequence[Prompt]], batches: Sequence[int], n: int
) -> None:
    if n < 1 or not batches or min(batches) < 1:
        raise OptionError(f"repeats and batch sizes must be at least 1, not {n} and {list(batches)}")
    if not tasks or not all(tasks.values()):
        raise OptionError("there is nothing to measure: give at least one prompt for every task")
    for name, engine in engines.items():
        if engine.max_batch < max(batches):
            raise OptionError(
                f"batch {max(batches)} needs an engine with max_batch of as many, not {engine.max_batch}: {name}"
            )


def _timed(engine: Engine, prompts: Sequence[Prompt], batch: int, params: SamplingParams, clock: Any) -> _Timed:
    """All prompts once, group by group, each cold."""
    results: list[GenerationResult] = []
    seconds = 0.0
    tpot_ms = []
    for group in groups(prompts, batch):
        forget(engine)
        started = clock()
        part = engine.generate(group, params)
        wall = clock() - started
        prefill = sum(result.stats.prefill_seconds for result in part)
        seconds += max(1e-9, wall - prefill)
        tpot_ms += [1e3 * (r.stats.total_seconds - prefill) / max(1, r.stats.num_tokens) for r in part]
        results += part
    return _Timed(results, seconds, [1e3 * r.stats.first_token_seconds for r in results], tpot_ms)


def _row(task: str, batch: int, name: str, max_draft: int, timed: Sequence[_Timed], plain: Sequence[_Timed]) -> Row:
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
    )


def _compare(
    row: Row,
    plain: Engine,
    grouped: Sequence[Sequence[Any]],
    timed: Sequence[_Timed],
    reference: Sequence[_Timed],
    explain: Explain | None,
) -> None:
    """Say whether every greedy text is that of none in the same repeat, and explain the first that is not."""
    prompts = [prompt for group in grouped for prompt in group]
    row.identical = True
    for one, other in zip(timed, reference):
        for number, (prompt, result, expected) in enumerate(zip(prompts, one.results, other.results)):
            if result.token_ids == expected.token_ids:
                continue
            row.identical = False
            if explain and is_ids(prompt) and row.difference is None:
                found = explain(plain.target, prompt, expected.token_ids, result.token_ids)
                row.difference = _described(number, found) if found else None
            return


def _described(number: int, found: Difference) -> dict[str, Any]:
    margin = found.margin if found.margin < float("inf") else None  # JSON has no infinity
    return {
        "prompt": number,
        "index": found.index,
        "tokens": list(found.tokens),
        "margin": margin,
        "noise": found.noise,
        "tie": found.is_tie,
        "note": str(found),
    }
