"""The exact law of what a whole engine generates, by replaying it through every outcome of every draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..engine import Engine
from ..interfaces import Drafter, Target, Verifier
from ..testing import TableTarget
from ..types import SamplingParams
from ..verify import auto_rule
from ..verify.law import EnumeratingSource, Prefix, PrefixLaw, exact_law, extended, total_variation
from .laws import processed

PROMPT = (0,)


def law_of_engine(
    target: Target,
    drafter: Drafter,
    params: SamplingParams,
    verify: Verifier = auto_rule,
    fresh: Callable[[], dict[str, Any]] = dict,
    **options: Any,
) -> dict[Prefix, float]:
    """Every text that can follow the prompt (0,) and its probability, drafts and all; float64 targets, V <= 4.

    Args:
        fresh: further options, made anew for every path: parts of an engine that remember earlier rounds, its drafter
            (instead of the one given) among them.
        options: of `Engine`: the draft length and whatever else shapes a round.

    Raises:
        HiddenChance: the drafter keeps state or has chance of its own.
    """

    def run(source: EnumeratingSource) -> Prefix:
        parts = {"drafter": drafter, **options, **fresh()}
        engine = Engine(target, verify=verify, make_source=lambda seed, index: source, **parts)
        return tuple(engine.generate([list(PROMPT)], params)[0].token_ids)

    return exact_law(run)


def plain_law(law: PrefixLaw, params: SamplingParams) -> dict[Prefix, float]:
    """The same without an engine: the product of the target's own law after the processors, token by token."""
    return extended({(): 1.0}, processed(law, params, len(PROMPT)), params.max_new_tokens, PROMPT)


def engine_distance(
    law: PrefixLaw,
    drafter: Drafter,
    params: SamplingParams,
    verify: Verifier = auto_rule,
    **options: Any,
) -> float:
    """Total variation between `law_of_engine` and `plain_law` for a target with this law."""
    target = TableTarget(law, dtype=torch.float64)
    return total_variation(law_of_engine(target, drafter, params, verify, **options), plain_law(law, params))
