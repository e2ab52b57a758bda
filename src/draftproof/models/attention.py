"""Attention of a pass in plain torch, on any device: rotation, cache update, each row over its own slots.

Bit-exact mode: a token's result must not depend on what shares the pass. Each row is attended by itself: over slots
rounded up to a multiple of 512, the block in which torch's CPU kernel adds keys up, and with at most 16 queries, padded
so that its last block of 32 rows is never so short that another kernel takes it. A tree is run as the chains it
consists of, one after another over the same slots, so that every token finds the keys of its path where they lie when
the path is fed alone: masked slots in between would change the order of the sums. `invariance` tries all that out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm, scaled_dot_product_attention

from .masks import Block
from .rotary import Rotary
from .slots import SlotStore

_GRAIN = 16  # slots per attention call are a multiple of this
_BLOCK = 512  # ... and of this in bit-exact mode: the kernel's block of keys
_QUERIES = 16  # queries per attention call in bit-exact mode
_ROWS, _LEAST = 32, 4  # the kernel's block of query rows, and the fewest that its last block may have


class Attention(Protocol):
    """Keys and values in, mixed values out. bitwise: whether results are bit-exact. chunk: prompt tokens a pass."""

    bitwise: bool

    @property
    def chunk(self) -> int: ...

    def plan(self, blocks: Sequence[Block]) -> Any:
        """What all layers of one pass share; makes room in the cache."""
        ...

    def __call__(self, number: int, qkv: Tensor, head_scale: Tensor | None, plan: Any) -> Tensor:
        """qkv `[T, (heads + 2 kv_heads) * D]` of layer `number`, tokens in block order, then rows that only pad.

        head_scale: norms of queries and keys float32 `[heads + kv_heads, D]` (Qwen3), or None.
        Returns `[T, heads * D]`; the tokens' keys and values are in the cache then.
        """
        ...


@dataclass(frozen=True)
class _View:
    """One row's share of a pass: tokens [first, last) in running order, its cache by layer, and what each may see."""

    first: int
    last: int
    start: int
    cache: list[tuple[Tensor, Tensor]]
    chunks: tuple[tuple[int, int, int, Tensor], ...]  # first and last query, number of slots, mask [1, 1, g * n, S]


@dataclass(frozen=True)
class _Tree:
    """A tree that is run as chains: where its tokens are in running order, and where their keys and values belong."""

    places: Tensor
    start: int
    cache: list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Plan:
    """cos and sin `[T, 1, D]`. Of trees run as chains: `order` has each run token's place, `back` undoes it."""

    cos: Tensor
    sin: Tensor
    views: list[_View]
    trees: list[_Tree]
    order: Tensor | None
    back: Tensor | None


