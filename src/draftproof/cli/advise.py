"""`draftproof advise`: does speculation pay here, with what, and up to which batch size? Predicted, then checked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import arms, prompts
from .bench import ReportFile, by_name, costs_entries, marked_texts, read_tasks, write_report
from .document import Document
from .options import JsonFile, MeasuredOptions, TargetOptions

if TYPE_CHECKING:
    from .. import Engine, SamplingParams
    from ..advisor.predict import Costs, Prediction, Texts
    from ..advisor.recommend import Advice
    from ..bench.costs import CostCurve
    from ..bench.run import Arm

CANDIDATES = ("ngram", "suffix")  # what every target has
BATCHES, CHECKED = (1, 2, 4, 8, 16, 32, 64), (1,)
MAX_NEW_TOKENS, BUILT_IN = 64, 2  # and so many of the built-in prompts of each task: an answer in minutes


@dataclass(frozen=True)
class AdviceOptions(MeasuredOptions):
    """The same, shorter."""

    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", rich_help_panel="Sampling", help="Per prompt.")
    ] = MAX_NEW_TOKENS


def advise(
    model: TargetOptions,
    sampling: AdviceOptions,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", "-d", help="A candidate; repeatable. Default: ngram and suffix."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", min=1, metavar="N", help="Check at this batch size; repeatable. Default: 1."),
    ] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="Your own prompts, JSON lines. Default: built in, nine tasks."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="At most N prompts per task. Default: all of a file, 2 of the built-in ones."
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template, or none. Default: the model's, if it has one."),
    ] = None,
    goal_tpot: Annotated[float | None, typer.Option(metavar="MS", help="What a token may take, in ms.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each configuration that is checked.")] = 1,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.toml", help="Options that generate takes with --config.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="FILE.json", help="Acceptance as speculation_profile.json.")
    ] = None,
    json: JsonFile = None,
    report: ReportFile = None,
) -> None:
    """Say whether to speculate, with what and up to which batch size, and why.

    Costs of passes and the acceptance of every candidate are measured once; from these the speed-up of every draft
    length is predicted for batch sizes 1 to 64. Then the best configuration and two others are run on other prompts,
    and predicted stands beside measured.
    """
    document, page = Document(json), Document(report, "--report")
    written, exchange = Document(out, "--out"), Document(profile, "--profile")
    params = sampling.grid()[0]
    tasks = read_tasks(prompts_file, limit or (BUILT_IN if prompts_file is None else None))
    checked = sorted(set(batch or CHECKED))
    names = [name for name in dict.fromkeys(drafter or CANDIDATES) if name != "none"]
    model = replace(model, max_batch=max(model.max_batch, *checked), max_draft=max(1, model.max_draft))

    from ..advisor import exports, measure
    from ..advisor.recommend import advise as weigh
    from ..advisor.recommend import predictions
    from ..bench import machine
    from ..bench.run import encoded
    from . import show, tables

    plain = model.load_with("none")
    candidates = by_name(arms.load(model, plain, names, [str(model.max_draft)]))
    use_chat = prompts.has_chat_template(plain) if chat is None else chat
    inputs = {
        task: [encoded(plain, prompts.as_chat(p) if use_chat else p) for p in listed] for task, listed in tasks.items()
    }
    learn, check = measure.split(inputs)
    curves, costs, texts = _measure(model, plain, candidates, learn, params)
    pooled = {name: own["all"] for name, own in texts.items()}
    sizes = sorted({*BATCHES, *checked})
    every = predictions(pooled, costs, sizes, model.max_draft)
    advice = weigh(pooled, costs, [size for size in sizes if size >= checked[0]], model.max_draft, goal_tpot)
    predicted = [
        predicted_row(task, name, length, found)
        for task in (*learn, "all")
        for name in candidates
        for (_, length), by_batch in predictions({name: texts[name][task]}, costs, sizes, model.max_draft).items()
        for found in by_batch.values()
    ]
    compared = _compared(advice, every, checked[0], model, plain, candidates)
    measured, interrupted = _check(plain, compared, check, checked, params, repeats)

    recommended = _recommended(advice, model, plain)
    if advice.best is not None and recommended:
        best, length = advice.best.drafter, advice.best.max_draft
        recommended["vllm"] = exports.vllm(best, length, best_lengths(every, best, sizes))
        recommended["sglang"] = exports.sglang(best, length)
    console = show.out()
    console.print(headline(advice), style="bold")
    console.print(f"{advice.reason[0].upper()}{advice.reason[1:]}.")
    console.print(tables.predictions(every, advice))
    if measured:
        console.print(tables.predicted_beside_measured(predicted, measured))
    if recommended.get("vllm"):
        console.print(f"vLLM: --speculative-config {shlex.quote(dumps(recommended['vllm']))}")
    if recommended.get("sglang"):
        console.print(f"SGLang: {shlex.join(recommended['sglang'])}")
    comments = [headline(advice), advice.reason]
    written.write_text(exports.toml(config_options(advice, model, plain), comments).rstrip())
    if written:
        console.print(f"To run as advised: draftproof generate --config {shlex.quote(out or '')} PROMPT")
    if advice.best is not None:
        exchange.write(exports.speculation_profile(pooled[advice.best.drafter], advice.best.max_draft))
    content = {
        "verdict": "speculate" if advice.verdict == "speculate" else "do not",
        "reason": advice.reason,
        "recommended": recommended,
        "predicted": predicted,
        "measured": measured,
    }
    document.write(content)
    if page:
        config = {**plain.config, "drafters": names, "max_draft": model.max_draft, "batches": checked}
        config |= {"prompts": {task: len(listed) for task, listed in tasks.items()}, "interrupted": interrupted}
        marked = [] if interrupted else marked_texts(compared, check, params)
        extra = {"machine": machine.describe(), "config": config, "costs": costs_entries(curves), "texts": marked}
        write_report(page, {**content, **extra, "verdict": headline(advice)})
    if interrupted:
        raise typer.Exit(130)


def _measure(
    model: TargetOptions,
    plain: Engine,
    candidates: Mapping[str, Engine],
    learn: Mapping[str, Sequence[Any]],
    params: SamplingParams,
) -> tuple[list[CostCurve], dict[str, Costs], dict[str, dict[str, Texts]]]:
    """Cost curves, the costs of each candidate's rounds, and what came of its drafts by task: each measured once."""
    from ..advisor import measure
    from . import show

    with show.Status("measuring") as status:
        _, results = measure.acceptance(plain, learn, params, status.update)
        curves = measure.curves(plain, candidates, model.target, status.update)
        costs = {name: measure.costs(plain, engine, curves, results) for name, engine in candidates.items()}
        texts = {}
        for name, engine in candidates.items():
            texts[name], _ = measure.acceptance(engine, learn, params, status.update)
    return curves, costs, texts


