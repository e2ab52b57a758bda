"""Training text in units: from whatever source, deduplicated, without what must not be trained on, resumable.

A source makes its n-th unit from the number and its settings alone; what earlier units hold already is dropped here.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .corpus import CorpusFolder, Sample, count, read_unit

_RUN = 13  # words


@dataclass(frozen=True)
class Made:
    """A sample, and the text it is of."""

    sample: Sample
    text: str


class Source(Protocol):
    """Where text comes from. name: of its units. settings: on which they depend."""

    name: str
    settings: dict[str, Any]

    def enough(self, number: int, num_tokens: int) -> bool:
        """Whether the units before `number`, with `num_tokens`, are all that is wanted."""
        ...

    def make(self, number: int) -> list[Made]:
        """The unit's texts."""
        ...


@dataclass(frozen=True)
class MakingProgress:
    """One unit more: `fresh` tokens were made by this process in `seconds`."""

    source: str
    units: int
    samples: int
    tokens: int
    answer_tokens: int
    fresh: int
    seconds: float


class Excluded:
    """Prompts that must not be learned from: a text that shares 13 words in a row with one of them is left out.

    A shorter prompt counts as a whole, one of fewer than five words only where the text is nothing else.
    """

    def __init__(self, prompts: Iterable[str]):
        self._runs: dict[int, set[tuple[str, ...]]] = {}
        self._short: set[tuple[str, ...]] = set()
        for prompt in prompts:
            words = _words(prompt)
            if len(words) < 5:
                self._short.add(words)
                continue
            size = min(_RUN, len(words))
            for start in range(len(words) - size + 1):
                self._runs.setdefault(size, set()).add(words[start : start + size])

    def __contains__(self, text: str) -> bool:
        words = _words(text)
        return words in self._short or any(
            words[start : start + size] in runs
            for size, runs in self._runs.items()
            for start in range(len(words) - size + 1)
        )


def make(
    folder: CorpusFolder,
    sources: Sequence[Source],
    excluded: Excluded,
    report: Callable[[MakingProgress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Make what is missing of every source; returns the counts, which the folder's manifest then states.

    Raises:
        TrainingError: the disk is full or cannot be written; units made so far stay.
    """
    counts: dict[str, Any] = {}
    everything: list[Sample] = []
    for source in sources:
        known: set[str] = {s.key for s in everything}
        samples: list[Sample] = []
        dropped = {"duplicates": 0, "excluded": 0}
        fresh, seconds, number = 0, 0.0, 0
        while not source.enough(number, sum(len(s.ids) for s in samples)):
            path = folder.path(source.name, number)
            if path.exists():
                unit, about = read_unit(path)
            else:
                started = time.perf_counter()
                unit, about = _fresh(source.make(number), known, excluded)
                folder.write(source.name, number, unit, about)
                fresh, seconds = fresh + sum(len(s.ids) for s in unit), seconds + time.perf_counter() - started
            known |= {s.key for s in unit}
            samples += unit
            dropped = {name: dropped[name] + about[name] for name in dropped}
            number += 1
            tokens, answers = sum(len(s.ids) for s in samples), sum(s.num_answer for s in samples)
            report(MakingProgress(source.name, number, len(samples), tokens, answers, fresh, seconds))
        counts[source.name] = {"units": number, **count(samples), **dropped}
        everything += samples
    folder.finish(counts)
    return counts


def key_of(text: str) -> str:
    """What two texts that are the same but for case and space share."""
    return hashlib.sha256(" ".join(text.lower().split()).encode()).hexdigest()[:16]


def _fresh(made: Sequence[Made], known: set[str], excluded: Excluded) -> tuple[list[Sample], dict[str, int]]:
    kept: dict[str, Sample] = {}
    dropped = {"duplicates": 0, "excluded": 0}
    for one in made:
        key = one.sample.key
        if key in known or key in kept:
            dropped["duplicates"] += 1
        elif one.text in excluded:
            dropped["excluded"] += 1
        else:
            kept[key] = one.sample
    return list(kept.values()), dropped


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))
