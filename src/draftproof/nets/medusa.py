"""Medusa's heads (2401.10774): each reads the target's last hidden state and says one later token.

Head i (from 0) at position p speaks of the token at p + i + 2; the target's own output layer of p + 1. A head is
residual blocks x + silu(W x + b) and an output layer.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import silu

Choice = tuple[int, ...]
"""A node by the ranks of the tokens on its path: (0, 2) is head 1's third most likely token after head 0's first."""


@dataclass(frozen=True)
class MedusaConfig:
    """What Medusa's heads are made of.

    Fields:
        num_heads: how many.
        num_blocks: residual blocks in each.
        hidden_size: H of the target.
        vocab_size: V of the target.
        num_outputs: D, rows of an output layer: V, or fewer with a token map.
        block_bias: the blocks have biases.
        shared_output: one output layer serves all heads.
    """

    num_heads: int
    num_blocks: int
    hidden_size: int
    vocab_size: int
    num_outputs: int
    block_bias: bool = True
    shared_output: bool = False


class _Blocks(nn.Module):
    def __init__(self, config: MedusaConfig):
        super().__init__()
        size = config.hidden_size
        self.layers = nn.ModuleList(nn.Linear(size, size, config.block_bias) for _ in range(config.num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + silu(layer(x))
        return x


class MedusaNet(nn.Module):
    """All heads. Names of parameters are vLLM's."""

    def __init__(self, config: MedusaConfig):
        super().__init__()
        self.config = config
        num_outputs = 1 if config.shared_output else config.num_heads
        self.blocks = nn.ModuleList(_Blocks(config) for _ in range(config.num_heads))
        self.lm_heads = nn.ModuleList(
            nn.Linear(config.hidden_size, config.num_outputs, bias=False) for _ in range(num_outputs)
        )

    def forward(self, states: Tensor, num_heads: int | None = None) -> list[Tensor]:
        """The first heads' logits `[..., D]` from the target's last hidden states `[..., H]`, normed."""
        blocks = list(self.blocks)[:num_heads]
        heads = [self.lm_heads[0]] * len(blocks) if self.config.shared_output else list(self.lm_heads)
        return [head(block(states)) for block, head in zip(blocks, heads)]


def tree_choices(accuracies: Sequence[Sequence[float]], num_nodes: int) -> list[Choice]:
    """The `num_nodes` paths most likely to be right, each after its parent.

    Args:
        accuracies: by head, how often its token of rank 0, 1, ... is the target's; descending. A path's chance is taken
            for the product of its nodes' (2401.10774, section 2.3.3).
    """
    found: list[Choice] = []
    waiting: list[tuple[float, Choice]] = [(-accuracies[0][0], (0,))] if num_nodes > 0 else []
    while waiting and len(found) < num_nodes:
        weight, choice = heapq.heappop(waiting)
        found.append(choice)
        depth, rank = len(choice) - 1, choice[-1]
        if rank + 1 < len(accuracies[depth]) and accuracies[depth][rank]:
            sibling = weight / accuracies[depth][rank] * accuracies[depth][rank + 1]
            heapq.heappush(waiting, (sibling, (*choice[:-1], rank + 1)))
        if depth + 1 < len(accuracies):
            heapq.heappush(waiting, (weight * accuracies[depth + 1][0], (*choice, 0)))
    return found