class TorchAttention:
    """See the module and `Attention`."""

    def __init__(self, heads: int, kv_heads: int, width: int, eps: float, cache: SlotStore, rotary: Rotary):
        self.bitwise = False
        self._heads, self._kv_heads, self._width, self._eps = heads, kv_heads, width, eps
        self._cache, self._rotary = cache, rotary

    @property
    def chunk(self) -> int:
        """Products of more than 160 rows may take another kernel."""
        return 128 if self.bitwise else 512

    @property
    def shape(self) -> tuple[int, int, int]:
        """Query heads, key heads, width of a head."""
        return self._heads, self._kv_heads, self._width

    def plan(self, blocks: Sequence[Block]) -> _Plan:
        slots = max(block.start + len(block.tokens) for block in blocks)
        grain = _BLOCK if self.bitwise else _GRAIN
        self._cache.reserve(max(block.row for block in blocks) + 1, -(-slots // grain) * grain)
        chains, back, trees = self._chains(blocks) if self.bitwise else (blocks, None, [])
        positions = [block.start + depth for block in chains for depth in block.depths()[block.fed :]]
        cos, sin = self._rotary.table(max(positions))
        index = torch.tensor(positions, device=cos.device)
        order = None if back is None else back.argsort()
        return _Plan(cos[index][:, None], sin[index][:, None], self._views(chains), trees, order, back)

    def __call__(self, number: int, qkv: Tensor, head_scale: Tensor | None, plan: _Plan) -> Tensor:
        heads, kv_heads, width = self._heads, self._kv_heads, self._width
        rows = len(qkv)
        qkv = qkv.view(rows, heads + 2 * kv_heads, width)[: len(plan.cos)]
        if plan.order is not None:
            qkv = qkv[plan.order]
        qk = qkv[:, : heads + kv_heads]
        if head_scale is not None:
            qk = rms_norm(qk, (width,), None, self._eps) * head_scale.to(qk.dtype)
        qk = torch.addcmul(qk * plan.cos, torch.roll(qk, width // 2, -1), plan.sin)
        mixed = []
        for view in plan.views:
            keys, values = view.cache[number]
            end = view.start + view.last - view.first
            keys[:, view.start : end] = qk[view.first : view.last, heads:].transpose(0, 1)
            values[:, view.start : end] = qkv[view.first : view.last, heads + kv_heads :].transpose(0, 1)
            for first, last, span, mask in view.chunks:
                mixed.append(self.attend(qk[first:last, :heads], keys[None, :, :span], values[None, :, :span], mask))
        for tree in plan.trees:
            keys, values = tree.cache[number]
            end = tree.start + len(tree.places)
            keys[:, tree.start : end] = qk[tree.places, heads:].transpose(0, 1)
            values[:, tree.start : end] = qkv[tree.places, heads + kv_heads :].transpose(0, 1)
        out = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        if plan.back is not None:
            out = out[plan.back]
        return out if len(out) == rows else pad(out, (0, 0, 0, rows - len(out)))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """q `[n, heads, D]`, keys and values `[1, kv_heads, S, D]`, mask `[1, 1, g * m, S]`, m >= n; `[n, heads * D]`.

        Heads that share keys become more queries of one head, so each key is read once.
        """
        num, group = len(q), self._heads // self._kv_heads
        padded = mask.shape[2] // group
        q = q.view(num, self._kv_heads, group, self._width).permute(1, 2, 0, 3)
        if padded > num:
            q = pad(q, (0, 0, 0, padded - num))
        q = q.reshape(1, self._kv_heads, group * padded, self._width)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.view(self._kv_heads, group, padded, self._width)[:, :, :num]
        return out.permute(2, 0, 1, 3).reshape(num, -1)

    def _chains(self, blocks: Sequence[Block]) -> tuple[list[Block], Tensor | None, list[_Tree]]:
        """Trees as chains, depth first; where each token of the blocks went (None: nowhere else); and the trees."""
        if all(block.parents is None for block in blocks):
            return list(blocks), None, []
        chains, back, trees, first = [], [], [], 0
        for block in blocks:
            assert not block.fed, "bit-exact passes feed a tree whole"
            runs = block.runs()
            chains += [Block(block.row, block.start + depth, [block.tokens[i] for i in run]) for depth, run in runs]
            walked = torch.tensor([i for _, run in runs for i in run], dtype=torch.long)
            places = first + walked.argsort()
            back.append(places)
            first += len(walked)
            if block.parents is not None:
                trees.append(_Tree(places.to(self._cache.device), block.start, self._cache.row(block.row)))
        return chains, torch.cat(back).to(self._cache.device), trees

    def _views(self, blocks: Sequence[Block]) -> list[_View]:
        """Where each row's tokens go and what they see."""
        views, first = [], 0
        for block in blocks:
            size = len(block.queries)
            sees = block.sees()[block.fed :]
            chunks = []
            step = _QUERIES if self.bitwise else size
            for begin in range(0, size, step):
                stop = min(begin + step, size)
                chunks.append((first + begin, first + stop, *self.sight(block, sees, begin, stop)))
            start = block.start + block.fed
            views.append(_View(first, first + size, start, self._cache.row(block.row), tuple(chunks)))
            first += size
        return views

    def sight(self, block: Block, sees: Tensor, begin: int, stop: int) -> tuple[int, Tensor]:
        """S, and the additive mask `[1, 1, g * m, S]` of queries [begin, stop) of a block; padding sees slot 0.

        `sees` `[Q, n]`: which of the block's n tokens each query sees.
        """
        reach = block.start + (block.fed + stop if block.parents is None else len(block.tokens))
        grain = _BLOCK if self.bitwise else _GRAIN
        span = -(-reach // grain) * grain
        num = self._padded(stop - begin)
        mask = torch.full((num, span), -torch.inf, dtype=self._cache.dtype)
        mask[: stop - begin, : block.start] = 0
        own = min(span - block.start, len(block.tokens))
        mask[: stop - begin, block.start : block.start + own].masked_fill_(sees[begin:stop, :own], 0)
        mask[stop - begin :, 0] = 0
        return span, mask.to(self._cache.device).repeat(self._heads // self._kv_heads, 1)[None, None]

    def _padded(self, num: int) -> int:
        """Queries to attend with so that `num` of them get the bits that each gets alone."""
        group = self._heads // self._kv_heads
        while self.bitwise and 0 < group * num % _ROWS < _LEAST:
            num += 1
        return num
