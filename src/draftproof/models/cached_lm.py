"""A language model with a row of cache per sequence: open, prefill, extend, branch, score, keep, free.

Target and draft model are both this. It knows which tokens each row holds, so a row is brought to any text by
comparing prefixes: what agrees stays, the rest is fed. Freed rows keep their contents until they are needed, so a
second chat turn re-reads only what is new; a prefix that another row holds (a system prompt, a prompt with several
continuations) is copied, not read again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import Tensor

from ..errors import ModelError
from ..types import Draft, TargetOutput
from .features import FeatureStore
from .masks import Block
from .passes import Forward, PassOutput


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    size = min(len(a), len(b))
    if list(a[:size]) == list(b[:size]):
        return size
    return next(i for i in range(size) if a[i] != b[i])


class CachedLM:
    """See the module. Between `score` and `keep` a row's length is unchanged; everything else keeps this invariant:
    row r holds keys and values for exactly the positions of `held(r)`.

    Args:
        forward: the model.
        num_rows: at most this many sequences at a time.
        max_length: a lower limit than the model's own, if wanted.
    """

    def __init__(self, forward: Forward, num_rows: int, max_length: int | None = None):
        self.forward = forward
        self.vocab_size = forward.vocab_size
        self.max_length = min(forward.max_length, max_length or forward.max_length)
        self.lock = threading.RLock()  # for engines that share this model
        self._held: list[list[int]] = [[] for _ in range(num_rows)]
        self._features = FeatureStore(num_rows)
        self._pending: dict[int, tuple[int, Draft]] = {}
        self._busy: set[int] = set()
        self._last_use = [0] * num_rows
        self._clock = 0

    def forget(self) -> None:
        """Drop what idle rows hold, so that a measurement starts cold."""
        for row, held in enumerate(self._held):
            if row not in self._busy:
                held.clear()

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers whose input states are recorded (their number: the last hidden state, normed), ascending."""
        return self.forward.taps

    def tap(self, layers: Sequence[int]) -> None:
        """Record these layers' states too, from now on; idle rows are forgotten, as they were read without.

        Raises:
            ModelError: layers the model does not have, or sequences that run already.
        """
        taps = tuple(sorted({*self.taps, *layers}))
        if taps == self.taps:
            return
        if not 0 <= taps[0] <= taps[-1] <= self.forward.num_layers:
            raise ModelError(f"the target has layers 0 to {self.forward.num_layers - 1}, not {list(layers)}")
        if self._busy:
            raise ModelError("hidden states can be recorded from the start only: load this drafter while nothing runs")
        self.forward.taps = taps
        self.forget()
        self._features.clear()

    def features(self, row: int) -> Tensor | None:
        """The recorded states `[T, F]` of every position the row holds, side by side by layer; None without taps."""
        return self._features.read(row, len(self._held[row])) if self.taps else None

    @property
    def num_busy(self) -> int:
        return len(self._busy)

    def held(self, row: int) -> Sequence[int]:
        """The tokens whose keys and values the row holds."""
        return self._held[row]

    def open(self, tokens: Sequence[int]) -> int:
        """Take a free row, which then holds the longest prefix of `tokens` that any row holds.

        It is the free row that shares the longest one, if that is all of `tokens` or the better part of what it holds.
        What others may come back to is not given up for less: then it is the row longest unused, with a copy.

        Raises:
            ModelError: all rows are in use.
        """
        free = [row for row in range(len(self._held)) if row not in self._busy]
        if not free:
            raise ModelError(f"all {len(self._held)} cache rows are in use: raise max_batch or wait")
        shared = [common_prefix(held, tokens) for held in self._held]
        row = max(free, key=lambda r: (shared[r], -self._last_use[r], -r))
        if shared[row] < min(len(tokens), len(self._held[row]) / 2):
            row = min(free, key=lambda r: (self._last_use[r], r))
        source = max(range(len(shared)), key=lambda r: (shared[r], r == row))
        if shared[source] > shared[row]:
            self.forward.cache.copy(source, row, shared[source])
            self._features.copy(source, row, shared[source])
            self._held[row] = list(tokens[: shared[source]])
        self._busy.add(row)
        return row

    def free(self, row: int) -> None:
        """Give the row back; its contents stay for a later `open` with the same prefix."""
        self._clock += 1
        self._last_use[row] = self._clock
        self._pending.pop(row, None)
        self._busy.discard(row)

    def rewind(self, row: int, tokens: Sequence[int]) -> None:
        """Forget what does not agree with `tokens`; the row then holds a prefix of them."""
        held = self._held[row]
        del held[common_prefix(held, tokens) :]

    def prefill(self, row: int, tokens: Sequence[int]) -> None:
        """Make the row hold exactly `tokens`, feeding only what it does not hold already."""
        self.rewind(row, tokens)
        held = self._held[row]
        while len(held) < len(tokens):
            chunk = tokens[len(held) : len(held) + self.forward.chunk]
            block = Block(row, len(held), self._known(chunk))
            self._record([block], self.forward([block], "none"))
            held.extend(chunk)

    def extend(self, rows: Sequence[int], continuations: Sequence[Sequence[int]]) -> Tensor:
        """Append a non-empty chain to each row; returns the logits `[B, V]` after each chain's last token."""
        blocks = [Block(r, len(self._held[r]), self._known(c)) for r, c in zip(rows, continuations)]
        output = self.forward(blocks, "last")
        self._record(blocks, output)
        for row, continuation in zip(rows, continuations):
            self._held[row].extend(continuation)
        return output.logits

    def branch(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]], fed: Sequence[int]
    ) -> list[Tensor]:
        """Grow a tree below each row, layer by layer; lengths stay as they are until `settle`.

        Args:
            tokens, parents: each row's whole tree so far; -1 follows what the row holds.
            fed: how many of its nodes earlier calls fed; at least one is new.

        Returns:
            Each row's logits `[n, V]` after its n new nodes.
        """
        blocks = [
            Block(row, len(self._held[row]), self._known(nodes), above, done)
            for row, nodes, above, done in zip(rows, tokens, parents, fed)
        ]
        return list(self.forward(blocks, "all").logits.split([len(block.queries) for block in blocks]))

    def settle(self, row: int, nodes: Sequence[int], tokens: Sequence[int]) -> None:
        """The row also keeps these nodes of the tree that `branch` grew: a path from the top, with its tokens."""
        held = self._held[row]
        self.forward.cache.move(row, [len(held) + node for node in nodes], len(held))
        held.extend(tokens)

    def score(self, rows: Sequence[int], roots: Sequence[int], drafts: Sequence[Draft]) -> list[TargetOutput]:
        """Feed each row its root and draft in one pass (the only place with a batch of drafts)."""
        blocks = []
        for row, root, draft in zip(rows, roots, drafts):
            parents = None if draft.is_chain else [-1, *(parent + 1 for parent in draft.parents)]
            blocks.append(Block(row, len(self._held[row]), self._known([root, *draft.tokens]), parents))
            self._pending[row] = (root, draft)
        output = self.forward(blocks, "all")
        self._record(blocks, output)
        sizes = [draft.num_nodes + 1 for draft in drafts]
        features = [None] * len(sizes) if output.features is None else output.features.split(sizes)
        return [TargetOutput(logits, own) for logits, own in zip(output.logits.split(sizes), features)]

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """The row keeps `length` positions, the scored root the last of them, then the path's nodes in order."""
        root, draft = self._pending.pop(row)
        held = self._held[row]
        assert length == len(held) + 1, f"row {row} holds {len(held)} positions, so the root is not at {length - 1}"
        sources = [length + node for node in path]
        self.forward.cache.move(row, sources, length)
        self._features.move(row, sources, length)
        held.append(root)
        held.extend(draft.tokens[node] for node in path)

    def _record(self, blocks: Sequence[Block], output: PassOutput) -> None:
        """Keep the states of a pass at the blocks' slots."""
        if output.features is None:
            return
        for block, features in zip(blocks, output.features.split([len(block.tokens) for block in blocks])):
            self._features.write(block.row, block.start, features)

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        """Ids beyond the model's table (a target with more padding than its drafter) are fed as its last id."""
        if max(tokens) < self.vocab_size:
            return tokens
        return [min(token, self.vocab_size - 1) for token in tokens]
