"""`draftproof demo`: four prompts with and without speculation, the texts compared, the speed measured.

The target is loaded once, in float32; each drafter gets one untimed warm-up and then the four prompts, greedy, one at
a time. `tok_s` counts all new tokens over the decoding time (the prompt's own pass is in `ttft_ms`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .demo_tasks import TASKS, WARM_UP
from .document import Document
from .options import DEFAULT_TARGET, JsonFile
from .prompts import has_chat_template

if TYPE_CHECKING:
    from .. import Engine, GenerationResult

PAIR_TARGET = "qwen2.5-coder-1.5b"
PAIR_DRAFTER = "model:qwen2.5-coder-0.5b"
MAX_DRAFT = 8
MAX_DRAFT_MODEL = 4  # a drafting model costs a pass per token, an n-gram look-up nothing


@dataclass
class Row:
    """One prompt with one drafter; the keys of the JSON document."""

    task: str
    batch: int
    drafter: str
    max_draft: int
    tok_s: float
    speedup: float
    acceptance_length: float
    acceptance_rate: float
    accepted_at: list[int]
    identical: bool
    ttft_ms: float
    tpot_ms: float


def demo(
    pair: Annotated[
        bool, typer.Option("--pair", help="Qwen2.5-Coder 1.5B with its 0.5B sibling as a drafter (fetches 1.6 GB).")
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", help="Per prompt. Default: 128, with --pair 64.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="Another target.")] = None,
    drafter: Annotated[
        list[str] | None, typer.Option("--drafter", "-d", help="Compare this drafter with none; repeatable.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Show that the text stays the same and how much sooner it comes.

    Runs a code, an edit, a summary and a story prompt with the drafters none and ngram (--pair: and a small model).
    Exit status 1 if any text differs from plain decoding.
    """
    document = Document(json)
    from ..params import SamplingParams
    from . import show

    target = target or (PAIR_TARGET if pair else DEFAULT_TARGET)
    names = list(drafter or (["ngram", PAIR_DRAFTER] if pair else ["ngram"]))
    num_tokens = (64 if pair else 128) if max_new_tokens is None else max_new_tokens
    params = SamplingParams(temperature=0, max_new_tokens=num_tokens)

    show.out().print(f"{target}, float32, greedy, one prompt at a time, up to {num_tokens} new tokens each")
    rows = measure(target, ["none", *(name for name in names if name != "none")], params)
    show.out().print(table(rows))
    for sentence in sentences(rows):
        show.out().print(sentence)
    document.write({"rows": [vars(row) for row in rows]})
    if not all(row.identical for row in rows):
        raise typer.Exit(1)


def measure(target: str, drafters: list[str], params: Any) -> list[Row]:
    """Every task with every drafter; `drafters` begins with none, which the others are compared with."""
    from ..api import load
    from ..params import SamplingParams
    from . import show

    warm_up = SamplingParams(temperature=0, max_new_tokens=16, ignore_eos=True)
    plain: dict[str, GenerationResult] = {}
    rows: list[Row] = []
    base: Engine | None = None
    for name in drafters:
        with show.Loading(f"loading {target if base is None else name}") as progress:
            max_draft = MAX_DRAFT_MODEL if name.startswith("model:") else MAX_DRAFT
            engine = load(
                target if base is None else base,
                drafter=name,
                dtype="float32",
                max_draft=max_draft,
                max_batch=1,
                progress=progress,
            )
            base = base or engine
            engine.generate([prompt_for(engine, WARM_UP)], warm_up)
        for task, text in TASKS.items():
            with show.Status(f"{task} with {name} ({len(rows) + 1} of {len(drafters) * len(TASKS)})"):
                (result,) = engine.generate([prompt_for(engine, text)], params)
            if name == "none":
                plain[task] = result
                first = " ".join(show.printable(result.text).split())
                show.out().print(f"[bold]{task:8}[/bold]", end="")
                show.out().print(first[:67] + "…" * (len(first) > 67), style="dim", markup=False)
            rows.append(row(task, name, 0 if name == "none" else max_draft, result, plain[task]))
    return rows


def prompt_for(engine: Engine, text: str) -> str | list[dict[str, str]]:
    """The text as a chat, where the model has a chat template."""
    return [{"role": "user", "content": text}] if has_chat_template(engine) else text


def row(task: str, drafter: str, max_draft: int, result: GenerationResult, plain: GenerationResult) -> Row:
    """What one run showed, next to the plain run of the same prompt."""
    stats = result.stats
    seconds = decode_seconds(result)
    speed, plain_speed = stats.num_tokens / seconds, plain.stats.num_tokens / decode_seconds(plain)
    round_seconds = seconds / max(1, stats.num_rounds)
    return Row(
        task=task,
        batch=1,
        drafter=drafter,
        max_draft=max_draft,
        tok_s=speed,
        speedup=speed / plain_speed,
        acceptance_length=stats.acceptance_length,
        acceptance_rate=stats.acceptance_rate,
        accepted_at=list(stats.accepted_at),
        identical=result.token_ids == plain.token_ids,
        ttft_ms=1e3 * (stats.prefill_seconds + round_seconds),
        tpot_ms=1e3 * seconds / max(1, stats.num_tokens),
    )


def decode_seconds(result: GenerationResult) -> float:
    return max(1e-9, result.stats.total_seconds - result.stats.prefill_seconds)


def table(rows: list[Row]) -> Any:
    """The rows for people, a block per task."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("task")
    shown.add_column("drafter", min_width=min(40, max(len(r.drafter) for r in rows)))
    for title in ("tokens/s", "speed-up", "acceptance\nlength"):
        shown.add_column(title, justify="right")
    shown.add_column("identical")
    for task in dict.fromkeys(row.task for row in rows):
        for r in (r for r in rows if r.task == task):
            same = "[green]yes[/green]" if r.identical else "[bold red]no[/bold red]"
            figures = (f"{r.tok_s:.1f}", f"{r.speedup:.2f}x", f"{r.acceptance_length:.2f}")
            shown.add_row(task if r.drafter == "none" else "", r.drafter, *figures, same)
        shown.add_section()
    return shown


def sentences(rows: list[Row]) -> list[str]:
    """What the figures say: whether the texts are the same, where drafting paid most, and where least."""
    drafted = [row for row in rows if row.drafter != "none"]
    differing = [f"{row.task} with {row.drafter}" for row in drafted if not row.identical]
    if differing:
        said = [f"NOT the same text as plain decoding: {', '.join(differing)}."]
    else:
        said = [f"All {len(drafted)} texts with a drafter are the same as without, token for token."]
    best, worst = max(drafted, key=lambda r: r.speedup), min(drafted, key=lambda r: r.speedup)
    if best.speedup > 1:
        said.append(
            f"{best.drafter} helped most on {best.task}: {best.speedup:.1f} times the speed, because each pass of the "
            f"target gave {best.acceptance_length:.1f} tokens instead of 1."
        )
    else:
        said.append(f"No drafter was faster than plain decoding here; the closest was {best.drafter} on {best.task}.")
    effect = "the least gain" if worst.speedup > 1.02 else "no gain" if worst.speedup > 0.98 else "a loss"
    said.append(
        f"{worst.drafter} on {worst.task} was {effect} ({worst.speedup:.2f} times the speed, "
        f"{worst.acceptance_length:.1f} tokens a pass): a wrong guess costs time, never a different text."
    )
    return said
