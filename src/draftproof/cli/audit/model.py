"""`draftproof audit model`: a real target and drafter, greedy and sampled, against plain decoding."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import prompts
from ..options import JsonFile, ModelOptions
from .closing import HtmlFile, Outputs

if TYPE_CHECKING:
    from ... import Engine, SamplingParams

Tokens = Annotated[int, typer.Option(min=1, help="At least so many tokens of each sampled arm.")]
Alpha = Annotated[float, typer.Option(min=1e-9, max=0.5, help="False-alarm rate of the whole report.")]
Bound = Annotated[float, typer.Option("--tv", min=1e-6, max=1.0, help="Lossless means: TV per token at most this.")]
PromptsFile = Annotated[
    str | None, typer.Option("--prompts", metavar="FILE", help="JSON lines. Default: built in, of every kind.")
]
Chat = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Use the chat template, or none. Default: the model's, if it has one."),
]


def model(
    model: ModelOptions,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="Sample at this temperature; repeatable, 0 is greedy. Default: 0, 0.7 with top-p 0.9, 1."),
    ] = None,
    top_p: Annotated[
        list[float] | None, typer.Option(help="Nucleus for each --temperature in turn; 1 where there is none.")
    ] = None,
    tokens: Tokens = 30_000,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=2, help="Of each text.")] = 128,
    prompts_file: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N prompts.")] = None,
    chat: Chat = None,
    alpha: Alpha = 1e-3,
    tv: Bound = 0.015,
    seed: Annotated[int, typer.Option(min=0, help="Of texts and of the auditor's own noise.")] = 0,
    save: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep the texts of every arm here as soon as it is finished.")
    ] = None,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Audit a pair: greedy identity, then sampled text read token by token by the target.

    Every test is stated with the leak it would have seen; plain decoding takes the same tests as a control.
    """
    outputs = Outputs(json, html)
    listed = read_prompts(prompts_file, limit)
    settings = _settings(temperature, top_p)
    from ...audit import model as audits
    from ...errors import OptionError
    from .. import show

    if model.drafter == "none":
        raise OptionError("audit model compares a drafter with plain decoding: name one by --drafter")

    plain = model.load_with("none")
    drafted = model.load_with(model.drafter, plain)
    folder = Path(save) if save else None
    plan = audits.Plan(
        tokens,
        max_new_tokens,
        dict(audits.SETTINGS) if settings is None else {k: v for k, v in settings.items() if not v.greedy},
        settings is None or any(params.greedy for params in settings.values()),
        alpha,
        tv,
        seed,
    )
    with show.Status("warming up") as status:
        found = audits.audit(
            plain,
            drafted,
            encoded(plain, listed, chat),
            plan,
            status.update,
            lambda arm: None if folder is None else _kept(arm.save(folder)),
        )
    outputs.close(found.report(), found.to_dict())


def _kept(path: Path) -> None:
    from .. import show

    show.err().print(f"kept {path}", style="dim")


def _settings(temperatures: list[float] | None, top_ps: list[float] | None) -> dict[str, SamplingParams] | None:
    """What is asked for, by name; None for the defaults."""
    if not temperatures:
        return None
    from ...params import SamplingParams

    named = {}
    for i, temperature in enumerate(temperatures):
        top_p = top_ps[i] if top_ps and i < len(top_ps) else 1.0
        params = SamplingParams(temperature=temperature, top_p=top_p)
        named[f"T = {temperature:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")] = params
    return named


def read_prompts(file: str | None, limit: int | None) -> list[prompts.Prompt]:
    """Those of a file, or the built-in ones of all tasks."""
    if file is not None:
        return prompts.read_file(file)[:limit]
    from ...bench.prompts import BENCH

    listed: list[prompts.Prompt] = list(chain(*BENCH.values()))
    return listed[:limit]


def encoded(engine: Engine, listed: list[prompts.Prompt], chat: bool | None) -> list[list[int]]:
    """Prompts as the target's ids."""
    from ...bench.run import encoded as ids_of

    use_chat = prompts.has_chat_template(engine) if chat is None else chat
    return [list(ids_of(engine, prompts.as_chat(p) if use_chat else p)) for p in listed]  # type: ignore[arg-type]
