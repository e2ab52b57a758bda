"""What every audit ends with: tables, the verdict in one line, the JSON document, the page, the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..document import Document

if TYPE_CHECKING:
    from ...audit.report import Report, Section

HtmlFile = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write the report as one self-contained page.")
]
COLOURS = {"lossless": "green", "not lossless": "bold red", "undecided": "yellow"}


class Outputs:
    """The files an audit writes, checked before it starts.

    Raises:
        OptionError: a path that cannot be written.
    """

    def __init__(self, json: str | None, html: str | None):
        self.json, self.html = Document(json), Document(html, "--html")

    def close(self, report: Report, content: dict[str, Any]) -> None:
        """Print and write everything.

        Raises:
            typer.Exit: with status 1, unless the verdict is lossless.
        """
        from .. import show

        console = show.out()
        for section in report.sections:
            if section.rows:
                console.print(_table(section))
        for limit in report.limits:
            console.print(Text(limit, style="dim"))
        console.print(Text(report.verdict.sentence, style=COLOURS[report.verdict.kind]))
        if self.html:
            self.html.write_text(report.html())
        self.json.write(content)
        if report.verdict.kind != "lossless":
            raise typer.Exit(1)


def _table(section: Section) -> Table:
    from ...audit.report import shown

    table = Table(title=Text(section.title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(section.columns):
        words = number < section.num_words
        table.add_column(Text(column), justify="left" if words else "right", overflow="fold")
    for row in section.rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table
