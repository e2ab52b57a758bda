"""Rotary positions: cosines and sines by position, from the model's own embedding, grown as texts grow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Rotary:
    """cos and signed sin, so that rotating is x * cos + roll(x, D / 2) * sin.

    Args:
        embedding: the model's own module; called with (a tensor of the wanted dtype, positions).
        width: D.
        max_length: number of positions the model knows.
    """

    def __init__(self, embedding: Any, width: int, max_length: int, dtype: torch.dtype, device: torch.device):
        self._embedding, self._width, self._max_length = embedding, width, max_length
        self._like = torch.zeros(1, 1, dtype=dtype, device=device)
        self._cos = self._sin = self._like[:0]

    @torch.inference_mode()
    def table(self, highest: int) -> tuple[Tensor, Tensor]:
        """cos and sin `[P, D]` with P > `highest`."""
        if highest >= len(self._cos):
            positions = torch.arange(min(self._max_length, max(256, 2 * highest)), device=self._like.device)
            cos, sin = self._embedding(self._like[None], positions[None])
            sign = torch.ones(self._width, dtype=sin.dtype, device=sin.device)
            sign[: self._width // 2] = -1
            self._cos, self._sin = cos[0].contiguous(), sin[0] * sign
        return self._cos, self._sin
