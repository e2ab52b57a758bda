"""The best exact rule for what was drawn."""

from __future__ import annotations

from ..interfaces import RandomSource
from ..types import Draft, Probs, Verification
from .block import block_rule
from .tree import token_rule, traversal_rule


def auto_rule(draft: Draft, p: Probs, source: RandomSource) -> Verification:
    """Block verification for drawn chains, traversal for drawn trees, the token rule where nothing was drawn.

    For tokens chosen without randomness the token rule already accepts every path with its probability under the
    target, and no exact rule can do better.
    """
    if draft.drawn == "fixed":
        return token_rule(draft, p, source)
    return (block_rule if draft.is_chain else traversal_rule)(draft, p, source)
