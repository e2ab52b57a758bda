"""An adaptive budget that withholds drawn tokens after it has seen them."""

from __future__ import annotations

from collections.abc import Sequence

from ...costs import Calibration, Curve
from ...engine.acceptance import Part
from ...engine.budget import AdaptiveBudget, Option, best_parts
from ...engine.prices import Prices
from ...params import SamplingParams
from ...testing import RandomTable, StatingDrafter
from ...types import Draft, SequenceState
from ..exact import engine_distance
from .mutant import Mutant

COSTS = Calibration(Curve(((1, 1.0), (2, 1.0), (3, 1.2), (4, 1.2))))


class Withholding(AdaptiveBudget):
    """Keeps as many drawn tokens as promise the best goodput, by their own probabilities."""

    def cut(self, sequences: Sequence[SequenceState], drafts: Sequence[Draft]) -> list[Draft]:
        drafts = super().cut(sequences, drafts)
        options = [
            Option(1, [Part(chance, 1.0, 0, i + 1) for i, chance in enumerate(draft.survival or ())])
            for draft in drafts
        ]
        chosen, _ = best_parts(options, self.prices)
        return [_first(draft, part.budget if part else 0) for draft, part in zip(drafts, chosen)]


def _first(draft: Draft, num: int) -> Draft:
    return Draft(draft.tokens[:num], draft.parents[:num], draft.probs, draft.drawn if num else "fixed")


def _distance(kind: type[AdaptiveBudget]) -> float:
    params = SamplingParams(max_new_tokens=4)
    return engine_distance(
        RandomTable(2, 3),
        StatingDrafter(RandomTable(2, 4)),
        params,
        fresh=lambda: {"max_draft": 3, "budget": kind(Prices(COSTS, fixed=True), free="all")},
    )


MUTANTS = [
    Mutant(
        "adaptive budget that withholds drawn tokens", lambda: _distance(Withholding), lambda: _distance(AdaptiveBudget)
    )
]
