"""One round for a set of sequences. This function is the algorithm; everything else in the product serves it.

The invariant, while a sequence runs: its target row holds keys and values for exactly `len(tokens) - 1` positions.
Prefill feeds all but the last prompt token, so the first round is an ordinary round. The baseline is this same
function with a drafter that proposes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import sampling
from ..errors import DrafterError
from ..interfaces import Drafter, Target, Verifier
from ..types import Draft, DraftRequest, SequenceState, TokenLogprob, Verification


@dataclass(frozen=True)
class Round:
    """What one round gave one sequence: the accepted path's tokens and one more, not yet committed."""

    draft: Draft
    verification: Verification
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    draft_seconds: float
    verify_seconds: float


def step(
    sequences: Sequence[SequenceState],
    budgets: Sequence[int],
    drafter: Drafter,
    target: Target,
    verify: Verifier,
    cut: Callable[[Sequence[SequenceState], Sequence[Draft]], list[Draft]] | None = None,
    paid: Sequence[int | None] | None = None,
) -> list[Round]:
    """Draft, score, verify, keep.

    Args:
        sequences: running, each with its target row.
        budgets: how many nodes each may be drafted.
        paid: how many of them where that takes passes of a model; None is as many.
        cut: leaves out what does not pay, of tokens that were chosen without randomness.

    Returns:
        One `Round` per sequence. The rows already hold the accepted path; the caller appends the tokens.
    """
    rows = [s.row for s in sequences if s.row is not None]
    requests = [
        DraftRequest(
            s.id,
            tuple(s.tokens),
            s.num_prompt,
            s.params,
            s.generator,
            budget,
            target.features(row),
            taps=target.taps,
            row=row,
            max_paid=most,
        )
        for s, row, budget, most in zip(sequences, rows, budgets, paid or [None] * len(rows))
    ]
    started = time.perf_counter()
    drafts = drafter.propose(requests)
    drafted = time.perf_counter()
    _check(drafter, drafts, requests, target.vocab_size)
    if cut is not None:
        drafts = cut(sequences, drafts)
    outputs = target.score(rows, [s.tokens[-1] for s in sequences], drafts)
    scored = time.perf_counter()

    rounds = []
    for s, row, draft, output in zip(sequences, rows, drafts, outputs):
        p = sampling.probs(output.logits, s.params, s.tokens, s.num_prompt, draft)
        verification = verify(draft, p, s.generator)
        target.keep(row, len(s.tokens), verification.path)
        tokens = (*(draft.tokens[node] for node in verification.path), verification.next_token)
        logprobs: tuple[TokenLogprob, ...] = ()
        if s.params.logprobs is not None:
            at = [0, *(node + 1 for node in verification.path)]
            logprobs = tuple(sampling.logprobs(output.logits[at], tokens, s.params.logprobs))
        rounds.append(Round(draft, verification, tokens, logprobs, drafted - started, scored - drafted))
    return rounds


def _check(drafter: Drafter, drafts: Sequence[Draft], requests: Sequence[DraftRequest], vocab_size: int) -> None:
    """A drafter written by anyone must answer every request, within its budget, with ids and laws that are some.

    Whether the tokens were truly drawn from the laws cannot be seen here; that is the drafter's word.
    """
    name = f"drafter {drafter.name!r}"
    if not isinstance(drafts, Sequence) or not all(isinstance(draft, Draft) for draft in drafts):
        raise DrafterError(f"{name} must return a list of Draft records, not {drafts!r:.60}")
    if len(drafts) != len(requests):
        raise DrafterError(f"{name} returned {len(drafts)} drafts for {len(requests)} requests")
    for draft, request in zip(drafts, requests):
        if draft.num_nodes > request.max_nodes:
            raise DrafterError(f"{name} proposed {draft.num_nodes} tokens, at most {request.max_nodes} are allowed")
        if any(not 0 <= token < vocab_size for token in draft.tokens):
            raise DrafterError(f"{name} proposed token ids outside 0 to {vocab_size - 1}: {draft.tokens}")
        if draft.drawn == "fixed" or draft.probs is None:
            continue
        if draft.probs.values.dim() != 2 or draft.probs.vocab_size != vocab_size:
            shape = tuple(draft.probs.values.shape)
            raise DrafterError(f"{name} stated laws of shape {shape}: expected rows over the target's {vocab_size} ids")
        laws = draft.probs.values[sorted({parent + 1 for parent in draft.parents})]
        if not bool(((laws.sum(-1) - 1).abs() < 1e-3).all()) or not bool((laws >= 0).all()):
            raise DrafterError(f"{name} stated laws that are not probabilities: rows must be >= 0 and sum to 1")
