"""What a recipe gives the loop: a network, what it says at every step of a round, and how it is written.

The loop, the losses, the held-out measure and the checkpoints are the same for all; a recipe is one file that knows
one kind of drafter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from .corpus import Sample
from .teacher import Lesson


@dataclass(frozen=True)
class Step:
    """What a network says of the tokens drafted as the s-th of their rounds.

    Fields:
        hidden: `[n, H]`, what the output layer reads, at `batch.rows(s)`.
        extra: a loss of the recipe's own `[n]`, or None.
    """

    hidden: Tensor
    extra: Tensor | None = None


class Recipe(Protocol):
    """A kind of drafter to train.

    net: the trained parameters are those of it that require a gradient. taps: the target's layers it reads. vocab:
    int64 `[D]`, the tokens it drafts by the target's ids, ascending, or None for all. weights: of each step's loss, as
    many as steps are unrolled in training. ce_weight: of the divergence beside the recipe's own loss. same_law: its
    law does not depend on how far back its round began, so one step says them all.
    """

    name: str
    taps: tuple[int, ...]
    vocab: Tensor | None
    weights: tuple[float, ...]
    ce_weight: float
    same_law: bool

    @property
    def net(self) -> nn.Module: ...

    def steps(self, lesson: Lesson, num_steps: int, seed: int | None = None) -> Iterator[Step]:
        """The first steps of all rounds. `seed`: of noise in training; None in measuring."""
        ...

    def logits(self, hidden: Tensor, step: int) -> Tensor:
        """The output layer: `[n, D]`."""
        ...

    def rollout(self, samples: Sequence[Sample], seed: int) -> list[Sample] | None:
        """The samples' prompts with answers of the network's own, none longer than before; None if it writes none."""
        ...

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        """A folder that the engine takes as a drafter, from the network as it is.

        Args:
            about: what was measured on held-out text (`evaluate.Measured.to_dict`), and the target's name.
        """
        ...


def frequent(frequencies: Mapping[int, int], num: int | None, vocab_size: int, always: Any) -> Tensor | None:
    """int64 `[num]`: the tokens a draft should know, ascending; None where it is to know all."""
    import torch

    from ..models.shrink import frequent_ids

    if num is None or num >= vocab_size:
        return None
    ranked = sorted(frequencies, key=lambda token: (-frequencies[token], token))
    return torch.tensor(frequent_ids(num, vocab_size, [ranked], always))
