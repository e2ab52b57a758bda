"""Who runs: first come, first served, at most `max_batch` at a time; joining and leaving between rounds."""

from __future__ import annotations

from collections import deque

from .output import Output


class Scheduler:
    """Waiting and running sequences, by id in order of arrival."""

    def __init__(self, max_batch: int):
        self.max_batch = max_batch
        self.waiting: deque[Output] = deque()
        self.running: list[Output] = []

    def add(self, output: Output) -> None:
        self.waiting.append(output)

    def admit(self) -> Output | None:
        """Move the next waiting sequence to the running ones, if there is room; returns it."""
        if not self.waiting or len(self.running) >= self.max_batch:
            return None
        self.running.append(self.waiting.popleft())
        return self.running[-1]

    def remove(self, sequence_id: int) -> Output | None:
        """Take a sequence out, wherever it is; returns it if it was known."""
        for group in (self.running, self.waiting):
            for output in group:
                if output.sequence.id == sequence_id:
                    group.remove(output)
                    return output
        return None

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running
