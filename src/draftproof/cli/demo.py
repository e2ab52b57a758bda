"""`draftproof demo`: four prompts with and without speculation, the texts compared, the speed measured and explained.

The target is loaded once, and `bench.run` measures: every drafter has an untimed warm-up and then takes turns with
plain decoding, greedy, one prompt at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from . import prompts
from .document import Document
from .options import DEFAULT_TARGET, JsonFile

if TYPE_CHECKING:
    from .. import Engine, GenerationResult, SamplingParams
    from ..bench.costs import CostCurve
    from ..bench.rows import Row

PAIR_TARGET = "qwen2.5-coder-1.5b"
PAIR_DRAFTER = "model:qwen2.5-coder-0.5b"
MAX_DRAFT = 8  # pays on text that is easy to guess; a draft model stops earlier by itself where it is unsure
COST_REPEATS = 3


def demo(
    small: Annotated[bool, typer.Option("--small", help="SmolLM2-135M and n-grams (94 MB instead of 1.6 GB).")] = False,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Per prompt.")] = 128,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Another target, with the drafter ngram.")
    ] = None,
    drafter: Annotated[
        list[str] | None, typer.Option("--drafter", "-d", help="Compare this drafter with none; repeatable.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Default: bfloat16; float32 for small models without our kernels.", show_default=False),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Show that the text stays the same, how much sooner it comes, and why.

    Runs a code, an edit, a summary and a story prompt on Qwen2.5-Coder 1.5B with the drafters none, ngram and its 0.5B
    sibling. Exit status 1 if a text differs from plain decoding by more than rounding.
    """
    document = Document(json)
    from ..kernels import library
    from ..params import SamplingParams
    from . import show, tables

    pair = not small and target is None
    names = drafter or (["ngram", PAIR_DRAFTER] if pair else ["ngram"])
    target = target or (PAIR_TARGET if pair else DEFAULT_TARGET)
    params = SamplingParams(temperature=0, max_new_tokens=max_new_tokens)
    chosen = dtype or ("bfloat16" if pair or library.reason() is None else "float32")
    rows, curve = measure(target, [name for name in dict.fromkeys(names) if name != "none"], chosen, params)
    console = show.out()
    console.print(tables.rows(rows, latency=False))
    for sentence in sentences(rows, curve):
        console.print(sentence)
    document.write({"rows": [row.to_dict() for row in rows]})
    if any(row.is_fault for row in rows):
        raise typer.Exit(1)


def measure(target: str, drafters: list[str], dtype: str, params: SamplingParams) -> tuple[list[Row], CostCurve]:
    """Every task plainly and with every drafter, and what passes of the target cost."""
    from ..audit.greedy import first_difference
    from ..bench.costs import measure as measure_costs
    from ..bench.prompts import DEMO, WARM_UP
    from ..bench.run import run
    from . import show

    plain, engines = _load(target, drafters, dtype)
    exact = "bit-exact" if plain.config["bitwise"] else "not bit-exact on this machine"
    console = show.out()
    console.print(
        f"{target}, {plain.config['dtype']}, {exact}, greedy, one prompt at a time, up to {params.max_new_tokens} new "
        "tokens each"
    )
    use_chat = prompts.has_chat_template(plain)
    laid_out = {task: [prompts.as_chat(text) if use_chat else text] for task, text in DEMO.items()}

    with show.Status("warming up") as status:

        def first_words(task: str, batch: int, name: str, results: Sequence[GenerationResult]) -> None:
            if name == "none":
                text = " ".join(show.printable(results[0].text).split())
                with status.hidden():
                    console.print(f"[bold]{task:8}[/bold]", end="")
                    console.print(text[:67] + "…" * (len(text) > 67), style="dim", markup=False)

        rows = run(
            plain,
            engines,
            laid_out,
            params=params,
            repeats=1,
            progress=status.update,
            explain=first_difference,
            observe=first_words,
            warm_up=prompts.as_chat(WARM_UP) if use_chat else WARM_UP,
        )
        curve = measure_costs(
            plain.target, (1, 2, 4, MAX_DRAFT + 1), repeats=COST_REPEATS, progress=status.update, model=target
        )
    return rows, curve


def _load(target: str, drafters: list[str], dtype: str) -> tuple[Engine, dict[str, Engine]]:
    from ..api import load
    from . import show

    with show.Loading(f"loading {target}") as progress:
        plain = load(target, dtype=dtype, max_batch=1, progress=progress)
    engines = {}
    for name in drafters:
        with show.Loading(f"loading {name}") as progress:
            engines[name] = load(plain, name, max_draft=MAX_DRAFT, progress=progress)
    return plain, engines


def sentences(rows: list[Row], curve: CostCurve) -> list[str]:
    """Are the texts the same? Why did drafting pay most where it did (three sentences)? Where did it pay least?"""
    drafted = [row for row in rows if row.drafter != "none"]
    if not drafted:
        return []
    best, worst = max(drafted, key=lambda r: r.speedup), min(drafted, key=lambda r: r.speedup)
    effect = "the least gain" if worst.speedup > 1.02 else "no gain" if worst.speedup > 0.98 else "a loss"
    return [
        verdict(drafted),
        *why(best, curve),
        f"{worst.drafter} on {worst.task} was {effect} ({worst.speedup:.2f} times the speed, "
        f"{worst.acceptance_length:.1f} tokens a pass): a wrong guess costs time, never a different text.",
    ]


def verdict(drafted: list[Row]) -> str:
    """Are the texts the same?"""
    faults = [f"{row.task} with {row.drafter}" for row in drafted if row.is_fault]
    if faults:
        return f"NOT the same text as plain decoding: {', '.join(faults)}."
    ties = [f"{row.task} with {row.drafter}" for row in drafted if not row.identical]
    if ties:
        return f"The same texts up to the other branch of a numerical tie in {', '.join(ties)}."
    return f"All {len(drafted)} texts with a drafter are the same as without, token for token."


def why(row: Row, curve: CostCurve) -> list[str]:
    """What the row's speed comes from: v(M), c and the acceptance length, all measured in this run."""
    from ..bench.costs import predicted_speedup

    drafted = row.num_drafted / max(1, row.num_rounds)
    size = drafted + 1
    v, c, length = curve.v(size), row.draft_ms / curve.t(1), row.acceptance_length
    if row.speedup > 1:
        head = f"{row.drafter} helped most on {row.task}, {row.speedup:.1f} times the speed"
    else:
        head = f"No drafter was faster than plain decoding here; the closest was {row.drafter} on {row.task}"
    return [
        f"{head}: a pass of the target over {size:.1f} tokens takes {curve.t(size):.0f} ms, over one "
        f"{curve.t(1):.0f} ms, so v({size:.1f}) = {v:.2f}.",
        f"Each round drafted {drafted:.1f} tokens for {row.draft_ms:.1f} ms apiece, so c = {c:.2f}.",
        f"Each round gave {length:.1f} tokens instead of 1, so {length:.2f} / ({drafted:.1f} x {c:.2f} + {v:.2f}) = "
        f"{predicted_speedup(length, drafted, c, v):.2f} times the speed was to be expected, and {row.speedup:.2f} was "
        "measured.",
    ]
