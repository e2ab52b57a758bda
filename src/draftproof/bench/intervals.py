"""How sure a ratio of sums is: the cluster bootstrap draws whole prompts again, for tokens of one text are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Interval = tuple[float, float]
RESAMPLES, LEVEL = 2000, 0.95


def cluster_interval(
    clusters: Sequence[Sequence[float]], statistic: Callable[[Tensor], Tensor], level: float = LEVEL
) -> Interval | None:
    """Percentile interval of a statistic of the clusters' sums; None with fewer than two clusters.

    Args:
        clusters: for each cluster (a prompt, or a group of prompts that ran together) its C counts and times.
        statistic: sums `[R, C]` of R resamples to values `[R]`.

    The resamples are the same every time for the same number of clusters.
    """
    num = len(clusters)
    if num < 2:
        return None
    values = statistic(resampled(clusters))
    values = values[values.isfinite()]
    if not len(values):
        return None
    low, high = torch.quantile(values, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=values.dtype)).tolist()
    return low, high


def resampled(clusters: Sequence[Sequence[float]]) -> Tensor:
    """Sums `[R, C]` over as many clusters as there are, drawn with replacement."""
    num = len(clusters)
    chance = torch.Generator().manual_seed(num)
    drawn = torch.randint(num, (RESAMPLES, num), generator=chance)
    return torch.tensor(clusters, dtype=torch.float64)[drawn].sum(1)
