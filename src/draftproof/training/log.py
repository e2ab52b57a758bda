"""What a run says of itself: one row a line of `log.csv` and `log.json`, and `curve.png`.

A row with `loss` is of a step, one with `greedy_length` of a measure on held-out text.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from .evaluate import Measured
from .files import put, write_json, write_text

_COLUMNS = (
    "step", "tokens", "supervised", "seconds", "loss", "lr", "grad_norm", "skipped", "held_out_loss", "greedy_length",
    "sampled_length",
)  # fmt: skip

_SHADES = ("#08306b", "#1b6ca8", "#4f9bcb", "#2a9d8f", "#8ab17d", "#c9a227", "#e07a3f", "#9c4f96")  # by position


class Log:
    """Rows in order; the file is written as a whole, so it never says more than the checkpoint beside it."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]]):
        self._folder = folder
        self.rows = list(rows)

    def add(self, row: dict[str, Any], measured: Measured | None = None) -> None:
        """A step's row, or a measure's."""
        if measured is not None:
            row = {**row, "held_out_loss": round(measured.loss, 5)}
            for name, found in (("greedy", measured.greedy), ("sampled", measured.sampled)):
                row[f"{name}_length"] = round(found.length, 5)
                row |= {f"{name}_{i}": round(rate, 5) for i, rate in enumerate(found.conditional, 1)}
            row["by_category"] = {name: round(found.length, 5) for name, found in measured.by_category.items()}
        self.rows.append(row)

    def write(self) -> None:
        """Raises: TrainingError: the disk is full or cannot be written."""
        columns = dict.fromkeys([*_COLUMNS, *(key for row in self.rows for key in row if key != "by_category")])
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_text(self._folder / "log.csv", text.getvalue())
        write_json(self._folder / "log.json", {"rows": self.rows})


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> bool:
    """Acceptance length, rates by position and loss against training tokens; False where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    measures = [row for row in rows if "greedy_length" in row]
    steps = [row for row in rows if "loss" in row]
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    lengths, rates, losses = figure.subplots(1, 3)
    figure.suptitle(title, fontsize=11)
    tokens = [row["tokens"] / 1e6 for row in measures]
    for name, colour in (("greedy", "#1b6ca8"), ("sampled", "#d1603d")):
        values = [row[f"{name}_length"] for row in measures]
        label = "temperature 0" if name == "greedy" else "sampled"
        lengths.plot(tokens, values, marker="o", markersize=3, color=colour, label=label)
    lengths.set(xlabel="million tokens trained on", ylabel="acceptance length, held out")
    lengths.legend(frameon=False)
    for position in range(1, 9):
        if all(f"greedy_{position}" in row for row in measures):
            values = [row[f"greedy_{position}"] for row in measures]
            rates.plot(tokens, values, color=_SHADES[position - 1], label=f"position {position}")
    rates.set(xlabel="million tokens trained on", ylabel="acceptance rate at temperature 0")
    rates.legend(frameon=False, fontsize=8)
    losses.plot([row["tokens"] / 1e6 for row in steps], [row["loss"] for row in steps], color="#b0b0b0", label="steps")
    losses.plot(tokens, [row["held_out_loss"] for row in measures], color="#1b6ca8", marker="o", markersize=3,
                label="held out, first position")  # fmt: skip
    losses.set(xlabel="million tokens trained on", ylabel="loss")
    losses.legend(frameon=False)
    for axes in (lengths, rates, losses):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    put(path, lambda partial: figure.savefig(partial, dpi=110, format="png"))
    return True
