"""One self-contained page of what was measured and what follows from it, for people.

The verdict comes first. Every plot has its figures as a table behind it, so the page says the same without matplotlib,
on paper and to a screen reader. It is made from the JSON documents of `bench` and `advise`, so a part that is missing
there (no costs, one prompt, an interrupted run) is missing here, with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from . import figures

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Figures behind a plot; the first column names the rows."""

    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Section:
    """A heading, what can be seen, the plot (SVG, or empty) and its table; `missing` says why there is nothing."""

    title: str
    text: str = ""
    plots: tuple[str, ...] = ()
    table: Table | None = None
    missing: str = ""


def render(content: Mapping[str, Any]) -> str:
    """The page.

    Args:
        content: of a `bench` or `advise` document, with `costs` as of `bench --costs` and `texts` (task, drafter and
            pieces of text that were drafted and accepted or not) where there are any.
    """
    from jinja2 import Environment

    source = files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    rows = list(content.get("rows") or content.get("measured") or [])
    config = dict(content.get("config", {}))
    return template.render(
        target=config.get("target", ""),
        verdict=_verdict(content, rows),
        interrupted=bool(config.get("interrupted")),
        recommended=content.get("recommended") or {},
        sections=[
            _speedup(rows),
            _costs(content.get("costs") or []),
            _acceptance(rows),
            _tradeoff(rows, content.get("costs") or []),
            _prediction(content),
            _all_rows(rows),
        ],
        texts=[_marked(text) for text in content.get("texts") or []],
        config=_flat(config),
        machine=_flat(content.get("machine", {})),
        plots=figures.available(),
        version=version("draftproof"),
    )


def label(row: Mapping[str, Any]) -> str:
    """The drafter and how it drafts."""
    draft = row.get("draft") or ""
    return f"{row['drafter']} ({draft})" if draft and row["drafter"] != "none" else str(row["drafter"])


