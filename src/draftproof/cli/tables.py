"""Tables of measurements for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from ..advisor.predict import Prediction
    from ..advisor.recommend import Advice
    from ..bench.costs import CostCurve
    from ..bench.profile import Profile
    from ..bench.rows import Row


def _table(*columns: str, left: int = 1) -> Table:
    """The first `left` columns hold words, the rest figures."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, title in enumerate(columns):
        words = number < left  # these may be folded where the terminal is narrow
        shown.add_column(title, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return shown


def rows(measured: Sequence[Row], *, latency: bool = True) -> Table:
    """A block per task and batch size.

    Args:
        latency: with the columns for the time to the first token, the time per token and the share accepted.
    """
    many = len({row.batch for row in measured}) > 1
    hot = len({row.temperature for row in measured}) > 1
    ways = len({row.draft for row in measured if row.drafter != "none"}) > 1
    titles = ["task", *(["batch"] if many else []), "drafter", "tokens/s", "speed-up", "acceptance\nlength"]
    titles += ["accepted", "first token", "per token"] if latency else []
    shown = _table(*titles, left=3 if many else 2)
    shown.add_column("identical", no_wrap=True)
    for cell in dict.fromkeys((row.task, row.batch, row.temperature) for row in measured):
        task, batch, _ = cell
        for row in (r for r in measured if (r.task, r.batch, r.temperature) == cell):
            first = row.drafter == "none"
            named = task if not hot else f"{task}\nT = {row.temperature:g}"
            cells = [named if first else "", *([str(batch) if first else ""] if many else []), _name(row, ways)]
            cells += [f"{row.tok_s:.1f}", f"{row.speedup:.2f}x", f"{row.acceptance_length:.2f}"]
            if latency:
                cells += [f"{row.acceptance_rate:.0%}", f"{row.ttft_ms:.0f} ms", f"{row.tpot_ms:.1f} ms"]
            shown.add_row(*cells, _same(row))
        shown.add_section()
    return shown


def _name(row: Row, ways: bool) -> str:
    """The drafter, and how it drafts where several ways are compared."""
    return row.label if ways else row.drafter


def _same(row: Row) -> str:
    if row.identical is None:
        return "-"
    if row.identical:
        return "[green]yes[/green]"
    return "[bold red]no[/bold red]" if row.is_fault else "[yellow]no (tie)[/yellow]"


def predictions(every: Mapping[tuple[str, int], Mapping[int, Prediction]], advice: Advice) -> Table:
    """Predicted speed-ups: the best draft length of each drafter, and what was advised, by batch size."""
    sizes = sorted({size for own in every.values() for size in own})
    shown = _table("expected speed-up\nat batch", *map(str, sizes))
    best = advice.best
    kept = {
        max((key for key in every if key[0] == name), key=lambda key: every[key][size].speedup)
        for name in dict.fromkeys(name for name, _ in every)
        for size in (sizes[0], 8 if 8 in sizes else sizes[-1])
    }
    for name, length in sorted(kept):
        is_best = best is not None and (name, length) == (best.drafter, best.max_draft)
        cells = [f"{every[name, length][size].speedup:.2f}" for size in sizes]
        shown.add_row(f"{name}, up to {length}", *cells, style="bold" if is_best else None)
    return shown


def predicted_beside_measured(predicted: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]]) -> Table:
    """The configurations that were run, a row each; what adapts itself has no prediction of its own."""
    known = {(row["task"], row["batch"], row["drafter"], row["draft"]): row["speedup"] for row in predicted}
    shown = _table("task", "drafter", "draft", "batch", "predicted", "measured", left=3)
    for row in measured:
        if row["drafter"] == "none":
            continue
        expected = known.get((row["task"], row["batch"], row["drafter"], row["draft"]))
        shown.add_row(
            row["task"],
            row["drafter"],
            row["draft"],
            str(row["batch"]),
            "-" if expected is None else f"{expected:.2f}x",
            f"{row['speedup']:.2f}x",
        )
    return shown


def costs(curves: Sequence[CostCurve]) -> Table:
    """A column of T(M) and one of v(M) for each model."""
    titles = ["M"]
    for curve in curves:
        titles += [f"{curve.model}\n{curve.dtype}, {curve.weights}\nT(M) ms", "\n\nv(M)"]
    shown = _table(*titles)
    shown.columns[0].justify = "right"
    for size in sorted({size for curve in curves for size in curve.t_ms}):
        cells = [str(size)]
        for curve in curves:
            cells += [f"{curve.t(size):.2f}", f"{curve.v(size):.2f}"]
        shown.add_row(*cells)
    shown.add_section()
    floor, over = ["floor"], ["T(1) / floor"]
    for curve in curves:
        floor += [f"{curve.floor_ms:.2f}", ""]
        over += [f"{curve.t(1) / curve.floor_ms:.2f}", ""]
    shown.add_row(*floor)
    shown.add_row(*over)
    return shown


def profile(profiles: Sequence[Profile]) -> Table:
    """A column of ms and percent of a round for each drafter and batch size."""
    many = len({p.batch for p in profiles}) > 1
    shown = _table(
        "ms per round\n(share)", *(f"{p.drafter}\n" + (f"batch {p.batch}" if many else "") for p in profiles)
    )
    for part in profiles[0].seconds:
        cells = []
        for p in profiles:
            seconds = p.seconds[part] / max(1, p.num_rounds)
            cells.append(f"{1e3 * seconds:.2f} ({seconds / (p.round_seconds or 1):5.1%})")
        shown.add_row(part, *cells)
    shown.add_section()
    shown.add_row("round", *(f"{1e3 * p.round_seconds:.2f}         " for p in profiles))
    shown.add_row(
        "all but passes", *(f"{1e3 * p.round_seconds * p.overhead:.2f} ({p.overhead:5.1%})" for p in profiles)
    )
    return shown
