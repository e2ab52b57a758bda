"""A deliberately broken rule, drafter or engine, on an example where the unbroken one is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...interfaces import Verifier
from ...testing import RandomTable
from ...verify import distance_from_target, token_rule
from ...verify.law import PrefixLaw, Proposer

EXACT = 1e-12
"""Below this total variation a law counts as the target's own: float64 rounding over all outcomes."""
CAUGHT = 1e-6
"""Above this a mutant is caught; the faintest of them is a hundred times further off."""

P, Q = RandomTable(3, 1), RandomTable(3, 2)
P_TREE, Q_TREE, TREE = RandomTable(4, 1), RandomTable(4, 11), (-1, -1, 0, 0)


@dataclass(frozen=True)
class Mutant:
    """Fields:
    name: what is broken.
    broken, sound: the total variation from the target's law with the broken part, and without it.
    """

    name: str
    broken: Callable[[], float]
    sound: Callable[[], float]


def broken_rule(name: str, rule: Verifier, p: PrefixLaw, propose: Proposer, sound: Verifier) -> Mutant:
    """A mutant of the verifier `sound`, both shown on the same draft."""
    return Mutant(name, lambda: distance_from_target(p, propose, rule), lambda: distance_from_target(p, propose, sound))


def broken_drafter(
    name: str, propose: Proposer, sound: Proposer, p: PrefixLaw = P, rule: Verifier = token_rule
) -> Mutant:
    """A mutant of the drafter `sound`, both shown to the same verifier."""
    return Mutant(name, lambda: distance_from_target(p, propose, rule), lambda: distance_from_target(p, sound, rule))
