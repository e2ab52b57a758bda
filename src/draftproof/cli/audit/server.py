"""`draftproof audit server`: text from any OpenAI-compatible server, read by a local target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import JsonFile, SamplingOptions, TargetOptions
from .closing import HtmlFile, Outputs
from .model import Alpha, Bound, Chat, PromptsFile, encoded, read_prompts
from .texts import DrafterForQ

if TYPE_CHECKING:
    from ...audit.server import Collected

SEEDS_APART = 1_000_003
"""Between the two servers' seeds: the same seeds could give the same texts, which are not two samples."""


def server(
    model: TargetOptions,
    sampling: SamplingOptions,
    url: Annotated[str, typer.Argument(help="Of the server, such as http://127.0.0.1:8000.")],
    baseline: Annotated[
        str | None, typer.Argument(metavar="[BASELINE]", help="Of the same server with speculation off.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--model", help="The model's name there. Default: the first listed.")
    ] = None,
    drafter: DrafterForQ = None,
    tokens: Annotated[int, typer.Option(min=1, help="At least so many tokens of each server.")] = 30_000,
    prompts_file: PromptsFile = None,
    chat: Chat = None,
    at_once: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8,
    alpha: Alpha = 1e-3,
    tv: Bound = 0.015,
    save: Annotated[str | None, typer.Option(metavar="FOLDER", help="Keep the texts here.")] = None,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Audit a server with speculative decoding.

    With a second URL, of the same model without speculation, differences of precision, quantisation or template are
    told apart from those of speculation. $OPENAI_API_KEY is sent where it is set.
    """
    outputs = Outputs(json, html)
    listed = read_prompts(prompts_file, None)
    import os

    from ...audit import foreign
    from ...audit.server import Server, collect
    from ...errors import OptionError
    from .. import show

    params = sampling.params()
    if params.stop or params.ignore_eos:
        raise OptionError("audit server reads whole texts: leave --stop and --ignore-eos out")
    key = os.environ.get("OPENAI_API_KEY")
    servers = [Server(one, name, key) for one in (url, baseline) if one is not None]
    engine = model.load_with("none")
    if engine.codec is None:
        raise OptionError(f"{model.target} has no tokenizer, which a server's text needs")
    guide = None if drafter is None else model.load_with(drafter, engine).drafter
    prompt_ids = encoded(engine, listed, chat)
    collected: list[Collected] = []
    with show.Status("asking") as status:
        for number, (one, label) in enumerate(zip(servers, ("speculative", "baseline"))):
            seed = (params.seed or 0) + number * SEEDS_APART
            got = collect(
                one,
                label,
                prompt_ids,
                engine.codec,
                engine.eos_ids,
                params,
                tokens,
                seed,
                at_once,
                status.update,
            )
            if save:
                got.arm.save(Path(save))
            collected.append(got)
        found = foreign.audit(
            engine.target,
            collected[0].arm,
            collected[1].arm if len(collected) > 1 else None,
            guide,
            with_ids=all(one.with_ids for one in collected),
            alpha=alpha,
            tv=tv,
            batch=engine.max_batch,
            progress=status.update,
        )
    outputs.close(found.report(), found.to_dict())
