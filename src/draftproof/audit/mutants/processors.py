"""Engines whose temperature, penalties and filters do not reach every position of a block."""

from __future__ import annotations

from collections.abc import Callable

from ... import sampling
from ...interfaces import RandomSource, Verifier
from ...types import Draft, Probs, SamplingParams, Verification
from ...verify import sampled_chain, token_rule
from ...verify.law import Prefix
from ..laws import processed
from .mutant import P, Q, broken_rule

PLAIN = SamplingParams()
PENALISED = SamplingParams(repetition_penalty=1.5, presence_penalty=0.6)
BIASED = SamplingParams(temperature=0.6, logit_bias={1: -1.5})


def scoring(
    params_at: Callable[[int, int], SamplingParams], seen: Callable[[Prefix], Prefix] = lambda path: path
) -> Verifier:
    """The token rule over target laws that come from the logits by other processors than they should.

    Args:
        params_at: row and number of drafted tokens to the parameters of that row.
        seen: the drafted path to what the penalties know of it.
    """

    def verify(draft: Draft, p: Probs, source: RandomSource) -> Verification:
        rows = []
        for i in range(draft.num_nodes + 1):
            path = draft.tokens[:i]
            logits = P(path).log()[None]
            rows.append(sampling.probs(logits, params_at(i, draft.num_nodes), seen(path), 0))
        return token_rule(draft, Probs.stack(rows), source)

    return verify


PROCESSORS: dict[str, tuple[SamplingParams, Verifier]] = {
    "penalties blind to the drafted path": (PENALISED, scoring(lambda i, n: PENALISED, seen=lambda path: ())),
    "penalties one drafted token late": (PENALISED, scoring(lambda i, n: PENALISED, seen=lambda path: path[:-1])),
    "processors at the first position only": (BIASED, scoring(lambda i, n: PLAIN if i else BIASED)),
    "processors missing at the bonus token": (BIASED, scoring(lambda i, n: PLAIN if i == n else BIASED)),
    "processors at the bonus token only": (BIASED, scoring(lambda i, n: BIASED if i == n else PLAIN)),
}

MUTANTS = [
    broken_rule(name, rule, processed(P, params), sampled_chain(Q, 2), token_rule)
    for name, (params, rule) in PROCESSORS.items()
]
