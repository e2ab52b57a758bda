"""Where a round's time goes: model passes, and everything else.

The engine's parts are wrapped while it runs, its code stays as it is. At any moment the time belongs to exactly one
part, so the parts add up to the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..engine.engine import Engine, Prompt
from ..models.timing import device_of, finish
from ..types import SamplingParams
from .run import WARM_UP_TOKENS, Progress, encoded, forget, groups

PARTS = ("draft passes", "drafting", "target passes", "scoring", "sampling", "verification", "bookkeeping")
PASSES = ("draft passes", "target passes")


@dataclass(frozen=True)
class Profile:
    """A drafter's rounds at one batch size.

    Fields:
        seconds: part to its time. "drafting" is the drafter's work around its model's passes (laws, draws),
            "scoring" the target's around its own, "sampling" the target's laws from logits, "verification" the
            rule, "bookkeeping" the rest: cache moves, committing, text.
        prefill_seconds: prompts, of the target and of a draft model; no part of a round.
    """

    drafter: str
    max_draft: int
    batch: int
    temperature: float
    num_rounds: int
    num_tokens: int
    seconds: dict[str, float]
    prefill_seconds: float

    @property
    def round_seconds(self) -> float:
        return sum(self.seconds.values()) / max(1, self.num_rounds)

    @property
    def overhead(self) -> float:
        """Share of a round that is no model pass."""
        whole = sum(self.seconds.values())
        return sum(s for part, s in self.seconds.items() if part not in PASSES) / whole if whole else 0.0

    def to_dict(self) -> dict[str, Any]:
        whole = sum(self.seconds.values()) or 1.0
        return {
            "drafter": self.drafter,
            "max_draft": self.max_draft,
            "batch": self.batch,
            "temperature": self.temperature,
            "rounds": self.num_rounds,
            "tokens": self.num_tokens,
            "round_ms": 1e3 * self.round_seconds,
            "parts": {
                part: {"ms": 1e3 * s / max(1, self.num_rounds), "percent": 100 * s / whole}
                for part, s in self.seconds.items()
            },
            "overhead_percent": 100 * self.overhead,
            "prefill_ms": 1e3 * self.prefill_seconds,
        }


def profile(
    engine: Engine,
    prompts: Sequence[Prompt],
    batch: int = 1,
    params: SamplingParams | None = None,
    progress: Progress | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Run the prompts in groups of `batch`, each cold, after an untimed warm-up.

    Args:
        params: greedy if None.
        progress: called before every group.
        clock: seconds.
    """
    params = params or SamplingParams(temperature=0)
    name = engine.drafter.name
    ids = [encoded(engine, prompt) for prompt in prompts]
    engine.generate(
        groups(ids, batch)[0], SamplingParams(temperature=0, max_new_tokens=WARM_UP_TOKENS, ignore_eos=True)
    )
    watch = Stopwatch(clock)
    rounds = tokens = 0
    with wrapped(engine, watch) as count:
        for number, group in enumerate(groups(ids, batch)):
            if progress:
                progress(number, -(-len(ids) // batch), f"profile of {name}")
            forget(engine)
            tokens += sum(result.stats.num_tokens for result in engine.generate(group, params))
        rounds = count[0]
    return Profile(
        drafter=name,
        max_draft=0 if name == "none" else engine.max_draft,
        batch=batch,
        temperature=params.temperature,
        num_rounds=rounds,
        num_tokens=tokens,
        seconds={part: watch.seconds.get(part, 0.0) for part in PARTS},
        prefill_seconds=watch.seconds.get("prefill", 0.0),
    )


class Stopwatch:
    """Gives all time to one part at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._since = clock()
        self.part = "outside"
        self.seconds: dict[str, float] = {}

    def switch(self, part: str) -> str:
        """What has passed belongs to the part so far, what comes to `part`. Returns the part so far."""
        now, before = self._clock(), self.part
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._since, self.part = now, part
        return before

    def timed(self, function: Callable[..., Any], part: str, then: Callable[[], str] | None = None) -> Any:
        """The function with its time given to `part`, and what follows to `then()` (the part before, if None)."""

        def run(*arguments: Any, **options: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*arguments, **options)
            finally:
                self.switch(then() if then else before)

        return run


class _Stand:
    """An object with some of its attributes replaced."""

    def __init__(self, inner: Any, **replaced: Any):
        self.__dict__.update(replaced, _inner=inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Pass:
    """A forward whose time is that of passes, except while a prompt is read."""

    def __init__(self, forward: Any, watch: Stopwatch, part: str):
        self._forward, self._watch, self._part = forward, watch, part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        before = self._watch.part
        self._watch.switch("prefill" if before == "prefill" else self._part)
        try:
            output = self._forward(*arguments, **options)
            finish(device_of(self._forward))
            return output
        finally:
            self._watch.switch(before)


@contextmanager
def wrapped(engine: Engine, watch: Stopwatch) -> Generator[list[int]]:
    """The engine with its parts timed; yields a list whose one entry counts the rounds.

    Between the target's scores (or a row's `keep`, while more rows wait) and the verifier, laws are made of logits.
    """
    target, drafter, verify, step = engine.target, engine.drafter, engine.verify, engine.step
    rounds, waiting = [0], [0]

    def score(rows: Sequence[int], *arguments: Any) -> Any:
        waiting[0] = len(rows)
        rounds[0] += 1
        return target.score(rows, *arguments)

    def next_row() -> str:
        waiting[0] -= 1
        return "sampling" if waiting[0] > 0 else "bookkeeping"

    models = [
        (part, label)
        for part, label in ((target, PASSES[1]), (getattr(drafter, "lm", None), PASSES[0]))
        if hasattr(part, "forward")
    ]
    forwards = [part.forward for part, _ in models]  # type: ignore[union-attr]
    draft_prefill = getattr(getattr(drafter, "lm", None), "prefill", None)
    engine.target = _Stand(
        target,
        open=watch.timed(target.open, "prefill"),
        prefill=watch.timed(target.prefill, "prefill"),
        score=watch.timed(score, "scoring", lambda: "sampling"),
        keep=watch.timed(target.keep, "bookkeeping", next_row),
    )
    engine.drafter = _Stand(drafter, propose=watch.timed(drafter.propose, "drafting"))
    engine.verify = watch.timed(verify, "verification", lambda: "bookkeeping")
    engine.step = watch.timed(step, "bookkeeping")  # type: ignore[method-assign]
    for (part, label), forward in zip(models, forwards):
        part.forward = _Pass(forward, watch, label)  # type: ignore[union-attr]
    if draft_prefill:
        drafter.lm.prefill = watch.timed(draft_prefill, "prefill")  # type: ignore[attr-defined]
    try:
        yield rounds
    finally:
        engine.target, engine.drafter, engine.verify = target, drafter, verify
        del engine.step
        for (part, _), forward in zip(models, forwards):
            part.forward = forward  # type: ignore[union-attr]
        if draft_prefill:
            del drafter.lm.prefill  # type: ignore[attr-defined]
