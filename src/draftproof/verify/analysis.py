"""Closed forms: acceptance rates and lengths from the laws alone, without drawing anything."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..types import Probs
from .law import Prefix, PrefixLaw, row_of


def acceptance_rate(p: Probs, q: Probs) -> Tensor:
    """alpha `[R]` of each row: sum of min(p, q) = 1 - TV(p, q), the chance that a token drawn from q is accepted.

    No rule that keeps p exact and sees one drafted token accepts more often.
    """
    rows = []
    for row in range(len(p)):
        ids, values = p.support(row)
        rows.append(torch.minimum(values, q.at(row, ids).to(values.dtype)).sum())
    return torch.stack(rows)


def chain_survival(
    target: PrefixLaw, draft: PrefixLaw, num_tokens: int, prefix: Prefix = (), verifier: str = "token"
) -> list[float]:
    """P(tau >= k) for k = 1..K: the sum of f over all k-token chains, where f(empty) = 1 and with y the next token

        token rule: f(x y) = f(x) min(p(y), q(y));    block verification: f(x y) = min(f(x) p(y), q(x) q(y)).

    tau is the number of accepted tokens of a sampled chain; q(x) the chance that x is drafted. A deterministic draft
    is the law that gives its token probability 1. Does not depend on K; costs V^K terms.

    Args:
        verifier: "token" or "block".
    """
    alive: dict[Prefix, tuple[float, float]] = {(): (1.0, 1.0)}
    survival = []
    for _ in range(num_tokens):
        longer: dict[Prefix, tuple[float, float]] = {}
        for tokens, (kept, drafted) in alive.items():
            p, q = (row_of(law, prefix + tokens).to_dense(0).tolist() for law in (target, draft))
            drawn_with = drafted if verifier == "block" else kept
            for token, (p_y, q_y) in enumerate(zip(p, q)):
                if p_y > 0 and q_y > 0:
                    chain = (*tokens, token)
                    longer[chain] = min(kept * p_y, drawn_with * q_y), drafted * q_y
        alive = longer
        survival.append(sum(kept for kept, _ in alive.values()))
    return survival


def expected_tokens(survival: Sequence[float]) -> float:
    """Tokens per round from P(tau >= k), k = 1..K: 1 + their sum (the residual or bonus token is the 1)."""
    return 1.0 + sum(survival)


def geometric_survival(alpha: float, num_tokens: int) -> list[float]:
    """P(tau >= k) = alpha^k, k = 1..K, when every token is accepted independently with chance alpha.

    `expected_tokens` of it is (1 - alpha^(K+1)) / (1 - alpha), as in Leviathan et al. (2211.17192).
    """
    return [alpha**k for k in range(1, num_tokens + 1)]


def acceptance_law(survival: Sequence[float]) -> list[float]:
    """P(tau = k) for k = 0..K from P(tau >= k), k = 1..K."""
    bounds = [1.0, *survival, 0.0]
    return [bounds[k] - bounds[k + 1] for k in range(len(survival) + 1)]
