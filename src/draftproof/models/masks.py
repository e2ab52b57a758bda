"""From ragged blocks of tokens to one rectangular pass: ids, positions, cache slots and the attention mask.

A block is one row's share of a pass: some tokens fed at the end of what the row holds, as a chain or as a tree.
Its i-th token is written to slot start + i; its position is start + depth. It sees every slot of its row before start,
its ancestors in the block, and itself. Short blocks are padded on the right: padding sees the past and itself,
nobody sees it, and its slots are overwritten before they could count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """One row's tokens in a pass. `parents[i]` < i, -1 for a token that follows the row's past; None is a chain.

    The first `fed` tokens lie in their slots already, from an earlier pass of the same tree; only the others are
    queries.
    """

    row: int
    start: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    fed: int = 0

    @property
    def queries(self) -> Sequence[int]:
        """The tokens this pass feeds."""
        return self.tokens[self.fed :]

    def depths(self) -> Sequence[int]:
        """How far each token is below the row's past; its position is start + depth."""
        if self.parents is None:
            return range(len(self.tokens))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def sees(self) -> Tensor:
        """bool `[n, n]`: which tokens of the block each token sees: its ancestors and itself."""
        size = len(self.tokens)
        if self.parents is None:
            return torch.ones(size, size, dtype=torch.bool).tril_()
        sees = torch.eye(size, dtype=torch.bool)
        for token, parent in enumerate(self.parents):
            if parent >= 0:
                sees[token] |= sees[parent]
        return sees

    def runs(self) -> list[tuple[int, list[int]]]:
        """The tree cut into chains, depth first: (depth of the first token, the tokens' indices).

        A run's earlier path is what the runs before it last left at each lesser depth.
        """
        children: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for token, parent in enumerate(self.parents or range(-1, len(self.tokens) - 1)):
            children[parent + 1].append(token)
        runs, waiting = [], [(0, token) for token in reversed(children[0])]
        while waiting:
            depth, token = waiting.pop()
            run = [token]
            while below := children[token + 1]:
                waiting.extend((depth + len(run), other) for other in reversed(below[1:]))
                token = below[0]
                run.append(token)
            runs.append((depth, run))
        return runs


@dataclass(frozen=True)
class Pass:
    """A rectangular pass over B rows and Q queries, reading S slots.

    Fields:
        ids, positions, slots: int64 `[B, Q]`.
        mask: bool `[B, 1, Q, S]`, True where a query sees a slot.
        key_positions: int64 `[B, S]`: the position of the token in each slot.
        rows: cache rows, one per entry of B.
        start: the first slot that all blocks write, or None if they differ.
        span: S.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    mask: Tensor
    key_positions: Tensor
    rows: tuple[int, ...]
    start: int | None
    span: int

    def window(self, size: int) -> Tensor:
        """The mask of a sliding-window layer: only slots less than `size` positions back. bool `[B, 1, Q, S]`."""
        distance = self.positions[:, None, :, None] - self.key_positions[:, None, None, :]
        return self.mask & (distance < size)


def arrange(blocks: Sequence[Block], max_position: int, device: torch.device | str = "cpu") -> Pass:
    """Lay blocks side by side.

    Args:
        blocks: one per row, none empty.
        max_position: highest position the model knows; only padding is ever clamped to it.
    """
    num_queries = max(len(block.queries) for block in blocks)
    span = max(block.start + block.fed for block in blocks) + num_queries
    starts = torch.tensor([block.start for block in blocks])[:, None]
    firsts = torch.tensor([block.start + block.fed for block in blocks])[:, None]
    offsets = torch.arange(num_queries)
    positions = firsts + offsets
    ids = torch.zeros(len(blocks), num_queries, dtype=torch.long)
    columns = torch.arange(span)
    key_positions = columns.repeat(len(blocks), 1)
    mask = (columns < starts)[:, None, :].repeat(1, num_queries, 1)
    for b, block in enumerate(blocks):
        size, fed, first = len(block.queries), block.fed, block.start + block.fed
        ids[b, :size] = torch.as_tensor(block.queries)
        depths = torch.as_tensor(block.depths())
        positions[b, :size] = block.start + depths[fed:]
        key_positions[b, block.start : first] = block.start + depths[:fed]
        mask[b, :, first : first + num_queries] = torch.eye(num_queries, dtype=torch.bool)  # padding: past and itself
        mask[b, :size, block.start : block.start + fed + size] = block.sees()[fed:]
    positions.clamp_(max=max_position)
    slots = firsts + offsets
    key_positions.scatter_(1, slots, positions)
    same = len({block.start + block.fed for block in blocks}) == 1
    return Pass(
        ids=ids.to(device),
        positions=positions.to(device),
        slots=slots.to(device),
        mask=mask[:, None].to(device),
        key_positions=key_positions.to(device),
        rows=tuple(block.row for block in blocks),
        start=blocks[0].start + blocks[0].fed if same else None,
        span=span,
    )
