"""What passes and rounds cost, as numbers: measured by others, weighed by budgets, trees, benchmarks and advice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Curve:
    """T(M), or v(M) = T(M) / T(1): on straight lines between measurements, beyond the last on the last line.

    Fields:
        points: pairs (M, cost), ascending, at least one.
    """

    points: tuple[tuple[float, float], ...]

    @staticmethod
    def rising(measured: Mapping[int, float]) -> Curve:
        """The curve of noisy times: what falls although M grows is averaged with what lies before it (isotonic
        regression), and beyond the last measurement costs grow at least as fast as they did on the whole.
        """
        runs: list[list[tuple[int, float]]] = []
        for point in sorted(measured.items()):
            runs.append([point])
            while len(runs) > 1 and _mean(runs[-1]) < _mean(runs[-2]):
                runs[-2:] = [runs[-2] + runs[-1]]
        points = [(float(m), _mean(run)) for run in runs for m, _ in run]
        if len(points) > 1:
            (first, low), (before, lower), (last, high) = points[0], points[-2], points[-1]
            slope = max((high - lower) / (last - before), (high - low) / (last - first))
            points.append((4 * last, high + 3 * last * slope))
        return Curve(tuple(points))

    def at(self, num_tokens: float) -> float:
        """The cost of a pass over so many tokens."""
        if len(self.points) == 1:
            return self.points[0][1]
        right = bisect_left(self.points, (num_tokens, -1.0))
        (m, low), (n, high) = self._line(min(max(1, right), len(self.points) - 1))
        return high if num_tokens == n else low + (num_tokens - m) / (n - m) * (high - low)

    def table(self, limit: int) -> list[float]:
        """The costs of 0 to `limit` tokens."""
        if len(self.points) == 1:
            return [self.points[0][1]] * (limit + 1)
        costs: list[float] = []
        last = len(self.points) - 1
        for right in range(1, last + 1):
            (m, low), (n, high) = self._line(right)
            end = limit + 1 if right == last else min(limit + 1, ceil(n))
            slope = (high - low) / (n - m)
            costs += [low + (tokens - m) * slope for tokens in range(len(costs), end)]
        return costs

    def _line(self, right: int) -> tuple[tuple[float, float], tuple[float, float]]:
        return self.points[right - 1], self.points[right]


def _mean(run: Sequence[tuple[int, float]]) -> float:
    return sum(cost for _, cost in run) / len(run)


@dataclass(frozen=True)
class Calibration:
    """What the parts of a round take, in seconds, as measured when the models were loaded.

    Fields:
        passes: T(M) of the target at `context` tokens in the cache.
        per_context: more for each query and each further token in its cache.
        draft_first, draft_next: the first pass of a draft of one sequence, and every further one (a token of a chain,
            a layer of a tree).
        draft_reading: for each token of the text that the drafter has not seen yet.
    """

    passes: Curve
    context: int = 0
    per_context: float = 0.0
    draft_first: float = 0.0
    draft_next: float = 0.0
    draft_reading: float = 0.0

    def drafting(self, layers: float) -> float:
        """A draft of one sequence; of expected layers, less than one is a share of the first."""
        first = min(1.0, layers)
        return first * self.draft_first + (layers - first) * self.draft_next
