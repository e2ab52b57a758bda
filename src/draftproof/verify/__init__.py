"""Exact verification: which drafted tokens to keep so that the output follows the target's law, and the proof of it.

Knows no model, no tokenizer and no global chance: a verifier takes a draft, the target's laws and a source.
"""

from .analysis import acceptance_law, acceptance_rate, chain_survival, expected_tokens, geometric_survival
from .chain import token_rule
from .law import (
    EnumeratingSource,
    argmax_chain,
    distance_from_target,
    emitted_law,
    exact_law,
    extended,
    sampled_chain,
    target_rows,
    total_variation,
)
from .residual import excess, residual, token_probs

__all__ = [
    "EnumeratingSource",
    "acceptance_law",
    "acceptance_rate",
    "argmax_chain",
    "chain_survival",
    "distance_from_target",
    "emitted_law",
    "exact_law",
    "excess",
    "expected_tokens",
    "extended",
    "geometric_survival",
    "residual",
    "sampled_chain",
    "target_rows",
    "token_probs",
    "token_rule",
    "total_variation",
]
