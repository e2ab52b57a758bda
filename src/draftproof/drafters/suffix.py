"""Suffix drafting: go on as this text, and if wanted the caller's earlier outputs, went on after the same words.

A suffix automaton knows every context of the prompt and the output so far, with counts. The longest context that
occurred before and a few shorter ones are each continued by their most frequent followers; the continuation with the
most expected tokens wins (SuffixDecoding, 2411.04975). Where the text follows an earlier part with changes, the part
with those changes competes (`revision`). Estimated path probabilities decide a draft's length, so a long match gives a
long draft. Drafts are point masses and a function of the text alone: always exact.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import islice

from ..errors import OptionError
from ..types import EMPTY_DRAFT, Draft, DraftRequest
from .automaton import BREAK, Context, SuffixAutomaton
from .context import DraftContext
from .offer import Offer, discount
from .revision import Revision

_CONTEXTS = 4  # contexts tried, from the longest on
_NOTHING = Offer(EMPTY_DRAFT, 0.0)


def grow(text: SuffixAutomaton, context: Context, num: int, width: int = 1, floor: float = 0.0) -> Offer:
    """The best-first continuation of a context: always the node whose estimated path probability is highest.

    Args:
        num: at most this many nodes.
        width: at most this many children per node; 1 is a chain.
        floor: nodes whose path is less likely are left out.
    """
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    heap: list[tuple[float, int, int, int, Context]] = []  # -survival, order of arrival, parent, token, context
    survival, order = 1.0, 0
    while len(tokens) < num:
        for probability, token, longer in likely(text, context, width):
            if survival * probability >= floor:
                heapq.heappush(heap, (-survival * probability, order, len(tokens) - 1, token, longer))
                order += 1
        if not heap:
            break
        negative, _, parent, token, context = heapq.heappop(heap)
        survival = -negative
        tokens.append(token)
        parents.append(parent)
        chances.append(survival)
    if not tokens:
        return _NOTHING
    return Offer(Draft(tuple(tokens), tuple(parents), survival=tuple(chances)), sum(chances))


def likely(text: SuffixAutomaton, context: Context, width: int) -> list[tuple[float, int, Context]]:
    """The `width` most frequent followers (the latest among equals): probability, token, the context they make.

    A context that nothing followed, such as one at the very end of the text, gives way to its longest known suffix; so
    a period goes on for as long as it is asked for.
    """
    at: Context | None = context
    while at is not None and at.size:
        total, followers = text.followers(at)
        best = heapq.nlargest(width, followers, key=lambda follower: (follower.count, follower.last))
        if best:
            lost = discount(at.size)
            return [((f.count - lost) / total, f.token, text.longer(at, f.token)) for f in best]
        at = text.shorter(at)
    return []


class Memory:
    """What each caller was answered before; nobody sees another's.

    Args:
        max_tokens: kept per caller; beyond it the older half is forgotten.
        max_callers: the one longest unused is forgotten first.
    """

    def __init__(self, max_tokens: int = 1 << 15, max_callers: int = 16):
        self._max_tokens, self._max_callers = max_tokens, max_callers
        self._callers: OrderedDict[str, tuple[deque[list[int]], SuffixAutomaton]] = OrderedDict()

    def of(self, caller: str) -> SuffixAutomaton | None:
        """The text of a caller's outputs, or None."""
        if caller not in self._callers:
            return None
        self._callers.move_to_end(caller)
        return self._callers[caller][1]

    def add(self, caller: str, output: list[int]) -> None:
        """Remember one more output."""
        outputs, text = self._callers.pop(caller, (deque(), SuffixAutomaton()))
        outputs.append(output[-(self._max_tokens // 2) :])
        if text.num_tokens + len(output) <= self._max_tokens:
            text.extend([*output, BREAK])
        else:
            while sum(map(len, outputs)) > self._max_tokens // 2:
                outputs.popleft()
            text = SuffixAutomaton()
            for kept in outputs:
                text.extend([*kept, BREAK])
        self._callers[caller] = outputs, text
        while len(self._callers) > self._max_callers:
            self._callers.popitem(last=False)


class _Sequence:
    """One sequence's text, indexed as it grows; what ends a text is followed by nothing."""

    def __init__(self, request: DraftRequest, eos_ids: frozenset[int]):
        self.num_prompt, self.caller = request.num_prompt, request.params.caller
        self._eos_ids = eos_ids
        self._begin()

    def _begin(self) -> None:
        self.tokens: list[int] = []
        self.text = SuffixAutomaton()
        self.revision = Revision(self.num_prompt, self._eos_ids)

    def follow(self, tokens: Sequence[int]) -> None:
        """Read what is new; start again if the text was changed behind our back."""
        if list(tokens[: len(self.tokens)]) != self.tokens:
            self._begin()
        fresh = tokens[len(self.tokens) :]
        self.tokens.extend(fresh)
        for token in fresh:
            self.text.extend([token, BREAK] if token in self._eos_ids else [token])
        self.revision.follow(self.tokens)


class SuffixDrafter:
    """Drafts from the sequence's own text and, with a memory, from the same caller's earlier outputs.

    Args:
        width: children per node: 1 drafts chains, more draft trees.
        floor: a path less likely than this, by its own estimate, is not drafted.
        memory: earlier outputs by caller (`SamplingParams.caller`); None keeps none.
        eos_ids: tokens that end a text.
        name: as the user wrote it.
    """

    def __init__(
        self,
        width: int = 1,
        floor: float = 0.03,
        memory: Memory | None = None,
        eos_ids: frozenset[int] = frozenset(),
        name: str = "suffix",
    ):
        self.name, self._eos_ids = name, eos_ids
        self.width, self.floor, self.memory = width, floor, memory
        self._sequences: dict[int, _Sequence] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [offer.draft for offer in self.offers(requests)]

    def offers(self, requests: Sequence[DraftRequest]) -> list[Offer]:
        """The drafts with what is expected of them."""
        return [self._offer(request) for request in requests]

    def release(self, sequence_id: int) -> None:
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None and self.memory is not None and sequence.caller is not None:
            self.memory.add(sequence.caller, sequence.tokens[sequence.num_prompt :])

    def forget(self) -> None:
        """Drop earlier outputs, so that a measurement starts cold."""
        if self.memory is not None:
            self.memory = Memory()

    def _offer(self, request: DraftRequest) -> Offer:
        sequence = self._sequences.get(request.id)
        if sequence is None:
            sequence = self._sequences[request.id] = _Sequence(request, self._eos_ids)
        sequence.follow(request.tokens)
        best = _NOTHING
        for text in self._texts(sequence):
            for context in islice(_contexts(text, request.tokens), _CONTEXTS):
                offer = grow(text, context, request.max_nodes, self.width, self.floor)
                if offer.expected > best.expected:  # among equals the longer match, the own text first
                    best = offer
        chain, survival = sequence.revision.proposal(sequence.tokens, request.max_nodes, self.floor)
        expected = sum(survival)
        return Offer(Draft.chain(chain, survival=survival), expected) if expected > best.expected else best

    def _texts(self, sequence: _Sequence) -> Iterator[SuffixAutomaton]:
        yield sequence.text
        if self.memory is not None and sequence.caller is not None and (text := self.memory.of(sequence.caller)):
            yield text


def _contexts(text: SuffixAutomaton, tokens: Sequence[int]) -> Iterator[Context]:
    """The suffixes of `tokens` that the text knows with different followers, longest first, without the empty one."""
    context: Context | None = text.longest(tokens)
    while context is not None and context.size:
        yield context
        context = text.shorter(context)


def build(argument: str, context: DraftContext) -> SuffixDrafter:
    """`suffix`, with any of the options `tree` and `shared`: `suffix:tree`, `suffix:shared`, `suffix:tree-shared`."""
    options = argument.split("-") if argument else []
    if unknown := [option for option in options if option not in ("tree", "shared")]:
        raise OptionError(f"suffix takes tree, shared or tree-shared, not {unknown[0]!r}")
    memory = Memory() if "shared" in options else None
    name = f"suffix:{argument}" if argument else "suffix"
    return SuffixDrafter(8 if "tree" in options else 1, memory=memory, eos_ids=context.eos_ids, name=name)
