"""The drafter that proposes nothing: plain decoding, the baseline of every measurement."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import EMPTY_DRAFT, Draft, DraftRequest
from .context import DraftContext


class NoDrafter:
    """Empty drafts."""

    name = "none"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [EMPTY_DRAFT] * len(requests)

    def release(self, sequence_id: int) -> None:
        pass


def build(argument: str, context: DraftContext) -> NoDrafter:
    """`none` takes no argument."""
    context.refuse_argument("none", argument)
    return NoDrafter()
