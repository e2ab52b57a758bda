"""The whole engine, enumerated: every combination of processors, and every rule for the length of a draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..api import VERIFIERS
from ..costs import Calibration, Curve
from ..engine.budget import AdaptiveBudget, Free
from ..engine.prices import Prices
from ..interfaces import Verifier
from ..testing import LawDrafter, RandomTable, StatingDrafter
from ..types import SamplingParams
from ..verify import auto_rule
from ..verify.law import PrefixLaw
from .exact import engine_distance
from .rules import DRAWN, Coverage, Progress, is_chain, silent

PROCESSORS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.3},
    "logit_bias": {"logit_bias": {1: -0.9}},
    "banned_tokens": {"banned_tokens": (2,)},
}
TEMPERATURES = (1.0, 0.7, 0.0)

STEPPED = Calibration(
    Curve(((1, 1.0), (2, 1.0), (3, 1.35), (4, 1.35), (5, 1.4), (8, 2.0))), draft_first=0.45, draft_next=0.45
)
"""Costs as where passes are padded: a rejection or two make drafting stop paying, and probes bring it back."""
CHEAP = Calibration(Curve(((1, 1.0), (8, 1.4))), draft_first=0.05, draft_next=0.05)


def adaptive(costs: Calibration, max_draft: int, free: Free) -> dict[str, Any]:
    """An engine whose drafts are as long as pays, by costs that no clock changes."""
    budget = AdaptiveBudget(Prices(costs, fixed=True), free=free, probing=0.3)
    return {"max_draft": max_draft, "budget": budget}


BUDGETS: dict[str, Callable[[], dict[str, Any]]] = {
    "at most 1 token, cut by what is left": lambda: {"max_draft": 1},
    "at most 2 tokens, cut by what is left": lambda: {"max_draft": 2},
    "at most 3 tokens, cut by what is left": lambda: {"max_draft": 3},
    "no drafting": lambda: {"max_draft": 0},
}
LEARNING: dict[str, Callable[[], dict[str, Any]]] = {
    "adaptive, costs in steps": lambda: adaptive(STEPPED, 2, free="none"),
    "adaptive, cheap drafts": lambda: adaptive(CHEAP, 2, free="none"),
    "adaptive, cut afterwards too": lambda: adaptive(STEPPED, 3, free="all"),
}
"""Rules for how many tokens may be drafted (`engine.budget`), as options of `Engine` made anew for every path: so
enumeration walks through every history that a rule can learn from. Those that learn get more rounds, over two tokens.
"""

P, Q = RandomTable(3, 3), RandomTable(3, 4)
P2, Q2 = RandomTable(2, 1), RandomTable(2, 2)
ONE, TWO = "at most 1 token, cut by what is left", "at most 2 tokens, cut by what is left"


@dataclass(frozen=True)
class _Run:
    group: str
    params: SamplingParams
    drafter: LawDrafter
    verify: Verifier = auto_rule
    budget: Callable[[], dict[str, Any]] = BUDGETS[ONE]
    law: PrefixLaw = P


def processor_sets() -> Iterator[SamplingParams]:
    """All subsets of the processors at every temperature; greedy needs those only that can change the highest."""
    for temperature in TEMPERATURES:
        names = [name for name in PROCESSORS if temperature or name not in ("top_k", "top_p", "min_p")]
        for size in range(len(names) + 1):
            for chosen in itertools.combinations(names, size):
                settings = {key: value for name in chosen for key, value in PROCESSORS[name].items()}
                yield SamplingParams(temperature=temperature, **settings)


def _runs() -> Iterator[_Run]:
    for params in processor_sets():
        for fixed in (False, True) if params.temperature == 1 else (False,):
            yield _Run("processors, all subsets", replace(params, max_new_tokens=2), LawDrafter(Q, 1, fixed=fixed))
    for settings in PROCESSORS.values():
        for name, verify in VERIFIERS.items():
            for drawn in DRAWN:
                for parents in ((-1, 0), (-1, -1)):
                    if is_chain(parents) or name != "block":
                        drafter = LawDrafter(Q, drawn=drawn, parents=parents)
                        params = SamplingParams(temperature=0.8, max_new_tokens=3, **settings)
                        yield _Run("processors x verifiers x drawing", params, drafter, verify, BUDGETS[TWO])
    for drawn in DRAWN:
        for name, budget in BUDGETS.items():
            yield _Run(f"budget: {name}", SamplingParams(max_new_tokens=3), LawDrafter(Q, drawn=drawn), budget=budget)
        for name, budget in LEARNING.items():
            params = SamplingParams(max_new_tokens=4)
            yield _Run(f"budget: {name}", params, StatingDrafter(Q2, drawn=drawn), budget=budget, law=P2)


def coverage(progress: Progress = silent) -> list[Coverage]:
    """Groups of engine runs and the largest total variation of each from plain decoding's law."""
    runs = list(_runs())
    found: dict[str, list[float]] = {}
    for done, run in enumerate(runs):
        progress(done, len(runs), run.group)
        distance = engine_distance(run.law, run.drafter, run.params, run.verify, fresh=run.budget)
        found.setdefault(run.group, []).append(distance)
    return [Coverage(group, len(distances), max(distances)) for group, distances in found.items()]
