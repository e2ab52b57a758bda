"""What the parts of a round take here: calibrated once, then corrected by every round that runs.

A machine that slows down slows every pass alike, so a correction goes first into one common level and only slowly into
the shape of T(M): the shape is what budgets are chosen by.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from ..costs import Calibration, Curve

_LEVEL, _DRAFT, _REST, _READING = 0.2, 0.2, 0.2, 0.3  # how much of a deviation one round corrects
_SHAPE, _SHAPE_FIRST = 0.03, 0.5  # the same for the shape: later, and when a size is first seen
_EXACT = 16  # passes up to this size are told apart one by one, larger ones by some


@dataclass
class _Point:
    """T(M) for passes of `size` tokens at the level 1, and how many of them were seen."""

    size: float
    cost: float
    visits: int = 0


class Prices:
    """Seconds, from a calibration and from rounds.

    Args:
        calibration: what was measured when the models were loaded.
        fixed: take it as it is, so that no clock has a say.

    Attributes:
        fixed: as given.
        per_context, context: as in `Calibration`.
        rest: what one more scored token takes outside the passes (its law, its verification), as seen so far.
    """

    def __init__(self, calibration: Calibration, *, fixed: bool = False):
        self.fixed = fixed
        self._level, self._draft_level = 1.0, {1: 1.0}
        self._points = [_Point(m, cost) for m, cost in calibration.passes.points]
        self._table: list[float] = []
        self._calibration = calibration
        self._reading = calibration.draft_reading
        self.rest = 0.0
        self.context, self.per_context = calibration.context, calibration.per_context

    def passes(self, limit: int) -> list[float]:
        """T(M) with the rest of a round, for M = 0 to at least `limit`, at the calibrated context."""
        if len(self._table) <= limit:
            table = Curve(tuple((point.size, point.cost * self._level) for point in self._points)).table(limit)
            self._table = [cost + num * self.rest for num, cost in enumerate(table)]
        return self._table

    def drafting(self, layers: float, num_rows: int) -> float:
        """Drafts of so many layers (expected ones, see `Calibration.drafting`) for so many sequences."""
        if layers <= 0:
            return 0.0
        level = self._draft_level.get(num_rows) or self._nearest(num_rows)
        return self._calibration.drafting(layers) * level

    def reading(self, num_tokens: int) -> float:
        """For the drafter to catch up with so many tokens."""
        return self._reading * num_tokens

    def learn_pass(self, num_tokens: int, beyond: int, seconds: float, rest: float) -> None:
        """One pass of the target over all rows.

        Args:
            num_tokens: M.
            beyond: for all queries together, the tokens in their caches beyond `context`.
            seconds, rest: of the pass, and of what is neither drafting nor the pass.
        """
        if self.fixed:
            return
        point = self._point(num_tokens)
        expected = point.cost * self._level * self._grown(num_tokens, point)
        ratio = min(2.0, max(0.5, (seconds - self.per_context * beyond) / expected))
        self._level *= ratio**_LEVEL
        point.cost *= ratio ** ((1 - _LEVEL) * max(_SHAPE, _SHAPE_FIRST / (1 + point.visits)))
        point.visits += 1
        self.rest += _REST * (max(0.0, rest) / num_tokens - self.rest)
        self._table = []

    def learn_draft(self, layers: int, num_rows: int, unread: int, seconds: float) -> None:
        """One round's drafts.

        Args:
            layers: of the longest draft.
            num_rows: sequences that were drafted for.
            unread: tokens that the drafter had to read first, of all of them, beyond those of the last round.
        """
        if self.fixed or layers == 0 or num_rows == 0:
            return
        known = self._calibration
        if not known.draft_first and not known.draft_next:  # never measured
            self._calibration = replace(known, draft_first=seconds / layers, draft_next=seconds / layers)
        expected = max(1e-6, self.drafting(layers, num_rows))
        if unread:
            self._reading += _READING * (max(0.0, seconds - expected) / unread - self._reading)
            return
        ratio = min(2.0, max(0.5, seconds / expected))
        self._draft_level[num_rows] = self._draft_level.get(num_rows, self._nearest(num_rows)) * ratio**_DRAFT

    def _point(self, num_tokens: int) -> _Point:
        """The measurement of passes of this size, or of about this size where they are large."""
        size = num_tokens if num_tokens <= _EXACT else num_tokens - num_tokens % (num_tokens // _EXACT * 2)
        sizes = [point.size for point in self._points]
        place = bisect_left(sizes, size)
        if place == len(sizes) or sizes[place] != size:
            curve = Curve(tuple((point.size, point.cost) for point in self._points))
            self._points.insert(place, _Point(size, curve.at(size)))
        return self._points[place]

    def _grown(self, num_tokens: int, point: _Point) -> float:
        """How much more a pass takes than one of the size of the point that stands for it."""
        if num_tokens == point.size or len(self._points) == 1:
            return 1.0
        return Curve(tuple((p.size, p.cost) for p in self._points)).at(num_tokens) / point.cost

    def _nearest(self, num_rows: int) -> float:
        return self._draft_level[min(self._draft_level, key=lambda known: abs(known - num_rows))]
