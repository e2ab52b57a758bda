"""`draftproof generate`: continue prompts, with the same text whatever the drafter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import prompts
from .config import ConfigFile
from .document import Document
from .options import JsonFile, ModelOptions, SamplingOptions

if TYPE_CHECKING:
    from .. import Engine, GenerationResult, SamplingParams


def generate(
    model: ModelOptions,
    sampling: SamplingOptions,
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; - reads one from standard input.")] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="JSON lines with prompt, turns (only the first) or messages."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template, or none. Default: the model's, if it has one."),
    ] = None,
    config: ConfigFile = None,
    json: JsonFile = None,
) -> None:
    """Continue one or more prompts.

    A single prompt on a terminal streams, with the drafted and accepted tokens in green.
    """
    document = Document(json)
    asked = prompts.collect(prompt or (), prompts_file)
    params = sampling.params()

    from . import show

    engine = model.load()
    use_chat = prompts.has_chat_template(engine) if chat is None else chat
    inputs = [prompts.as_chat(p) if use_chat else p for p in asked]
    if len(inputs) == 1 and show.is_terminal() and not document:
        _stream(engine, inputs[0], params)
    else:
        _run(engine, asked, inputs, params, document)


def _stream(engine: Engine, prompt: prompts.Prompt, params: SamplingParams) -> None:
    from . import show

    console = show.out()
    reply = show.Reply(engine.stream(prompt, params))
    for event in reply:
        show.tokens(console, event)
    console.print()
    show.err().print(reply.closing(), style="dim")


def _run(
    engine: Engine,
    asked: list[prompts.Prompt],
    inputs: list[prompts.Prompt],
    params: SamplingParams,
    document: Document,
) -> None:
    from . import show

    started = time.perf_counter()
    with show.Status(f"generating, {len(inputs)} prompts" if len(inputs) > 1 else "generating"):
        results = engine.generate(inputs, params)
    seconds = time.perf_counter() - started
    console = show.out()
    for number, result in enumerate(results, 1):
        if len(results) > 1:
            console.print(f"--- {number} of {len(results)}", style="dim")
        console.print(show.printable(result.text), markup=False)
    total = [r.stats for r in results]
    show.err().print(
        show.closing(
            sum(s.num_tokens for s in total),
            seconds,
            sum(s.num_rounds for s in total),
            sum(s.num_accepted for s in total),
        ),
        style="dim",
    )
    document.write(
        {
            "results": [result_entry(prompt, result) for prompt, result in zip(asked, results)],
            "config": {**engine.config, "params": sampling_entry(params)},
        }
    )


def result_entry(prompt: prompts.Prompt, result: GenerationResult) -> dict[str, Any]:
    """One entry of `results` in the JSON document; `tok_s` counts the sequence's own time from admission to end."""
    seconds = result.stats.total_seconds
    return {
        "prompt": prompt,
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "stats": result.stats.to_dict(),
        "tok_s": result.stats.num_tokens / seconds if seconds > 0 else 0.0,
    }


def sampling_entry(params: SamplingParams) -> dict[str, Any]:
    """The sampling parameters as JSON."""
    from dataclasses import asdict

    return asdict(params)
