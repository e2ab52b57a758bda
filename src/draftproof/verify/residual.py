"""Arithmetic on pairs of laws: (p - q)+, its normalised form, and the probabilities of drafted tokens.

Works in the dtype it is given: float32 in production, float64 in the exact tests. p may be sparse: the support of
(p - q)+ lies inside p's, so q is looked up at p's ids only and nothing of vocabulary size is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..types import Probs


def excess(p: Probs, q: Probs, row: int, scale: float = 1.0) -> Tensor:
    """(scale * p - q)+ of one row, over p's support and not normalised: `[W]` if p is sparse, else `[V]`."""
    ids, values = p.support(row)
    weights = values * scale
    if ids is None and q.ids is not None:
        weights.index_add_(0, q.ids[row], q.values[row].to(weights.dtype), alpha=-1)
    else:
        weights -= q.at(row, ids)
    return weights.clamp_(min=0)


def residual(p: Probs, q: Probs, row: int) -> Probs:
    """The law of the replacement after a rejection at `row`: (p - q)+ normalised, as one row.

    Without any excess (p = q, up to rounding) a rejection has probability zero and p itself is returned, so nothing
    is ever divided by zero.
    """
    ids, values = p.support(row)
    weights = excess(p, q, row)
    mass = float(weights.sum())
    weights = weights.div_(mass) if mass > 0 else values
    return Probs(weights[None], None if ids is None else ids[None], p.vocab_size)


def token_probs(law: Probs, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The probability of `tokens[i]` under row `rows[i]`, for all i in one transfer from the device."""
    if not tokens:
        return []
    device = law.values.device
    row, token = torch.tensor(rows, device=device), torch.tensor(tokens, device=device)
    if law.ids is None:
        return law.values[row, token].tolist()
    return ((law.ids[row] == token[:, None]) * law.values[row]).sum(-1).tolist()
