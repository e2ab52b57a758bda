"""What the target has to say about a batch: the hidden states a head reads, and its law where it counts.

The target runs in the forward that also serves it, so a head is trained on the very states it will be given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import OptionError
from ..models.masks import Block
from ..models.passes import Forward
from .batch import Batch
from .corpus import Sample
from .losses import Law, whole_law

_ROWS = 256  # rows of logits over the whole vocabulary at a time


@dataclass(frozen=True)
class Lesson:
    """A batch with its teacher.

    Fields:
        batch: R rows of L tokens.
        states: `[R * L, F]`: the tapped hidden states side by side, 0 where there is no text; F is 0 without taps.
        law: the target's law at `batch.rows()`.
    """

    batch: Batch
    states: Tensor
    law: Law

    def law_at(self, rows: Tensor) -> Law:
        """The law at flat positions, all of them supervised."""
        return self.law.at(self._number[rows])

    @cached_property
    def _number(self) -> Tensor:
        return self.batch.supervised.to(torch.int64).cumsum(0) - 1


class Teacher:
    """The target, run anew for every batch.

    Args:
        forward: the target.
        taps: layers whose input state is wanted (their number: the last state, normed), ascending.
        vocab: int64 `[D]`: the draft's tokens by the target's ids, ascending; None is all.
        temperature: of the law.
    """

    def __init__(self, forward: Forward, taps: Sequence[int], vocab: Tensor | None, temperature: float = 1.0):
        if temperature <= 0:
            raise OptionError(f"the teacher's temperature must be above 0, not {temperature!r}")
        self.forward, self.taps, self.vocab = forward, tuple(taps), vocab
        self.temperature = temperature

    def lesson(self, batch: Batch, samples: Sequence[Sample] = ()) -> Lesson:
        """The batch's lesson, in the target's dtype.

        Args:
            samples: those of the batch, in order; only a teacher that stored its lessons needs them.
        """
        features = self.states(batch)
        last, width = features[:, -self.forward.hidden_size :], len(self.taps) * self.forward.hidden_size
        states = features[:, :width] if self.taps[-1:] != (self.forward.num_layers,) else features
        rows = batch.rows()
        return Lesson(batch, states, self.law(last[rows], batch.next_ids(rows)))

    @torch.no_grad()
    def states(self, batch: Batch) -> Tensor:
        """The tapped states and the last one `[R * L, F]`."""
        forward, texts = self.forward, batch.texts()
        before, forward.taps = forward.taps, tuple(sorted({*self.taps, forward.num_layers}))
        try:
            tokens = batch.tokens.tolist()
            blocks = [Block(i, 0, tokens[row][start:end]) for i, (row, start, end) in enumerate(texts)]
            found = forward(blocks, "none").features
        finally:
            forward.taps = before
        assert found is not None
        length = batch.tokens.shape[1]
        at = torch.cat([torch.arange(row * length + start, row * length + end) for row, start, end in texts])
        states = torch.zeros(batch.tokens.numel(), found.shape[-1], dtype=found.dtype, device=found.device)
        states[at] = found.clone()  # out of inference mode, so that it can be learned from
        return states

    @torch.no_grad()
    def law(self, last: Tensor, next_ids: Tensor) -> Law:
        """The law `[n, D]` after normed last states `[n, T]`, whose texts go on with `next_ids`."""
        device = last.device
        vocab = None if self.vocab is None else self.vocab.to(device)
        parts = [
            whole_law(self.forward.project(some).clone(), ids, vocab, self.temperature)
            for some, ids in zip(last.split(_ROWS), next_ids.to(device).split(_ROWS))
        ]
        if len(parts) == 1:
            return parts[0]
        whole = parts or [whole_law(last.new_zeros(0, self.forward.vocab_size), next_ids, vocab)]
        joined = [torch.cat([getattr(part, name) for part in whole]) for name in ("p", "best", "said", "p_said")]
        return Law(joined[0], None, None, *joined[1:])
