"""How long passes of a loaded model take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .cached_lm import CachedLM
from .masks import Block


def pass_seconds(
    lm: CachedLM,
    sizes: Sequence[int],
    context: int,
    repeats: int,
    *,
    filled: bool = True,
    limit: float | None = None,
    before: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, list[float]]:
    """Times of passes over so many tokens of one row, all their logits wanted; each size's first, untimed, is left out.

    The sizes take turns, so a machine that slows down slows all of them. What the row held is lost.

    Args:
        lm: a row of it must be free.
        sizes: numbers of tokens.
        context: tokens in the cache before each pass.
        repeats: timed passes of each size.
        filled: read a text of that length first; without, the cache is what it happens to be, which takes as long.
        limit: begin no pass that would probably end more seconds than this after the start; some sizes then have fewer
            times, or only the first, or none.
        before: called with the number of the round of passes that begins.
        clock: seconds.
    """
    text = sample_text(lm.vocab_size, context + max(sizes))
    times: dict[int, list[float]] = {size: [] for size in sizes}
    begun = clock()
    row = lm.open(())
    try:
        if filled:
            lm.prefill(row, text[:context])
        for repeat in range(repeats + 1):
            if before:
                before(repeat)
            for size in sizes:
                if limit is not None and clock() - begun + max(times[size], default=0.0) > limit:
                    continue
                block = Block(row, context, text[context : context + size])
                started = clock()
                lm.forward([block], "all")
                finish(device_of(lm.forward))
                times[size].append(clock() - started)
    finally:
        lm.free(row)
    return {size: taken[1:] or taken for size, taken in times.items()}


def sample_text(vocab_size: int, num_tokens: int) -> list[int]:
    """Some ids, the same every time."""
    return [(11 + 37 * i * i) % vocab_size for i in range(num_tokens)]


def finish(device: torch.device | str) -> None:
    """Wait for a device that works on while the program goes on, so that the clock is read at the right time."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def device_of(forward: Any) -> torch.device:
    return getattr(forward, "device", torch.device("cpu"))
