"""`draftproof audit sample`: the whole engine by drawing, on targets whose law is known."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import JsonFile
from .closing import HtmlFile, Outputs
from .model import Alpha


def sample(
    tv: Annotated[
        float, typer.Option(min=1e-3, max=0.5, help="The smallest total variation that is to be found.")
    ] = 0.05,
    alpha: Alpha = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the first text.")] = 0,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Draw texts of every verifier and way of drawing, batched, and of a tiny pair through its caches.

    G-tests with certificates against the known law, the joint law of draft, acceptance and replacement, the random
    streams, and whether a seed's text depends on its batch. Sample sizes follow from --tv and --alpha.
    """
    outputs = Outputs(json, html)
    from ...audit import sample as audits
    from .. import show

    plan = audits.Plan(tv, alpha, seed)
    with show.Status("drawing") as status:
        found = audits.audit(plan, progress=status.update)
    outputs.close(found.report(), found.to_dict())
