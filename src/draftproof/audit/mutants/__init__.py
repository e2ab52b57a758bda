"""Broken on purpose: rules, drafters and engines that the exact audit must catch, or it is not worth having.

Every mutant comes with its sound counterpart, which is exact on the same example: so it is the named part that is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import budgets, chains, drafters, processors, trees
from .mutant import CAUGHT, EXACT, Mutant

MUTANTS: list[Mutant] = [*chains.MUTANTS, *trees.MUTANTS, *drafters.MUTANTS, *processors.MUTANTS, *budgets.MUTANTS]

__all__ = ["CAUGHT", "EXACT", "MUTANTS", "Mutant", "Score", "score"]


@dataclass(frozen=True)
class Score:
    """How one mutant fared: total variation from the target's law with the broken part, and with the sound one."""

    name: str
    broken_tv: float
    sound_tv: float

    @property
    def caught(self) -> bool:
        """The mutant is seen, and only because of its broken part."""
        return self.broken_tv > CAUGHT and self.sound_tv < EXACT

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "caught": self.caught, "tv": self.broken_tv, "sound_tv": self.sound_tv}


def score(progress: Callable[[int, int, str], None] = lambda done, total, text: None) -> list[Score]:
    """Every mutant, enumerated."""
    scores = []
    for done, mutant in enumerate(MUTANTS):
        progress(done, len(MUTANTS), mutant.name)
        scores.append(Score(mutant.name, mutant.broken(), mutant.sound()))
    return scores
