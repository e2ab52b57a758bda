"""Medusa heads (2401.10774): each learns to say one later token from the target's last hidden state.

Every head begins as the target's own output layer behind an empty residual block; head k's loss weighs 0.8^k. From how
often each head's r-th token is right on held-out text comes the tree the heads draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError
from ..nets.medusa import MedusaConfig, MedusaNet, tree_choices
from ..nets.medusa_files import MedusaCheckpoint, write_medusa
from .corpus import Sample
from .recipe import Step
from .teacher import Lesson


class MedusaRecipe:
    """See the module; `Recipe`.

    Args:
        model: the target as transformers loaded it.
        vocab: the draft vocabulary, or None for all.
        num_heads: how many.
        num_blocks: residual blocks in each.
        decay: weight of head k is decay^k.
        shared_output: one trained output layer for all heads, a small fraction of the size.
        num_nodes: of the tree that is written with them; 0 writes none, and they draft chains.
    """

    name = "medusa"
    ce_weight = 1.0
    same_law = False

    def __init__(
        self,
        model: Any,
        vocab: Tensor | None,
        *,
        num_heads: int = 4,
        num_blocks: int = 1,
        decay: float = 0.8,
        shared_output: bool = True,
        num_nodes: int = 16,
    ):
        for label, value in (("heads", num_heads), ("blocks", num_blocks)):
            if value < 1:
                raise OptionError(f"Medusa needs at least 1 of its {label}, not {value!r}")
        config = model.config.get_text_config()
        output = model.get_output_embeddings().weight.detach()
        self.vocab = vocab
        self.taps: tuple[int, ...] = (config.num_hidden_layers,)
        self.weights = tuple(decay**head for head in range(num_heads))
        self._num_nodes = num_nodes
        size = output.shape[0] if vocab is None else len(vocab)
        made = MedusaConfig(num_heads, num_blocks, config.hidden_size, output.shape[0], size, True, shared_output)
        self.net = MedusaNet(made)
        with torch.no_grad():
            for name, weight in self.net.named_parameters():
                if name.startswith("lm_heads"):
                    weight.copy_(output if vocab is None else output[vocab])
                else:
                    weight.zero_()  # silu(0) = 0: each head is the output layer itself, yet its gradient is not 0

    def steps(self, lesson: Lesson, num_steps: int, seed: int | None = None) -> Iterator[Step]:
        """See `Recipe`; head k at position p drafts the token p + k + 2, the k-th of the round that begins there."""
        dtype = self.net.get_parameter("lm_heads.0.weight").dtype
        for head, block in enumerate(list(self.net.blocks)[:num_steps]):
            states = lesson.states[lesson.batch.rows(head) - head - 1]
            yield Step(block(states.to(dtype)))

    def logits(self, hidden: Tensor, step: int) -> Tensor:
        heads = self.net.lm_heads
        return heads[0 if self.net.config.shared_output else step](hidden)

    def rollout(self, samples: Sequence[Sample], seed: int) -> None:
        """A head writes no text by itself."""

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        """vLLM's layout, with the tree in `medusa_choices`."""
        tensors = {name: tensor.detach().to(torch.bfloat16) for name, tensor in self.net.state_dict().items()}
        if self.vocab is not None:
            tensors["token_map"] = self.vocab
        ranks = about.get("ranks")
        choices = tree_choices(ranks, self._num_nodes) if ranks and self._num_nodes else []
        checkpoint = MedusaCheckpoint(self.net.config, tensors)
        write_medusa(checkpoint, folder, "vllm", target=str(about.get("target", "")), choices=choices)
