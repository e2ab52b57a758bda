"""What the parts of a round take here, measured once when the models are loaded, in less than three seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from ..costs import Calibration, Curve
from ..interfaces import Drafter
from ..models.cached_lm import CachedLM
from ..models.timing import pass_seconds, sample_text
from ..params import SamplingParams
from ..sampling import SeededSource
from ..types import DraftRequest

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXT, _LONG = 64, 1024  # tokens in the cache
_REPEATS = 3
_WORDS, _TIMES = 8, 5  # the text that drafters are timed with: so many tokens, so often, for look-ups to find something
_MOST_NEXT = 1.5  # in a chain, a further pass over the first; more is another process that took the CPU meanwhile, and
# believed it would keep drafts at one token, by which it cannot be put right
_TARGET_SECONDS, _CONTEXT_SECONDS, _DRAFT_SECONDS = 1.4, 0.4, 0.6


def target_costs(lm: CachedLM, most_tokens: int, *, clock: Callable[[], float] = time.perf_counter) -> Calibration:
    """T(M) up to `most_tokens` (or 64, beyond which lines go on), and what a longer context adds.

    Args:
        lm: the target, with a free row.
    """
    with lm.lock:
        largest = max(1, min(most_tokens, _SIZES[-1], lm.max_length - 1))
        sizes = sorted({size for size in _SIZES if size < largest} | {largest})
        context = min(_CONTEXT, lm.max_length - largest)
        pass_seconds(lm, [1], context, 0, filled=False)  # the first pass of all fetches the weights
        times = pass_seconds(lm, sizes, context, _REPEATS, filled=False, limit=_TARGET_SECONDS, clock=clock)
        known = {size: statistics.median(taken) for size, taken in times.items() if taken}
        size = max(m for m in known if m <= 8)
        further = min(_LONG, lm.max_length - size) - context
        per_context = 0.0
        if further > 0:
            longer = pass_seconds(lm, [size], context + further, 2, filled=False, limit=_CONTEXT_SECONDS, clock=clock)
            if longer[size]:
                per_context = max(0.0, min(longer[size]) - known[size]) / (size * further)
    return Calibration(Curve.rising(known), context, per_context)


def with_drafter(
    costs: Calibration,
    lm: CachedLM,
    drafter: Drafter,
    max_draft: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """The same with what drafting takes: a text is drafted for after its first words (untimed), when the rest of it is
    unread, and then read, short and long.
    """
    text = sample_text(min(lm.vocab_size, drafter_vocabulary(drafter, lm)), _WORDS) * _TIMES
    text = text[: max(1, lm.max_length - max_draft - 1)]
    known = min(_WORDS, len(text))
    layers: dict[int, int] = {}
    times: dict[int, list[float]] = {}
    with lm.lock:
        row = lm.open(text[:-1])
        try:
            lm.prefill(row, text[:-1])
            source, params, states = SeededSource(0), SamplingParams(), lm.features(row)
            request = DraftRequest(-1, tuple(text), len(text), params, source, 1, states, taps=lm.taps, row=row)
            begun = clock()
            words = None if states is None else states[: known - 1]
            drafter.propose([replace(request, tokens=tuple(text[:known]), num_prompt=known, features=words)])
            started = clock()
            drafter.propose([request])
            unread = clock() - started
            for _ in range(_REPEATS):
                for nodes in sorted({1, max_draft}):
                    started = clock()
                    (draft,) = drafter.propose([replace(request, max_nodes=nodes)])
                    times.setdefault(nodes, []).append(clock() - started)
                    layers[nodes] = max(draft.depths, default=0)
                if clock() - begun > _DRAFT_SECONDS:
                    break
        finally:
            drafter.release(-1)
            lm.rewind(row, ())  # some drafters write into the row
            lm.free(row)
    first = statistics.median(times[1])
    more = layers[max_draft] - max(1, layers[1])
    following = max(0.0, statistics.median(times[max_draft]) - first) / more if more > 0 else first
    if draft.is_chain:
        following = min(following, _MOST_NEXT * first)
    reading = max(0.0, unread - first) / max(1, len(text) - known)
    return replace(costs, draft_first=first, draft_next=following, draft_reading=reading)


def drafter_vocabulary(drafter: Drafter, lm: CachedLM) -> int:
    """Ids that the drafter can be given: those of its own model, if it has one, and the target's."""
    return int(getattr(getattr(drafter, "lm", None), "vocab_size", lm.vocab_size))
