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


def residual(p: Probs, q: Probs, row: int, scale: float = 1.0) -> tuple[Probs, float]:
    """The law of what replaces a refused token at `row`, (scale * p - q)+ normalised, as one row; and its mass before.

    Without any excess (p = q, up to rounding) a refusal has probability zero; p itself is returned with mass 0, so
    nothing is ever divided by zero.
    """
    return _normalised(excess(p, q, row, scale), p, row)


def without(law: Probs, row: int, tokens: Sequence[int]) -> Probs:
    """One row of `law` given that it is none of `tokens`; the row as it is if nothing else has mass."""
    if not tokens:
        return law.row(row)
    ids, values = law.support(row)
    gone = torch.tensor(tokens, device=values.device)
    if ids is None:
        weights = values.index_fill(0, gone, 0)
    else:
        weights = values.masked_fill(torch.isin(ids, gone), 0)
    return _normalised(weights, law, row)[0]


def _normalised(weights: Tensor, law: Probs, row: int) -> tuple[Probs, float]:
    """Weights over the support of a row of `law` (overwritten) as a law, and their mass; if 0, the row itself."""
    ids, values = law.support(row)
    mass = float(weights.sum())
    weights = weights.div_(mass) if mass > 0 else values
    return Probs(weights[None], None if ids is None else ids[None], law.vocab_size), max(0.0, mass)


def token_probs(law: Probs, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The probability of `tokens[i]` under row `rows[i]`, for all i in one transfer from the device."""
    if not tokens:
        return []
    device = law.values.device
    row, token = torch.tensor(rows, device=device), torch.tensor(tokens, device=device)
    if law.ids is None:
        return law.values[row, token].tolist()
    return ((law.ids[row] == token[:, None]) * law.values[row]).sum(-1).tolist()
