"""How many tokens may be drafted for each sequence in the next round."""

from __future__ import annotations

from ..types import SequenceState


def room(sequence: SequenceState, max_length: int) -> int:
    """Tokens the sequence may still grow by: its own budget or the context, whichever is less."""
    return min(sequence.params.max_new_tokens - sequence.num_new, max_length - len(sequence.tokens))


def budget(sequence: SequenceState, max_draft: int, max_length: int) -> int:
    """Nodes that can still be of use: a round always adds one token beyond the accepted ones."""
    return max(0, min(max_draft, room(sequence, max_length) - 1))
