"""`draftproof audit law`: the exact law of every rule, by enumeration, and of a drafter of one's own."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import JsonFile
from .closing import HtmlFile, Outputs


def law(
    drafter: Annotated[
        str | None,
        typer.Argument(metavar="[DRAFTER]", help="Also audit your own drafter: package.module:Class."),
    ] = None,
    verifier: Annotated[
        list[str] | None,
        typer.Option("--verifier", help="auto, token, block, traversal or all; repeatable. Default: all."),
    ] = None,
    vocab_size: Annotated[int, typer.Option(min=2, max=16, help="Tokens your drafter is asked to draft from.")] = 3,
    max_draft: Annotated[int, typer.Option(min=1, max=6, help="Most tokens of your drafter's drafts.")] = 2,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Compute the exact law of the production code, with no sampling noise.

    Every verifier, way of drawing, processor and draft length; total variation from the target's law must be below
    1e-12. Then the same for deliberately broken rules, which must all be caught.
    """
    outputs = Outputs(json, html)
    from ...api import VERIFIERS
    from ...audit import law as audits
    from ...errors import OptionError
    from .. import show

    names = list(VERIFIERS) if not verifier or "all" in verifier else list(dict.fromkeys(verifier))
    if unknown := [name for name in names if name not in VERIFIERS]:
        raise OptionError(f"unknown verifier {unknown[0]!r}: use all, {', '.join(VERIFIERS)}")
    with show.Status("enumerating") as status:
        found = audits.audit(names, drafter, vocab_size, max_draft, status.update)
    outputs.close(found.report(), found.to_dict())
