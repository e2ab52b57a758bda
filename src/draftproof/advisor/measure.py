"""Costs and acceptance of every candidate, each measured once on the user's machine and prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..bench.costs import CostCurve
from ..bench.costs import measure as measure_passes
from ..bench.run import forget
from ..costs import Calibration, Curve
from ..drafters.calibrate import with_drafter
from ..engine.engine import Engine, Prompt
from ..models.cached_lm import CachedLM
from ..types import GenerationResult, SamplingParams
from .predict import Costs, Texts

SIZES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT, REPEATS = 128, 5
Progress = Callable[[int, int, str], None]


def acceptance(
    engine: Engine, prompts: Mapping[str, Sequence[Prompt]], params: SamplingParams, progress: Progress | None = None
) -> tuple[dict[str, Texts], list[GenerationResult]]:
    """What comes of always drafting `engine.max_draft` tokens, by task and (under "all") for all prompts together."""
    total, done = sum(map(len, prompts.values())), 0
    by_task: dict[str, Texts] = {}
    results: list[GenerationResult] = []
    clusters: list[tuple[float, ...]] = []
    for task, listed in prompts.items():
        own = []
        for prompt in listed:
            if progress:
                progress(done, total, f"acceptance of {engine.drafter.name} on {task}")
            done += 1
            forget(engine)
            (result,) = engine.generate([prompt], params)
            results.append(result)
            own.append(cluster(result, len(prompt), engine.max_draft))
        by_task[task] = Texts(tuple(own), engine.max_draft)
        clusters += own
    by_task["all"] = Texts(tuple(clusters), engine.max_draft)
    return by_task, results


def cluster(result: GenerationResult, num_prompt: int, depth: int) -> tuple[float, ...]:
    """One prompt's counts, as `Texts` holds them."""
    stats = result.stats
    counts = [_padded(counts, depth) for counts in (stats.accepted_at, stats.drafted_at)]
    return (float(stats.num_rounds), float(stats.num_tokens), float(num_prompt), *counts[0], *counts[1])


def _padded(counts: Sequence[int], size: int) -> list[float]:
    return [float(count) for count in counts[:size]] + [0.0] * (size - len(counts))


def curves(
    plain: Engine, engines: Mapping[str, Engine], target: str, progress: Progress | None = None
) -> list[CostCurve]:
    """T(M) of the target and of every draft model."""
    models: list[tuple[CachedLM, str, str]] = [(plain.target, target, "target")]  # type: ignore[list-item]
    models += [(e.drafter.lm, name, "drafter") for name, e in engines.items() if hasattr(e.drafter, "lm")]
    found: list[CostCurve] = []
    for lm, name, role in models:
        largest = max(1, min(SIZES[-1], lm.max_length - 2))
        sizes = [size for size in SIZES if size <= largest]
        read = found[0].read_gb_s if found else None
        curve = measure_passes(
            lm, sizes, CONTEXT, REPEATS, progress, model=name.removeprefix("model:"), role=role, read_gb_s=read
        )
        found.append(curve)
    return found


def costs(
    plain: Engine, engine: Engine, measured: Sequence[CostCurve], plain_results: Sequence[GenerationResult]
) -> Costs:
    """The parts of this engine's rounds.

    Args:
        measured: of `curves`.
        plain_results: of plain decoding, which show what a round takes beside its pass.
    """
    target: CachedLM = plain.target  # type: ignore[assignment]
    passes = Curve.rising({m: t / 1e3 for m, t in measured[0].t_ms.items()})
    base = with_drafter(Calibration(passes, CONTEXT), target, engine.drafter, max(1, engine.max_draft))
    if hasattr(engine.drafter, "offers"):  # a look-up: no passes, and what it takes does not grow with the batch
        base = replace(base, draft_next=0.0)
    batch = Curve(((1, 1.0),))
    own = next((c for c in measured if c.role == "drafter" and engine.drafter.name.endswith(f":{c.model}")), None)
    if own is not None:
        batch = Curve.rising({m: own.v(m) for m in own.t_ms})
    elif not hasattr(engine.drafter, "offers"):
        batch = Curve.rising({m: measured[0].v(m) for m in measured[0].t_ms})
    return Costs(base, batch, rest(plain_results))


def rest(results: Sequence[GenerationResult]) -> float:
    """Seconds of a scored token outside the passes, from texts that were decoded plainly and alone."""
    stats = [result.stats for result in results]
    rounds = sum(s.num_rounds for s in stats)
    outside = sum(s.total_seconds - s.prefill_seconds - s.verify_seconds - s.draft_seconds for s in stats)
    return max(0.0, outside / rounds) if rounds else 0.0


def split(prompts: Mapping[str, Sequence[Prompt]]) -> tuple[dict[str, list[Prompt]], dict[str, list[Prompt]]]:
    """Prompts to learn from, and others to check on: of each task the last third; one alone serves for both."""
    learn, check = {}, {}
    for task, listed in prompts.items():
        num = max(1, len(listed) // 3)
        learn[task] = list(listed[:-num]) or list(listed)
        check[task] = list(listed[-num:])
    return learn, check
