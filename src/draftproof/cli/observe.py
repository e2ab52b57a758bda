"""`draftproof observe`: what the speculation of a running vLLM, SGLang or llama.cpp server brings."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from .document import Document
from .options import JsonFile


def observe(
    url: Annotated[str, typer.Argument(help="The server, or its metrics: http://localhost:8000")],
    seconds: Annotated[float, typer.Option(min=0.0, help="Between the two scrapes; 0: since it started.")] = 10.0,
    draft_cost: Annotated[
        float, typer.Option(min=0.0, help="c: a drafted token over a token of the target, for the best length.")
    ] = 0.1,
    max_draft: Annotated[int, typer.Option(min=1, help="The longest draft to consider.")] = 16,
    json: JsonFile = None,
) -> None:
    """Read a server's counters twice: acceptance by position, and the draft length that would be best for it.

    The best length takes a pass over several tokens for as dear as one over one, as in small batches.
    """
    document = Document(json)
    from ..advisor.observe import Samples, best_draft, scrape
    from ..advisor.observe import observe as compare
    from . import show

    before: Samples = {}
    if seconds:
        before = scrape(url)
        with show.Status(f"waiting {seconds:g} s"):
            time.sleep(seconds)
    found = compare(before, scrape(url))
    console = show.out()
    entry = found.to_dict()
    if found.acceptance_length is None:
        console.print(f"{found.server}: nothing was drafted in that time.")
        document.write({**entry, "best_max_draft": None, "predicted_speedup": None})
        return
    rate = "" if found.acceptance_rate is None else f", {found.acceptance_rate:.0%} of the drafted tokens accepted"
    console.print(f"{found.server}: acceptance length {found.acceptance_length:.2f} (the bonus token counted){rate}.")
    for name, rates in (("marginal", found.marginal), ("conditional", found.conditional)):
        if rates:
            console.print(f"Accepted at position 1, 2, ... ({name}): {', '.join(f'{value:.2f}' for value in rates)}.")
    number, speedup = best_draft(found.survival(max_draft), draft_cost)
    if number:
        console.print(
            f"With c = {draft_cost:g} the best draft length is {number}, for {speedup:.2f} times the speed of plain "
            "decoding."
        )
    else:
        console.print(f"With c = {draft_cost:g} no draft length is faster than plain decoding: switch speculation off.")
    document.write({**entry, "best_max_draft": number, "predicted_speedup": speedup})
