"""A report as data: for the terminal, and as one self-contained HTML page (light, dark, printable)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from .verdict import Verdict


@dataclass(frozen=True)
class Histogram:
    """Bars that ought to be level.

    Fields:
        title: what is counted.
        counts: of equally likely cells.
    """

    title: str
    counts: Sequence[int]

    @property
    def bars(self) -> list[float]:
        """Heights as shares of the highest."""
        highest = max(self.counts, default=0) or 1
        return [count / highest for count in self.counts]

    @property
    def level(self) -> float:
        """The expected height, on the same scale."""
        return sum(self.counts) / len(self.counts) / (max(self.counts) or 1) if self.counts else 0.0


@dataclass(frozen=True)
class Section:
    """One table with words around it.

    Fields:
        title, text: a heading and a paragraph of what the table shows and how to read it.
        columns, rows: cells are shown as they are; True and False as yes and no.
        num_words: the first so many columns hold words, the rest figures.
    """

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    num_words: int = 1
    histograms: Sequence[Histogram] = ()


@dataclass(frozen=True)
class Report:
    """Everything a reader needs to doubt the verdict properly.

    Fields:
        title: what was audited.
        facts: name and value of what it was run on and with.
        sections: the evidence.
        limits: what the audit cannot conclude, one sentence each.
    """

    title: str
    verdict: Verdict
    facts: dict[str, Any] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    limits: Sequence[str] = ()

    def html(self) -> str:
        """The page."""
        from jinja2 import Environment

        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.filters["cell"] = shown
        template = files("draftproof.audit").joinpath("report.html.j2").read_text(encoding="utf-8")
        made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        return environment.from_string(template).render(report=self, made=made, version=version("draftproof"))


def shown(value: Any) -> str:
    """One cell as text: floats to three digits, small ones with an exponent."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value and (abs(value) < 1e-3 or abs(value) >= 1e5) and math.isfinite(value):
            return f"{value:.1e}"
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
