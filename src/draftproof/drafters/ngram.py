"""Prompt lookup: continue the way the same n-gram was continued the last time it appeared in prompt or output.

Drafts are point masses, so they are always exact. After Saxena, "Prompt Lookup Decoding" (2023); here the longest
match wins, among equals the most recent, and a match that runs into the end of the text goes on periodically.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate

from ..errors import OptionError
from ..types import EMPTY_DRAFT, Draft, DraftRequest
from .context import DraftContext
from .offer import Offer, discount


class NgramIndex:
    """Where each n-gram of one text last ended, kept up to date as the text grows.

    Args:
        min_n, max_n: lengths of the n-grams.
        eos_ids: tokens that end a text, so that nothing follows them.
    """

    def __init__(self, min_n: int, max_n: int, eos_ids: frozenset[int] = frozenset()):
        self._eos_ids = eos_ids
        self._sizes = range(max_n, min_n - 1, -1)
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}

    def follow(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that ends before the last token, so that a lookup never finds the text's own end."""
        size = len(self._tokens)
        if list(tokens[:size]) != self._tokens:
            self._tokens, self._ends, size = [], {}, 0
        self._tokens.extend(tokens[size:])
        for end in range(max(size, 1), len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._ends[tuple(tokens[end - n : end])] = end

    def match(self) -> tuple[int, int]:
        """Length of the longest known suffix, and where it last ended before; (0, 0) if none is known."""
        tokens = self._tokens
        for n in self._sizes:
            if n < len(tokens) and (end := self._ends.get(tuple(tokens[-n:]))) is not None:
                return n, end
        return 0, 0

    def lookup(self, num: int) -> list[int]:
        """Up to `num` tokens that followed the longest known suffix, to the end of their text; empty if unknown."""
        n, end = self.match()
        if not n or self._tokens[end - 1] in self._eos_ids:
            return []
        period = len(self._tokens) - end
        found = [self._tokens[end + i % period] for i in range(num)]
        last = next((i for i, token in enumerate(found) if token in self._eos_ids), num)
        return found[: last + 1]


class NgramDrafter:
    """Drafts from the sequence's own prompt and output.

    Args:
        min_n, max_n: shortest and longest n-gram looked up.
        eos_ids: tokens that end a text.

    Raises:
        OptionError: not 1 <= min_n <= max_n.
    """

    def __init__(self, min_n: int = 2, max_n: int = 5, eos_ids: frozenset[int] = frozenset()):
        if not 1 <= min_n <= max_n:
            raise OptionError(f"ngram lengths must satisfy 1 <= shortest <= longest, not {min_n}-{max_n}")
        self.name = "ngram"
        self.min_n, self.max_n, self._eos_ids = min_n, max_n, eos_ids
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [offer.draft for offer in self.offers(requests)]

    def offers(self, requests: Sequence[DraftRequest]) -> list[Offer]:
        """The drafts with what is expected of them: what a context of n tokens that was seen once is worth."""
        return [self._offer(request) for request in requests]

    def _offer(self, request: DraftRequest) -> Offer:
        index = self._indexes.get(request.id)
        if index is None:
            index = self._indexes[request.id] = NgramIndex(self.min_n, self.max_n, self._eos_ids)
        index.follow(request.tokens)
        tokens = index.lookup(request.max_nodes)
        if not tokens:
            return Offer(EMPTY_DRAFT, 0.0)
        first = index.match()[0]
        survival = list(accumulate((1 - discount(n) for n in range(first, first + len(tokens))), operator.mul))
        return Offer(Draft.chain(tokens, survival=survival), sum(survival))

    def release(self, sequence_id: int) -> None:
        self._indexes.pop(sequence_id, None)


def build(argument: str, context: DraftContext) -> NgramDrafter:
    """`ngram`, `ngram:LONGEST` or `ngram:SHORTEST-LONGEST`."""
    if not argument:
        return NgramDrafter(eos_ids=context.eos_ids)
    shortest, _, longest = argument.rpartition("-")
    if not longest.isdecimal() or (shortest and not shortest.isdecimal()):
        raise OptionError(f"ngram takes LONGEST or SHORTEST-LONGEST, as in ngram:2-5, not {argument!r}")
    return NgramDrafter(int(shortest or min(2, int(longest))), int(longest), context.eos_ids)
