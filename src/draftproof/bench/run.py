"""Tasks x batch x drafter in one run, each next to plain decoding (drafter none).

The runs of one task and batch take turns, A B A B, so a machine that slows down slows all drafters alike. Every run
starts cold: no row of target or draft model holds a prompt already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

from ..engine.engine import Engine, Prompt, is_ids
from ..errors import OptionError
from ..interfaces import Target
from ..types import GenerationResult, SamplingParams
from .rows import Goals, Row, Timed, make_row

WARM_UP_TOKENS = 16
Arm = str | tuple[str, str]  # a drafter, or a drafter and how it drafts
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


def run(*arguments: Any, **options: Any) -> list[Row]:
    """All rows of `cells`, which has the same arguments."""
    return [row for rows in cells(*arguments, **options) for row in rows]


def cells(
    plain: Engine,
    drafters: Mapping[Arm, Engine],
    prompts_by_task: Mapping[str, Sequence[Prompt]],
    batches: Sequence[int] = (1,),
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    repeats: int = 3,
    progress: Progress | None = None,
    *,
    explain: Explain | None = None,
    observe: Observe | None = None,
    warm_up: Prompt | None = None,
    goals: Goals | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[list[Row]]:
    """Measure every task at every batch size and temperature, plainly and with every drafter; the rows of one task,
    batch size and temperature at a time, as soon as they are known.

    Args:
        plain: the engine with drafter none.
        drafters: a name, or a name and how it drafts, to an engine over the same target.
        prompts_by_task: prompts run in full groups of the batch size; the last group is filled up from the first.
        params: greedy if None; several are run one after another.
        repeats: timed runs of each; medians count.
        progress: called before every timed run.
        explain: `audit.greedy.first_difference`; asked where a greedy text differs from the plain one.
        observe: called with the results of every first repeat.
        warm_up: the prompt of the untimed runs, one for each drafter and batch size; None is the first of all.
        goals: which prompts count for goodput; None is all.
        clock: seconds.

    Raises:
        OptionError: a batch size that an engine has no rows for, or nothing to run.
    """
    engines: dict[Arm, Engine] = {"none": plain, **{arm: engine for arm, engine in drafters.items() if arm != "none"}}
    settings = [params] if isinstance(params, SamplingParams) else list(params or [SamplingParams(temperature=0)])
    _check(engines, prompts_by_task, batches, repeats)
    tasks = {task: [encoded(plain, prompt) for prompt in prompts] for task, prompts in prompts_by_task.items()}
    first = next(iter(tasks.values()))[0] if warm_up is None else encoded(plain, warm_up)
    short = replace(settings[0], max_new_tokens=min(WARM_UP_TOKENS, settings[0].max_new_tokens), ignore_eos=True)
    for batch in dict.fromkeys(batches):
        for engine in engines.values():
            engine.generate([first] * batch, short)
    done, total = 0, len(tasks) * len(batches) * len(settings) * len(engines) * repeats
    for (task, prompts), batch, chosen in product(tasks.items(), batches, settings):
        timed: dict[Arm, list[Timed]] = {arm: [] for arm in engines}
        for repeat in range(repeats):
            for arm, engine in engines.items():
                name, draft = named(arm)
                if progress:
                    text = f"{task} with {name}" + (f" ({draft})" if draft else "")
                    progress(done, total, text + (f", batch {batch}" if len(batches) > 1 else ""))
                timed[arm].append(_timed(engine, prompts, batch, chosen, clock))
                done += 1
                if observe and not repeat:
                    observe(task, batch, name, timed[arm][0].results)
        rows = []
        for arm, engine in engines.items():
            runs = timed[arm], timed["none"]
            name, draft = named(arm)
            row = make_row(task, batch, name, draft, engine.max_draft, *runs, chosen.temperature, goals or Goals())
            if chosen.greedy:
                _compare(row, plain, groups(prompts, batch), *runs, explain)
            rows.append(row)
        yield rows


def named(arm: Arm) -> tuple[str, str]:
    """The drafter's name, and how it drafts (empty if that is not told)."""
    return (arm, "") if isinstance(arm, str) else arm


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


def _check(
    engines: Mapping[Arm, Engine], tasks: Mapping[str, Sequence[Prompt]], batches: Sequence[int], n: int
) -> None:
    if n < 1 or not batches or min(batches) < 1:
        raise OptionError(f"repeats and batch sizes must be at least 1, not {n} and {list(batches)}")
    if not tasks or not all(tasks.values()):
        raise OptionError("there is nothing to measure: give at least one prompt for every task")
    for arm, engine in engines.items():
        if engine.max_batch < max(batches):
            raise OptionError(
                f"batch {max(batches)} needs an engine with max_batch of as many, not {engine.max_batch}: "
                f"{named(arm)[0]}"
            )


def _timed(engine: Engine, prompts: Sequence[Prompt], batch: int, params: SamplingParams, clock: Any) -> Timed:
    """All prompts once, group by group, each cold."""
    timed = Timed([], [], [], [])
    for group in groups(prompts, batch):
        forget(engine)
        started = clock()
        part = engine.generate(group, params)
        wall = clock() - started
        prefill = sum(result.stats.prefill_seconds for result in part)
        timed.groups.append(part)
        timed.seconds.append(max(1e-9, wall - prefill))
        timed.ttft_ms.extend(1e3 * r.stats.first_token_seconds for r in part)
        timed.tpot_ms.extend(1e3 * (r.stats.total_seconds - prefill) / max(1, r.stats.num_tokens) for r in part)
    return timed


def _compare(
    row: Row,
    plain: Engine,
    grouped: Sequence[Sequence[Any]],
    timed: Sequence[Timed],
    reference: Sequence[Timed],
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
