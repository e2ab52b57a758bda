"""Self-speculation: the target's first N layers, with its own norm and output layer, draft for it.

No second copy of weights or cache: drafted tokens are fed through the first layers in the sequence's own row, beyond
the positions it holds, where the target's pass over the draft writes them anew. So that pass and its bits are the same
as with any other drafter. After LayerSkip (2404.16710), which trains models for it; an untrained model's early layers
guess badly.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..errors import OptionError
from ..models.lean import LeanForward
from ..models.masks import Block
from ..types import Draft, DraftRequest, Probs
from .chains import Chains
from .context import DraftContext
from .law import law


class EarlyExitDrafter:
    """Chains from the target's first layers.

    Args:
        forward: the target's.
        num_layers: N.
        eos_ids, confidence: when a chain ends, see `chains.Chains`.

    Attributes:
        cost: the share of the target's weights that a drafted token reads.
    """

    def __init__(
        self, forward: LeanForward, num_layers: int, eos_ids: frozenset[int] = frozenset(), confidence: float = 0.0
    ):
        self.name = f"self:{num_layers}"
        self._forward = forward.early_exit(num_layers)
        self.cost = self._forward.num_bytes / forward.num_bytes
        self._eos_ids, self._confidence = eos_ids, confidence

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """All requests together: one pass of the first layers per position."""
        chains = Chains(requests, self._eos_ids, self._confidence, self._forward.max_length)
        while chains.active:
            logits = self._forward([_next(request, chains.drawn(request)) for request in chains.active], "last").logits
            chains.grow(logits, _law)
        return chains.drafts()

    def release(self, sequence_id: int) -> None:
        """Nothing is kept."""


def _next(request: DraftRequest, drawn: Sequence[int]) -> Block:
    """The last token of text and chain, at its slot in the sequence's row."""
    assert request.row is not None, "a running sequence has a row"
    return Block(request.row, len(request.tokens) - 1 + len(drawn), [(drawn or request.tokens)[-1]])


def _law(logits: Tensor, request: DraftRequest, drawn: Sequence[int]) -> Probs:
    return law(logits, None, logits.shape[-1], request, [drawn])


def build(argument: str, context: DraftContext) -> EarlyExitDrafter:
    """`self:LAYERS`.

    Raises:
        OptionError: no number, one out of range, or a target that does not run through the lean forward.
    """
    forward = getattr(context.target, "forward", None)
    if not argument.isdecimal():
        raise OptionError(f"drafter 'self' needs a number of layers, as in self:8, not {argument!r}")
    if not isinstance(forward, LeanForward):
        raise OptionError(
            f"drafter self:{argument} needs a target of the Llama family in our own forward, which "
            f"{context.target_name} is not: use another drafter"
        )
    if not 1 <= int(argument) <= forward.num_layers:
        raise OptionError(f"self:{argument} must name 1 to {forward.num_layers} layers of {context.target_name}")
    return EarlyExitDrafter(forward, int(argument), context.eos_ids, context.draft_confidence)