def _compared(
    advice: Advice,
    every: Mapping[tuple[str, int], Mapping[int, Prediction]],
    batch: int,
    model: TargetOptions,
    plain: Engine,
    candidates: Mapping[str, Engine],
) -> dict[Arm, Engine]:
    """What is run beside plain decoding: three configurations of fixed length, and the best drafter adaptively."""
    ways = [(name, str(length)) for name, length in _to_check(advice, every, batch)]
    ways += [(ways[0][0], arms.ADAPTIVE)] if ways else []
    return {(name, way): model.load_with(candidates[name].drafter, plain, **arms.settings(way)) for name, way in ways}


def _check(
    plain: Engine,
    compared: Mapping[Arm, Engine],
    check: Mapping[str, Sequence[Any]],
    batches: Sequence[int],
    params: SamplingParams,
    repeats: int,
) -> tuple[list[dict[str, Any]], bool]:
    """Measured rows, and whether Ctrl-C ended it early. Where a task has too few prompts to fill a batch, those of all
    tasks run together.
    """
    from ..audit.greedy import first_difference
    from ..bench.run import cells
    from . import show

    measured: list[dict[str, Any]] = []
    try:
        with show.Status("checking") as status:
            for size in batches:
                fits = size == 1 or all(len(listed) >= size for listed in check.values())
                tasks = check if fits else {"all": [prompt for listed in check.values() for prompt in listed]}
                measuring = cells(
                    plain, compared, tasks, (size,), params, repeats, status.update, explain=first_difference
                )
                for rows in measuring:
                    measured += [row.to_dict() for row in rows]
    except KeyboardInterrupt:
        return measured, True
    return measured, False


