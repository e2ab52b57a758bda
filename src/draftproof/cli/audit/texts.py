"""`draftproof audit texts`: token ids that another engine has written to a file."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import JsonFile, TargetOptions
from .closing import HtmlFile, Outputs
from .model import Alpha, Bound

DrafterForQ = Annotated[
    str | None,
    typer.Option("--drafter", "-d", help="The drafter that engine uses, if known; its laws direct the tests."),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the auditor's own noise.")]


def texts(
    model: TargetOptions,
    file: Annotated[str, typer.Argument(help="JSON of texts, as the scripts in benchmarks/ write it.")],
    baseline: Annotated[str | None, typer.Option(metavar="FILE", help="The same engine with speculation off.")] = None,
    drafter: DrafterForQ = None,
    alpha: Alpha = 1e-3,
    tv: Bound = 0.015,
    seed: Seed = 0,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Audit another engine's texts: read by the target, token by token."""
    outputs = Outputs(json, html)
    from ...audit import foreign
    from ...audit.texts import read_arm
    from ...errors import OptionError
    from .. import show

    arm = read_arm(file)
    plain = None if baseline is None else read_arm(baseline)
    if plain is not None and plain.params != arm.params:
        raise OptionError(f"{file} and {baseline} were sampled with different params: they cannot be compared")
    engine = model.load_with("none")
    guide = None if drafter is None else model.load_with(drafter, engine).drafter
    with show.Status("reading") as status:
        found = foreign.audit(
            engine.target,
            arm,
            plain,
            guide,
            alpha=alpha,
            tv=tv,
            seed=seed,
            batch=engine.max_batch,
            progress=status.update,
        )
    outputs.close(found.report(), found.to_dict())
