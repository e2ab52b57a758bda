"""Exact verification: which drafted tokens to keep so that the output follows the target's law, and the proof of it.

Knows no model, no tokenizer and no global chance: a verifier takes a draft, the target's laws and a source.
"""

from .analysis import acceptance_law, acceptance_rate, chain_survival, expected_tokens, geometric_survival
from .auto import auto_rule
from .block import block_rule, path_chances
from .law import (
    EnumeratingSource,
    distance_from_target,
    emitted_law,
    exact_law,
    extended,
    target_rows,
    total_variation,
)
from .proposers import argmax_chain, sampled_chain, tree_of
from .residual import excess, residual, token_probs, without
from .tree import token_rule, traversal_rule

__all__ = [
    "EnumeratingSource",
    "acceptance_law",
    "acceptance_rate",
    "argmax_chain",
    "auto_rule",
    "block_rule",
    "chain_survival",
    "distance_from_target",
    "emitted_law",
    "exact_law",
    "excess",
    "expected_tokens",
    "extended",
    "geometric_survival",
    "path_chances",
    "residual",
    "sampled_chain",
    "target_rows",
    "token_probs",
    "token_rule",
    "total_variation",
    "traversal_rule",
    "tree_of",
    "without",
]
