"""What a pass costs: T(M), the time of one pass over M tokens, next to the floor, reading the weights once.

Speculation pays because v(M) = T(M) / T(1) stays near 1 while M tokens share one reading of the weights. With c, the
draft model's T(1) over the target's, and E tokens a round, the speed-up is E / (K c + v(K + 1)).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ..costs import Curve
from ..errors import OptionError
from ..models.cached_lm import CachedLM
from ..models.timing import device_of, finish, pass_seconds
from .machine import peak_rss_gb

TOKENS = (1, 2, 4, 8, 16, 32)
Progress = Callable[[int, int, str], None]  # done, in all, what comes next


@dataclass(frozen=True)
class CostCurve:
    """What passes of one model cost.

    Fields:
        model: as the user wrote it.
        role: "target" or "drafter".
        dtype, weights: of the forward that was timed.
        context: tokens in the cache before each pass.
        num_bytes: weights that one pass reads.
        read_gb_s: measured in the same run.
        t_ms: M to the median time of a pass over M tokens, in ms.
        peak_rss_gb: the process's highest memory so far.
    """

    model: str
    role: str
    dtype: str
    weights: str
    context: int
    num_bytes: int
    read_gb_s: float
    t_ms: dict[int, float]
    peak_rss_gb: float = 0.0

    @property
    def floor_ms(self) -> float:
        """Reading the weights once, in ms."""
        return self.num_bytes / self.read_gb_s / 1e6

    @cached_property
    def _curve(self) -> Curve:
        return Curve(tuple(sorted(self.t_ms.items())))

    def t(self, num_tokens: float) -> float:
        """T(M) in ms; on a line between measured values, and beyond the last of them on the last line."""
        return self._curve.at(num_tokens)

    def v(self, num_tokens: float) -> float:
        """T(M) / T(1)."""
        return self.t(num_tokens) / self.t(1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "role": self.role,
            "dtype": self.dtype,
            "weights": self.weights,
            "context": self.context,
            "read_gb_s": self.read_gb_s,
            "floor_ms": self.floor_ms,
            "t_ms": {str(m): t for m, t in self.t_ms.items()},
            "v": {str(m): self.v(m) for m in self.t_ms},
            "t1_over_floor": self.t(1) / self.floor_ms,
            "bytes": self.num_bytes,
            "peak_rss_gb": self.peak_rss_gb,
        }


def read_bandwidth(num_bytes: int = 1 << 29, repeats: int = 7, device: torch.device | str = "cpu") -> float:
    """GB/s at which memory is read: the median of summing a tensor much larger than the caches."""
    tensor = torch.ones(num_bytes // 4, device=device)
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        tensor.sum()
        finish(device)
        seconds.append(time.perf_counter() - started)
    return num_bytes / statistics.median(seconds[1:]) / 1e9


def measure(
    lm: CachedLM,
    tokens: Sequence[int] = TOKENS,
    context: int = 256,
    repeats: int = 7,
    progress: Progress | None = None,
    *,
    model: str = "model",
    role: str = "target",
    read_gb_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Time passes over M tokens for every M of `tokens` (1 is always among them), all their logits wanted.

    The values of M take turns, so a machine that slows down slows all of them; each has one untimed pass first.

    Args:
        lm: the model; a row of it must be free. What the row held is lost.
        context: tokens in the cache before each pass; fewer if the model's own limit demands it.
        repeats: timed passes for each M; their median counts.
        progress: called before every round of passes.
        model, role: for the report.
        read_gb_s: the bandwidth, if it is known; None measures it afterwards.
        clock: seconds.

    Raises:
        OptionError: no room for the context and the tokens.
    """
    sizes = sorted({1, *tokens})
    if sizes[0] < 1 or repeats < 1 or context < 1:
        raise OptionError(f"tokens, context and repeats must be at least 1, not {sizes[0]}, {context} and {repeats}")
    context = min(context, lm.max_length - sizes[-1])
    if context < 1:
        raise OptionError(f"{model} holds {lm.max_length} positions: too few for passes over {sizes[-1]} tokens")

    def show(repeat: int) -> None:
        if progress:
            progress(repeat, repeats + 1, f"passes of {model}")

    times = pass_seconds(lm, sizes, context, repeats, before=show, clock=clock)
    peak = peak_rss_gb()  # before the bandwidth is measured, which takes memory of its own
    if read_gb_s is None:
        read_gb_s = read_bandwidth(device=device_of(lm.forward))
    return CostCurve(
        model=model,
        role=role,
        dtype=dtype_of(lm.forward),
        weights=lm.forward.weights,
        context=context,
        num_bytes=weight_bytes(lm.forward),
        read_gb_s=read_gb_s,
        t_ms={size: 1e3 * statistics.median(values) for size, values in times.items()},
        peak_rss_gb=peak,
    )


def draft_cost(target: CostCurve, drafter: CostCurve) -> float:
    """c: a token of the draft model over a token of the target."""
    return drafter.t(1) / target.t(1)


def predicted_speedup(length: float, num_drafted: float, c: float, v: float) -> float:
    """E / (K c + v(K + 1)): E tokens a round, K drafted, each for c plain passes, one pass for v of them."""
    return length / (num_drafted * c + v)


def weight_bytes(forward: Any) -> int:
    """Bytes of weights that one pass reads; a table of embeddings counts only where it is the output layer too."""
    if hasattr(forward, "num_bytes"):
        return int(forward.num_bytes)
    total, seen = 0, set()
    for module in forward.model.modules():
        total += getattr(getattr(module, "linear", None), "num_bytes", 0)  # one of our weight formats
        if isinstance(module, nn.Embedding):
            continue
        for weight in module.parameters(recurse=False):
            if weight.dim() > 1 and id(weight) not in seen:
                seen.add(id(weight))
                total += weight.numel() * weight.element_size()
    return total


def dtype_of(forward: Any) -> str:
    dtype = getattr(forward, "dtype", None) or getattr(getattr(forward, "model", None), "dtype", "")
    return str(dtype).removeprefix("torch.")
