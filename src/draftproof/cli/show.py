"""What people see: coloured tokens and one closing line on standard output, progress on standard error.

Accepted drafted tokens are green. Colour and animation appear on terminals only; NO_COLOR is honoured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn
from rich.text import Text

from ..types import GenerationStats, StreamEvent

if TYPE_CHECKING:
    from typing_extensions import Self

ACCEPTED = "green"


def out() -> Console:
    """Standard output; where that is no terminal, tables are as wide as they need to be."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)


def err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """A model's text without the control characters that would steer the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() or ord(c) > 0x9F else "\N{REPLACEMENT CHARACTER}" for c in text)


def tokens(console: Console, event: StreamEvent) -> None:
    """The text of one round, the accepted drafted tokens green."""
    line = Text()
    for piece in event.pieces:
        line.append(printable(piece.text), style=ACCEPTED if piece.accepted else "")
    console.print(line if event.pieces else Text(printable(event.text)), end="")
    console.file.flush()


def closing(num_tokens: int, seconds: float, num_rounds: int, num_accepted: int) -> str:
    """`41.2 tok/s · acceptance length 2.31 · 56 % of the tokens were drafted and accepted`."""
    if not num_tokens:
        return "no new tokens"
    length = num_tokens / num_rounds if num_rounds else 0.0
    return (
        f"{num_tokens} tokens · {rate(num_tokens, seconds):.1f} tok/s · acceptance length {length:.2f} · "
        f"{num_accepted / num_tokens:.0%} of the tokens were drafted and accepted"
    )


def rate(num_tokens: int, seconds: float) -> float:
    return num_tokens / seconds if seconds > 0 else 0.0


class Reply:
    """One streamed continuation: passes the events on and counts what came."""

    def __init__(self, events: Iterable[StreamEvent]):
        self._events = events
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: str = "abort"
        self.stats = GenerationStats()

    def __iter__(self) -> Iterator[StreamEvent]:
        started = time.perf_counter()
        for event in self._events:
            self.text += event.text
            self.token_ids += event.token_ids
            self.finish_reason = event.finish_reason or self.finish_reason
            self.stats.num_tokens += len(event.token_ids)
            self.stats.num_rounds += bool(event.token_ids)
            self.stats.num_accepted += event.num_accepted
            self.stats.total_seconds = time.perf_counter() - started
            if event.stats is not None:
                self.stats = event.stats
            yield event

    def close(self) -> None:
        """Abort the continuation; what has come stays."""
        if isinstance(self._events, Generator):
            self._events.close()

    def closing(self) -> str:
        stats = self.stats
        return closing(stats.num_tokens, stats.total_seconds, stats.num_rounds, stats.num_accepted)


class Status:
    """One line on standard error while something takes time; nothing where that is no terminal."""

    def __init__(self, text: str):
        self._console = err()
        self._status = (
            self._console.status(text, refresh_per_second=2)  # seldom, so as not to disturb what is measured
            if self._console.is_terminal
            else None
        )

    def update(self, done: int, total: int, text: str) -> None:
        """What is being done now, as one of `total` things."""
        if self._status:
            self._status.update(f"{text} ({done + 1} of {total})")

    @contextmanager
    def hidden(self) -> Generator[None]:
        """Out of the way while something is printed."""
        if self._status:
            self._status.stop()
        yield
        if self._status:
            self._status.start()

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()


class Loading(Status):
    """A status line while models are loaded, and a bar (a line per tenth, if that is no terminal) while one is fetched.

    Called with the bytes done and the bytes in total; silent about models that are here already.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self._bar: Progress | None = None
        self._total = -1
        self._started = 0.0
        self._next_tenth = 0

    def __exit__(self, *_: object) -> None:
        self._end_bar()
        super().__exit__()

    def __call__(self, done: int, total: int) -> None:
        if total != self._total:
            if done >= total:
                return  # it lay in the cache
            self._begin(done, total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[-1], completed=done)
            if done >= total:
                self._end_bar()
        elif self._status is None and total and done * 10 >= self._next_tenth * total:
            self._next_tenth = done * 10 // total + 1
            speed = rate(done, time.perf_counter() - self._started) / 1e6
            self._console.print(f"fetching the model: {done / 1e6:.0f} of {total / 1e6:.0f} MB, {speed:.1f} MB/s")

    def _begin(self, done: int, total: int) -> None:
        self._total, self._started, self._next_tenth = total, time.perf_counter(), 1
        if self._status is None:
            self._console.print(f"fetching the model: {total / 1e6:.0f} MB")
            return
        self._status.stop()
        self._end_bar()
        columns = (TextColumn("fetching the model"), BarColumn(), DownloadColumn(), SpeedColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
        self._bar.add_task("", total=total, completed=done)
        self._bar.start()

    def _end_bar(self) -> None:
        """Back to the status line: what was fetched is now unpacked and loaded."""
        if self._bar is not None and self._status is not None:
            self._bar.stop()
            self._bar = None
            self._status.start()


def is_terminal() -> bool:
    return sys.stdout.isatty()