def best(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The drafted row with the highest speed-up."""
    drafted = [row for row in rows if row["drafter"] != "none"]
    return max(drafted, key=lambda row: row["speedup"], default=None)


def _verdict(content: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    if content.get("verdict"):
        return {"headline": str(content["verdict"]).capitalize(), "reason": str(content.get("reason", ""))}
    top = best(rows)
    if top is None:
        return {"headline": "Nothing was compared", "reason": "No drafter was measured beside plain decoding."}
    worst = min((row for row in rows if row["drafter"] != "none"), key=lambda row: row["speedup"])
    headline = f"{label(top)}: {top['speedup']:.2f} times the speed on {top['task']}"
    if top["speedup"] <= 1.02:
        headline = "No drafter was faster than plain decoding"
    return {
        "headline": headline,
        "reason": f"At the other end: {label(worst)} on {worst['task']}, batch "
        f"{worst['batch']}: {worst['speedup']:.2f}.",
    }


def _speedup(rows: Sequence[Mapping[str, Any]]) -> Section:
    title = "Speed-up by task and batch size"
    drafted = [row for row in rows if row["drafter"] != "none"]
    if not drafted:
        return Section(title, missing="No drafter was measured.")
    tasks, batches = list(dict.fromkeys(r["task"] for r in drafted)), sorted({r["batch"] for r in drafted})
    arms = list(dict.fromkeys((label(r), _temperature(r)) for r in drafted))
    plots, listed = [], []
    for arm, temperature in arms:
        grid = {(r["task"], r["batch"]): r for r in drafted if (label(r), _temperature(r)) == (arm, temperature)}
        name = arm if len({t for _, t in arms}) == 1 else f"{arm}, temperature {temperature:g}"
        values = [[grid[t, b]["speedup"] if (t, b) in grid else None for b in batches] for t in tasks]
        plots.append(figures.heat_map(values, tasks, [f"batch {b}" for b in batches], name))
        for task in tasks:
            cells: list[Cell] = [name, task]
            for batch in batches:
                row = grid.get((task, batch))
                cells.append(None if row is None else _with_interval(row["speedup"], row, "speedup"))
            listed.append(cells)
    table = Table(["drafter", "task", *(f"batch {b}" for b in batches)], listed)
    return Section(
        title,
        "Tokens per second over those of plain decoding in the same run; 1 is as fast. Behind the plot with 95 % "
        "intervals over prompts, where there are several.",
        tuple(filter(None, plots)),
        table,
    )


def _costs(costs: Sequence[Mapping[str, Any]]) -> Section:
    title = "What a pass costs"
    if not costs:
        return Section(title, missing="Costs were not measured in this run: draftproof bench --costs does.")
    sizes = sorted({int(m) for curve in costs for m in curve["t_ms"]})
    names = [f"{curve['model']} ({curve['role']})" for curve in costs]
    rows: list[list[Cell]] = []
    for size in sizes:
        cells: list[Cell] = [size]
        for curve in costs:
            t = curve["t_ms"].get(str(size))
            first = curve["t_ms"].get("1")
            cells += [None, None] if t is None else [f"{t:.2f}", f"{t / first:.2f}" if first else None]
        rows.append(cells)
    rows.append(["floor", *(cell for curve in costs for cell in (f"{curve['floor_ms']:.2f}", None))])
    titles = ["M", *(cell for name in names for cell in (f"{name}: T(M) ms", "v(M)"))]
    target = costs[0]
    floor = target["floor_ms"] / target["t_ms"]["1"] if target["t_ms"].get("1") else None
    return Section(
        title,
        "v(M) is the time of a pass over M tokens over that of one token: speculation pays because it stays near 1 "
        f"while M tokens share one reading of the weights. The floor is that reading alone: {target['floor_ms']:.1f} "
        "ms for the target.",
        tuple(filter(None, [figures.cost_curves(costs, names, floor)])),
        Table(titles, rows),
    )


def _acceptance(rows: Sequence[Mapping[str, Any]]) -> Section:
    title = "Acceptance by position and task"
    known = [row for row in rows if row["drafter"] != "none" and row.get("marginal")]
    if not known:
        return Section(title, missing="Nothing was drafted.")
    smallest = min(row["batch"] for row in known)
    known = [row for row in known if row["batch"] == smallest]
    arms = list(dict.fromkeys(label(row) for row in known))
    plots = []
    for arm in arms:
        lines = {row["task"]: row["marginal"] for row in known if label(row) == arm}
        plots.append(figures.positions(lines, arm))
    depth = max(len(row["marginal"]) for row in known)
    listed: list[list[Cell]] = []
    for row in known:
        for name in ("marginal", "conditional"):
            values = list(row.get(name) or [])
            cells = [f"{value:.2f}" for value in values] + [None] * (depth - len(values))
            listed.append([label(row), row["task"], name, f"{row['acceptance_length']:.2f}", *cells])
    return Section(
        title,
        "Marginal: in which share of the rounds the guess at a position was accepted. Conditional: given that the one "
        "before it was. The acceptance length counts the residual or bonus token; plain decoding has 1.",
        tuple(filter(None, plots)),
        Table(["drafter", "task", "rate", "length", *(f"at {i + 1}" for i in range(depth))], listed),
    )


def _tradeoff(rows: Sequence[Mapping[str, Any]], costs: Sequence[Mapping[str, Any]]) -> Section:
    title = "What a draft costs and what it brings"
    cost = {str(curve["model"]): curve.get("c") for curve in costs if curve["role"] == "drafter"}
    drafted = [row for row in rows if row["drafter"] != "none"]
    if not drafted:
        return Section(title, missing="No drafter was measured.")
    smallest = min(row["batch"] for row in drafted)
    points = []
    for arm in dict.fromkeys(label(row) for row in drafted):
        own = [row for row in drafted if label(row) == arm and row["batch"] == smallest]
        if own:
            c = cost.get(str(own[0]["drafter"]).removeprefix("model:"))
            length, speedup = (sum(row[key] for row in own) / len(own) for key in ("acceptance_length", "speedup"))
            points.append((arm, c or 0.0, length, speedup))
    return Section(
        title,
        "A larger draft model is accepted more often and takes longer; the best one lies between. c is the time of a "
        "drafted token over that of the target's; means over tasks.",
        tuple(filter(None, [figures.tradeoff(points)])),
        Table(
            ["drafter", "c", "acceptance length", "speed-up"],
            [[arm, f"{c:.3f}", f"{length:.2f}", f"{speedup:.2f}"] for arm, c, length, speedup in points],
        ),
    )


def _prediction(content: Mapping[str, Any]) -> Section:
    title = "Predicted beside measured"
    measured = {_key(row): row for row in content.get("measured") or []}
    predicted = list(content.get("predicted") or [])
    if not predicted:
        return Section(title, missing="Nothing was predicted: draftproof advise does.")
    pairs = [(row, measured[_key(row)]) for row in predicted if _key(row) in measured]
    rows: list[list[Cell]] = []
    for row in predicted:
        found = measured.get(_key(row))
        rows.append(
            [
                label(row),
                row["batch"],
                _with_interval(row["speedup"], row, "speedup"),
                None if found is None else _with_interval(found["speedup"], found, "speedup"),
                None if found is None else f"{row['speedup'] / found['speedup'] - 1:+.1%}",
            ]
        )
    return Section(
        title,
        "From the costs of passes and the acceptance of one set of prompts, for another set. What was not run has no "
        "measured speed-up.",
        tuple(filter(None, [figures.predictions([(p["speedup"], m["speedup"], label(p)) for p, m in pairs])])),
        Table(["drafter", "batch", "predicted", "measured", "error"], rows),
    )


def _all_rows(rows: Sequence[Mapping[str, Any]]) -> Section:
    title = "Every figure"
    if not rows:
        return Section(title, missing="Nothing was measured.")
    listed: list[list[Cell]] = []
    for row in rows:
        identical = {True: "yes", False: "no", None: "sampled"}[row.get("identical")]
        listed.append(
            [
                row["task"],
                row["batch"],
                label(row),
                f"{_temperature(row):g}",
                f"{row['tok_s']:.1f}",
                f"{row.get('goodput', 0.0):.1f}",
                f"{row['speedup']:.2f}",
                f"{row['acceptance_length']:.2f}",
                f"{row['acceptance_rate']:.0%}",
                f"{row['ttft_ms']:.0f}",
                f"{row['tpot_ms']:.1f}",
                identical,
            ]
        )
    titles = [
        "task",
        "batch",
        "drafter",
        "temperature",
        "tokens/s",
        "goodput",
        "speed-up",
        "length",
        "accepted",
        "first token ms",
        "per token ms",
        "identical",
    ]
    return Section(title, table=Table(titles, listed))


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["batch"], row["drafter"], row.get("draft") or ""


def _temperature(row: Mapping[str, Any]) -> float:
    return float(row.get("temperature") or 0.0)


def _with_interval(value: float, row: Mapping[str, Any], name: str) -> str:
    interval = (row.get("intervals") or {}).get(name)
    return f"{value:.2f}" if not interval else f"{value:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"


def _marked(text: Mapping[str, Any]) -> dict[str, str]:
    """A text whose drafted and accepted tokens are marked; neighbours share a mark."""
    parts: list[tuple[bool, str]] = []
    for piece, accepted in text["pieces"]:
        if parts and parts[-1][0] == accepted:
            parts[-1] = (accepted, parts[-1][1] + piece)
        else:
            parts.append((accepted, piece))
    html = "".join(f"<mark>{escape(part)}</mark>" if accepted else escape(part) for accepted, part in parts)
    return {"title": f"{text['task']} with {label(text)}", "html": html}


def _flat(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values for people, one level deep."""
    listed = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            listed += [(f"{name} {inner}", str(v)) for inner, v in value.items() if v not in (None, [], (), {}, "")]
        else:
            listed.append((name, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)))
    return listed
