"""Probability laws over a vocabulary, sparse wherever few tokens have mass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Probs:
    """R probability laws over the V ids of one vocabulary, dense or sparse.

    Fields:
        values: `[R, V]` dense or `[R, W]` sparse, float32 (float64 in the exact tests); rows sum to 1.
        ids: None (dense), or int64 `[R, W]`: the id of each value. Padding entries have value 0 and any id.
        vocab_size: V.
    """

    values: Tensor
    ids: Tensor | None
    vocab_size: int

    @staticmethod
    def dense(values: Tensor) -> Probs:
        """Wrap a `[R, V]` tensor."""
        return Probs(values, None, values.shape[-1])

    @staticmethod
    def one_hot(tokens: Tensor | Sequence[int], vocab_size: int) -> Probs:
        """R point masses; `tokens` has shape `[R]`."""
        ids = torch.as_tensor(tokens, dtype=torch.long).reshape(-1, 1)
        return Probs(torch.ones_like(ids, dtype=torch.float32), ids, vocab_size)

    @staticmethod
    def stack(parts: Sequence[Probs]) -> Probs:
        """Concatenate rows; sparse rows are padded to a common width, one dense part makes the whole dense."""
        if len(parts) == 1:
            return parts[0]
        if any(part.ids is None for part in parts):
            return Probs.dense(torch.cat([part.to_dense() for part in parts]))
        width = max(part.values.shape[1] for part in parts)

        def widen(tensor: Tensor) -> Tensor:
            return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]))

        ids = torch.cat([widen(part.ids) for part in parts if part.ids is not None])
        return Probs(torch.cat([widen(part.values) for part in parts]), ids, parts[0].vocab_size)

    def __len__(self) -> int:
        return self.values.shape[0]

    def row(self, row: int) -> Probs:
        """One row by itself; shares the memory."""
        ids = None if self.ids is None else self.ids[row : row + 1]
        return Probs(self.values[row : row + 1], ids, self.vocab_size)

    def top(self, row: int, num: int) -> list[tuple[int, float]]:
        """The up to `num` most likely tokens of one row and their probabilities, those without mass left out."""
        ids, values = self.support(row)
        best = values.topk(min(num, len(values)))
        tokens = best.indices if ids is None else ids[best.indices]
        return [(token, prob) for token, prob in zip(tokens.tolist(), best.values.tolist()) if prob > 0]

    def prob(self, row: int, token: int) -> float:
        """The probability of one token."""
        if self.ids is None:
            return float(self.values[row, token])
        return float(self.values[row][self.ids[row] == token].sum())

    def at(self, row: int, ids: Tensor | None) -> Tensor:
        """The probabilities of the given distinct ids `[M]` (None: of all V ids), in their order."""
        values = self.values[row]
        if self.ids is None:
            return values if ids is None else values[ids]
        if ids is not None and ids.numel() * values.numel() <= 1 << 16:
            return ((ids[:, None] == self.ids[row]) * values).sum(-1)
        spread = self.to_dense(row)
        return spread if ids is None else spread[ids]

    def support(self, row: int) -> tuple[Tensor | None, Tensor]:
        """The ids (None: all V in order) that may have mass, and their probabilities."""
        return (None if self.ids is None else self.ids[row]), self.values[row]

    def to_dense(self, row: int | None = None) -> Tensor:
        """`[R, V]`, or `[V]` of one row."""
        if self.ids is None:
            return self.values if row is None else self.values[row]
        values, ids = (self.values, self.ids) if row is None else (self.values[row], self.ids[row])
        shape = (*values.shape[:-1], self.vocab_size)
        return values.new_zeros(shape).scatter_add_(-1, ids, values)
