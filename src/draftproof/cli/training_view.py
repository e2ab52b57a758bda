"""A training run on a terminal: a bar with rate, time left and the last measure; elsewhere a line now and then."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..training.loop import Progress as Where

_EVERY = 30.0  # seconds between lines where there is no terminal


class TrainingView:
    """Called by the loop after logged steps and measures."""

    def __init__(self, console: Console, kind: str):
        self._console, self._kind = console, kind
        self._bar: Progress | None = None
        self._last = -math.inf

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (TextColumn(f"training {self._kind}"), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console, refresh_per_second=2)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        self._console.print(line)

    def update(self, where: Where) -> None:
        """A measure is always shown; a step in the bar, or every half minute."""
        if where.measured is not None:
            greedy, sampled = where.measured.greedy, where.measured.sampled
            rates = " ".join(f"{rate:.2f}" for rate in greedy.conditional)
            self._console.print(
                f"step {where.step}: acceptance length {greedy.length:.3f} at temperature 0 ({rates}), "
                f"{sampled.length:.3f} sampled, held-out loss {where.measured.loss:.4f}"
            )
            return
        line = (
            f"step {where.step} of {where.num_steps}, loss {where.loss:.4f}, {where.tokens:,} tokens, "
            f"{where.tokens_per_second:.0f} tokens/s (target {where.teacher_share:.0%}), "
            f"{_time(where.seconds_left)} left"
        )
        if self._bar is not None:
            if not self._bar.tasks:
                self._bar.add_task(line, total=where.num_steps)
            self._bar.update(self._bar.task_ids[0], completed=where.step, description=line)
        elif time.monotonic() - self._last >= _EVERY or where.step == where.num_steps:
            self._last = time.monotonic()
            self._console.print(line)


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
