"""The plots of a report as SVG: no background, text in the page's own colour, so that they fit light, dark and paper.

Without matplotlib every function gives an empty string, and the tables behind the plots say it all.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

_INK = "#010203"  # stands for the page's text colour
_COLOURS = ("#3b82c4", "#d9822b", "#3f9c6d", "#a35bb5", "#cf5360", "#8a7a3b", "#5aa7a7", "#b06f4a", "#7285a5")
_SLOWER, _SAME, _FASTER = "#c4626a", "#8d99a6", "#3b82c4"
_STYLE = {
    "font.size": 10,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    **{f"{part}.color": _INK for part in ("text", "xtick", "ytick", "grid")},
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.titlecolor": _INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


def available() -> bool:
    """Whether plots can be drawn: the extra `report` brings matplotlib."""
    return importlib.util.find_spec("matplotlib") is not None


def heat_map(values: Sequence[Sequence[float | None]], rows: Sequence[str], columns: Sequence[str], title: str) -> str:
    """Speed-ups as coloured cells with their figures: blue faster, red slower than 1; a dash where none is known."""
    if not available() or not rows or not columns:
        return ""
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
    from matplotlib.patches import Rectangle

    known = [value for row in values for value in row if value is not None]
    figure, axes = _axes(1.8 + 0.95 * len(columns), 0.9 + 0.36 * len(rows))
    shades = LinearSegmentedColormap.from_list("speed", [_SLOWER, _SAME, _FASTER])
    norm = TwoSlopeNorm(1.0, min(0.5, *known, 0.99), max(2.0, *known)) if known else None
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            colour = shades(norm(value)) if norm is not None and value is not None else "none"
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none"))
            text = "–" if value is None else f"{value:.2f}"
            axes.text(x, y, text, ha="center", va="center", color=_INK if value is None else "white", weight="bold")
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), title=title)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(False)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    return _svg(figure, f"Speed-up of {title} by task and batch size")


def cost_curves(costs: Sequence[Mapping[str, Any]], names: Sequence[str], floor: float | None) -> str:
    """v(M) of every model, with the target's floor."""
    if not available():
        return ""
    figure, axes = _axes(7.2, 3.4)
    for number, (curve, name) in enumerate(zip(costs, names)):
        points = sorted((int(m), t) for m, t in curve["t_ms"].items())
        first = points[0][1] or 1.0
        axes.plot([m for m, _ in points], [t / first for _, t in points], "o-", ms=4, color=_colour(number), label=name)
    if floor is not None:
        axes.axhline(floor, color=_INK, lw=1, ls=":", label="reading the target's weights")
    axes.set_xscale("log", base=2)
    sizes = sorted({int(m) for curve in costs for m in curve["t_ms"]})
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.set(xlabel="tokens in a pass, M", ylabel="v(M) = T(M) / T(1)", ylim=(0, None))
    axes.legend(frameon=False, labelcolor=_INK)
    return _svg(figure, "Cost of a pass over M tokens, relative to one token")


def positions(lines: Mapping[str, Sequence[float]], title: str) -> str:
    """The marginal rate by position, a line a task."""
    if not available() or not lines:
        return ""
    figure, axes = _axes(7.2, 3.4)
    for number, (task, rates) in enumerate(lines.items()):
        style = ("o-", "s--", "^:")[number // len(_COLOURS) % 3]
        axes.plot(range(1, len(rates) + 1), rates, style, ms=4, color=_colour(number), label=task)
    depth = max((len(rates) for rates in lines.values()), default=1)
    axes.set_xticks(range(1, depth + 1))
    axes.set(xlabel="position in the draft", ylabel="accepted, of all rounds", ylim=(0, 1.02), title=title)
    axes.legend(frameon=False, labelcolor=_INK, ncols=2, fontsize=9)
    return _svg(figure, f"Acceptance by position with {title}")


def tradeoff(points: Sequence[tuple[str, float, float, float]]) -> str:
    """A drafter a bubble: cost against acceptance length, the speed-up written beside it."""
    if not available() or not points:
        return ""
    figure, axes = _axes(7.2, 3.4)
    for number, (name, c, length, speedup) in enumerate(points):
        axes.scatter([c], [length], s=60, color=_colour(number))
        axes.annotate(
            f"{name}: {speedup:.2f}x", (c, length), xytext=(7, 4), textcoords="offset points", fontsize=9, color=_INK
        )
    axes.margins(y=0.25)
    axes.set_xlim(-0.01, 1.6 * max(0.05, *(c for _, c, *_ in points)))
    axes.set(xlabel="c, a drafted token over a token of the target", ylabel="acceptance length")
    return _svg(figure, "Draft cost against acceptance length")


def predictions(pairs: Sequence[tuple[float, float, str]]) -> str:
    """Predicted against measured speed-ups; on the line they agree."""
    if not available() or not pairs:
        return ""
    figure, axes = _axes(4.6, 4.2)
    for number, name in enumerate(dict.fromkeys(name for *_, name in pairs)):
        own = [(p, m) for p, m, other in pairs if other == name]
        axes.scatter([p for p, _ in own], [m for _, m in own], s=36, color=_colour(number), label=name)
    values = [value for p, m, _ in pairs for value in (p, m)]
    low, high = min(0.9, *values) * 0.95, max(1.1, *values) * 1.05
    axes.plot([low, high], [low, high], color=_INK, lw=1, ls=":")
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="predicted speed-up", ylabel="measured speed-up")
    axes.legend(frameon=False, labelcolor=_INK, fontsize=9)
    return _svg(figure, "Predicted against measured speed-up")


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots()


def _svg(figure: Any, says: str) -> str:
    """The drawing itself, without what belongs to a file of its own; ids are unlike those of other drawings."""
    from matplotlib import rc_context

    written = io.StringIO()
    with rc_context({**_STYLE, "svg.hashsalt": says}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="([^"]*)"', lambda found: f'id="{_slug(says)}-{found[1]}"', text)
    text = re.sub(r'(xlink:href="#|url\(#)([^")]*)', lambda found: f"{found[1]}{_slug(says)}-{found[2]}", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{says.replace(chr(34), "")}"', 1)


def _slug(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower())