def predicted_row(task: str, drafter: str, max_draft: int, found: Prediction) -> dict[str, Any]:
    """A prediction with the keys of a measured row; what is not predicted is null."""
    return {
        "task": task,
        "batch": found.batch,
        "drafter": drafter,
        "max_draft": max_draft,
        "draft": str(max_draft),
        "tok_s": found.tok_s,
        "speedup": found.speedup,
        "acceptance_length": found.length,
        "acceptance_rate": (found.length - 1) / found.num_drafted if found.num_drafted else 0.0,
        "accepted_at": None,
        "identical": None,
        "ttft_ms": None,
        "tpot_ms": found.tpot_ms,
        "intervals": {"speedup": found.interval} if found.interval else {},
    }


def best_lengths(
    every: Mapping[tuple[str, int], Mapping[int, Prediction]], drafter: str, sizes: list[int]
) -> dict[int, int]:
    """The best draft length of a drafter at each batch size; 0 where none is expected to pay."""
    found = {}
    for size in sizes:
        speedup, length = max((own[size].speedup, key[1]) for key, own in every.items() if key[0] == drafter)
        found[size] = length if speedup > 1 else 0
    return found


def config_options(advice: Advice, model: TargetOptions, plain: Engine) -> dict[str, Any]:
    """What `--config` needs to run as advised; plainly, where that is the advice."""
    speculate = advice.verdict == "speculate" and advice.best is not None
    options: dict[str, Any] = {
        "target": model.target,
        "drafter": advice.best.drafter if speculate and advice.best else "none",
        "dtype": model.dtype,
        "device": model.device,
        "weights": plain.config["weights"] if model.weights != "auto" else None,
        "draft_weights": model.draft_weights if model.draft_weights != "auto" else None,
        "max_draft": advice.best.max_draft if speculate and advice.best else None,
        "adaptive": True if speculate else None,
    }
    return options


def _recommended(advice: Advice, model: TargetOptions, plain: Engine) -> dict[str, Any]:
    if advice.verdict != "speculate":
        return {}
    options = {name: value for name, value in config_options(advice, model, plain).items() if value is not None}
    return {**options, "up_to_batch": advice.up_to}


def headline(advice: Advice) -> str:
    """The answer in one line."""
    if advice.verdict == "speculate" and advice.best is not None:
        return f"Speculate: {advice.best.drafter}, up to {advice.best.max_draft} tokens, up to batch {advice.up_to}"
    return "Do not speculate" + (" (within noise)" if advice.verdict == "within noise" else "")


def _to_check(
    advice: Advice, every: Mapping[tuple[str, int], Mapping[int, Prediction]], batch: int
) -> list[tuple[str, int]]:
    """The best configuration and two others: the best of another drafter if there is one, and another length."""
    if advice.best is None:
        return []
    own, length = advice.best.drafter, advice.best.max_draft
    ranked = sorted(every, key=lambda key: -every[key][batch].speedup)
    others = [key for key in ranked if key[0] != own][:1]
    lengths = sorted(
        (key for key in ranked if key[0] == own and key[1] != length), key=lambda key: -abs(key[1] - length)
    )
    return [(own, length), *others, *lengths[: 2 - len(others)]]
