"""q: the law that drafted tokens come from, from a drafter's logits and the sequence's own settings."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import sampling
from ..types import DraftRequest, Probs, SamplingParams


def law(
    logits: Tensor,
    ids: Tensor | None,
    vocab_size: int,
    request: DraftRequest,
    paths: Sequence[Sequence[int]],
    params: SamplingParams | None = None,
) -> Probs:
    """R laws over the target's V ids, with the penalties of the text and each path; ids without a logit have no mass.

    Args:
        logits: `[R, D]`, row i after the request's text and the drafted tokens paths[i].
        ids: the target's id of each logit, int64 `[D]`, or None where they are the same.
        params: instead of the request's own.
    """
    params = params or request.params
    if not params.needs_history:
        return sampling.reduced_probs(logits, ids, vocab_size, params)
    texts = [(*request.tokens, *path) for path in paths]
    rows = [
        sampling.reduced_probs(row, ids, vocab_size, params, text, request.num_prompt)
        for row, text in zip(logits.split(1), texts)
    ]
    return Probs.stack(rows)
