"""An earlier text said again with changes: where the output is in it, and what it says differently.

Whoever asks for an edit gets most of the old text back, but every change breaks the context that a search for repeated
words needs. So the place in the old text is kept across a change, and a change that was seen once (a renamed variable)
is expected wherever the old words come again. All of it is a function of the text alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .offer import discount

_AGREED = 3  # tokens that must repeat before an earlier text counts as being followed
_REACH = 12  # tokens on either side after which a change is no longer one
_LONGEST = 8  # tokens on either side of a change that is remembered


class Revision:
    """Reads a growing text token by token and says how the output goes on if it follows an earlier part of the text.

    Args:
        num_prompt: tokens before the output. A prompt may resemble itself in many places, but revises nothing.
        eos_ids: tokens that end a text, so that nothing follows them.
    """

    def __init__(self, num_prompt: int = 0, eos_ids: frozenset[int] = frozenset()) -> None:
        self._num_prompt, self._eos_ids = num_prompt, eos_ids
        self._num_read = 0
        self._ends: dict[tuple[int, ...], int] = {}  # where any few words stood last: the position after them
        self._at: int | None = None  # position of the old text's next token; None: nothing is followed
        self._run = 0  # tokens that came as expected
        self._changes: dict[tuple[int, ...], tuple[int, ...]] = {}  # old words to new ones
        self._due: list[int] = []  # what is still to come of the words begun last
        self._old = self._new = 0  # where these words begin, in the old text and in the new
        self._apart = False  # what came was not what was due

    def follow(self, tokens: Sequence[int]) -> None:
        """Read what is new of `tokens`."""
        for i in range(self._num_read, len(tokens)):
            if self._at is not None:
                self._compare(tokens, i)
            words = tuple(tokens[max(0, i + 1 - _AGREED) : i + 1])
            if i >= self._num_prompt - 1 and self._at is None and words in self._ends:
                self._at, self._run, self._due, self._apart = self._ends[words], len(words), [], False
            self._ends[words] = i + 1
        self._num_read = len(tokens)

    def proposal(self, tokens: Sequence[int], num: int, floor: float) -> tuple[list[int], list[float]]:
        """Up to `num` tokens that the old text and the known changes let expect, and the chance of the text up to each.

        Right after a change that is not known, it is taken for one of single tokens, and expected again at once.
        """
        if self._at is None:
            return [], []
        skipped = len(tokens) - self._new if self._apart else 0
        if skipped > 2:
            return [], []
        found, begin, at, changes = list(self._due), self._at - 1, self._at, self._changes
        if self._apart:
            begin, at = self._old, self._old + skipped
            changes = {**changes, tuple(tokens[begin:at]): tuple(tokens[self._new :])}
        while len(found) < num and at < len(tokens) and self._eos_ids.isdisjoint(tokens[begin:at]):
            old = _words(tokens, at, changes)
            found += changes.get(old, old)
            begin, at = at, at + len(old)
        survival: list[float] = []
        for n, _ in enumerate(found[:num]):
            chance = (survival[-1] if survival else 1.0) * (1 - discount((self._run >> skipped) + n))
            if chance < floor:
                break
            survival.append(chance)
        return found[: len(survival)], survival

    def _compare(self, tokens: Sequence[int], i: int) -> None:
        """The next token of the new text, `tokens[i]`, beside the old one."""
        assert self._at is not None
        if self._apart:
            self._rejoin(tokens, i)
        elif not self._due and self._at >= i:
            self._at = None  # the old text has run into the present
        else:
            if not self._due:
                words = _words(tokens, self._at, self._changes)
                self._old, self._new, self._due = self._at, i, list(self._changes.get(words, words))
                self._at += len(words)
            self._apart = self._due.pop(0) != tokens[i]
            if self._apart:
                self._due = []
            else:
                self._run += 1

    def _rejoin(self, tokens: Sequence[int], i: int) -> None:
        """Find the place after the change: two tokens that agree, or one where as many came as were left out."""
        num_new = i + 1 - self._new
        for end in range(self._old + 1, min(self._old + _REACH + 2, self._new) + 1):
            num_same = 0
            while num_same < min(end - self._old, num_new) and tokens[end - 1 - num_same] == tokens[i - num_same]:
                num_same += 1
            if num_same >= 2 or (num_same == 1 and end - self._old == num_new):
                old = tuple(tokens[self._old : end - num_same])
                new = tuple(tokens[self._new : i + 1 - num_same])
                if 0 < len(old) <= _LONGEST and 0 < len(new) <= _LONGEST:
                    self._changes[old] = new
                self._at, self._run, self._apart = end, self._run // 2 + num_same, False
                return
        if num_new > _REACH:
            self._at = None


def _words(tokens: Sequence[int], at: int, changes: Mapping[tuple[int, ...], tuple[int, ...]]) -> tuple[int, ...]:
    """The longest old words known to change that stand at a position, else the one token there."""
    for size in range(min(_LONGEST, len(tokens) - at), 0, -1):
        if (words := tuple(tokens[at : at + size])) in changes:
            return words
    return (tokens[at],)
