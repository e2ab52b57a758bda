"""The token rule for chains: speculative sampling as in Leviathan et al. (2211.17192) and Chen et al. (2302.01318).

A draft without probabilities is a point mass, the same rule with a one-hot q; greedy decoding is the same rule with
a one-hot p. For every q the emitted tokens follow p exactly.
"""

from __future__ import annotations

import torch

from ..interfaces import RandomSource
from ..sampling import draw
from ..types import Draft, Probs, Verification
from .residual import residual, token_probs


def token_rule(draft: Draft, p: Probs, source: RandomSource) -> Verification:
    """Accept drafted tokens one by one, each with probability min(1, p / q); replace the first one refused.

    Args:
        draft: a chain of N tokens; may be empty, which is plain decoding.
        p: N+1 rows; row i is the target's law in front of drafted token i, the last row follows the whole draft.

    Raises:
        ValueError: the draft is not a chain, or draft and laws do not fit each other.
    """
    q = proposal(draft, p)
    rows = range(draft.num_nodes)
    for i, (p_x, q_x) in enumerate(zip(token_probs(p, rows, draft.tokens), token_probs(q, rows, draft.tokens))):
        if not q_x > 0:
            raise ValueError(f"drafted token {draft.tokens[i]} has probability 0 under the law it claims to come from")
        if not source.bernoulli(p_x / q_x, "accept"):
            token = draw(residual(p, q, i), 0, source, "residual")
            return Verification(tuple(range(i)), token, "residual", draft.num_nodes)
    token = draw(p, draft.num_nodes, source, "bonus")
    return Verification(tuple(rows), token, "bonus", draft.num_nodes)


def proposal(draft: Draft, p: Probs) -> Probs:
    """q of a chain, row i for token i: the draft's own laws, or point masses where it was drawn without randomness."""
    if not draft.is_chain:
        raise ValueError(f"the token rule verifies chains only, not a tree with parents {draft.parents}")
    if len(p) != draft.num_nodes + 1:
        raise ValueError(f"p must have a row for the root and every drafted token: {draft.num_nodes + 1}, not {len(p)}")
    if any(not 0 <= token < p.vocab_size for token in draft.tokens):
        raise ValueError(f"drafted tokens must be ids below {p.vocab_size}, not {draft.tokens}")
    if draft.drawn == "fixed" or draft.probs is None:
        return Probs.one_hot(torch.tensor(draft.tokens, device=p.values.device), p.vocab_size)
    if draft.probs.vocab_size != p.vocab_size:
        raise ValueError(f"p and q must share a vocabulary: {p.vocab_size} ids, not {draft.probs.vocab_size}")
    return draft.probs
