"""A suffix automaton over a growing text: where any recent context occurred before, how often, and what followed.

Blumer et al. (1985): every state is a set of substrings that end at the same places, and its link leads to the longest
of their suffixes that ends at more places. A text of n tokens has at most 2n states and is read in amortised constant
time per token. Counts are kept for strings of up to `depth` tokens only, which keeps that promise: one token adds to
at most `depth` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

BREAK = -1  # a token that is none: what comes before it and what comes after are texts of their own


@dataclass(frozen=True)
class Context:
    """A string of the text: the state it belongs to, and its length in tokens."""

    state: int
    size: int


@dataclass(frozen=True)
class Follower:
    """A token that followed a context: how often, and at which position it did last."""

    token: int
    count: int
    last: int


class SuffixAutomaton:
    """See the module.

    Args:
        depth: contexts are at most `depth` - 1 tokens long.
    """

    def __init__(self, depth: int = 32):
        self.depth = depth
        self.num_tokens = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._size = [0]  # of the state's longest string
        self._count = [0]  # occurrences, exact where the state's shortest string has at most `depth` tokens
        self._last = [0]  # number of tokens up to the end of the latest occurrence, exact likewise
        self._whole = 0  # the state of the whole text
        self._tail = 0  # the state of its last `depth` tokens

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ids, or `BREAK`."""
        for token in tokens:
            self._append(token)

    def longest(self, tokens: Sequence[int]) -> Context:
        """The longest suffix of `tokens` that occurs in the text; looks at the last `depth` - 1 of them."""
        state = size = 0
        for token in tokens[1 - self.depth :]:
            while state and token not in self._next[state]:
                state = self._link[state]
                size = self._size[state]
            if token in self._next[state]:
                state, size = self._next[state][token], size + 1
        return Context(state, size)

    def shorter(self, context: Context) -> Context | None:
        """The longest suffix of the context that occurs elsewhere too; None instead of the empty one."""
        state = self._link[context.state]
        return Context(state, self._size[state]) if state > 0 else None

    def followers(self, context: Context) -> tuple[int, Iterator[Follower]]:
        """How often the context was followed by anything, the end of a text included, and the tokens that did."""
        following = self._next[context.state]
        total = sum(self._count[state] for state in following.values())
        found = (Follower(t, self._count[s], self._last[s]) for t, s in following.items() if t != BREAK)
        return total, found

    def longer(self, context: Context, token: int) -> Context:
        """The context with one of its followers appended, cut on the left to `depth` - 1 tokens."""
        return self._cut(self._next[context.state][token], context.size + 1, self.depth - 1)

    def _cut(self, state: int, size: int, limit: int) -> Context:
        """The last `limit` tokens of a string of `size` tokens in `state`."""
        size = min(size, limit)
        while self._size[self._link[state]] >= size > 0:
            state = self._link[state]
        return Context(state, size)

    def _append(self, token: int) -> None:
        """One step of the online construction, then one more occurrence for every short suffix."""
        new = self._add(self._size[self._whole] + 1, {}, 0, 0, 0)
        state = self._whole
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            known = self._next[state][token]
            if self._size[known] > self._size[state] + 1:
                known = self._split(known, state, token)
            self._link[new] = known
        self._whole = new
        self.num_tokens += 1
        self._tail = self._cut(self._next[self._tail][token], self.num_tokens, self.depth).state
        state = self._tail
        while state > 0:
            self._count[state] += 1
            self._last[state] = self.num_tokens
            state = self._link[state]

    def _split(self, known: int, state: int, token: int) -> int:
        """Part the strings of `known` that `state` leads to from its longer ones; returns the state of the former."""
        part = self._add(
            self._size[state] + 1, dict(self._next[known]), self._link[known], self._count[known], self._last[known]
        )
        while state >= 0 and self._next[state].get(token) == known:
            self._next[state][token] = part
            state = self._link[state]
        self._link[known] = part
        return part

    def _add(self, size: int, following: dict[int, int], link: int, count: int, last: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._size.append(size)
        self._count.append(count)
        self._last.append(last)
        return len(self._next) - 1
