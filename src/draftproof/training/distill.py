"""A draft model taught by its target: fewer layers of the target itself, or of a smaller model of its family.

The layers that stay, the final norm and the output rows of the draft vocabulary are trained; the embeddings stay the
model's own, so that a draft cut from the target shares them with it and its folder holds none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError
from ..models import shrink
from ..models.cached_lm import CachedLM
from ..models.hf import LoadedModel, sliding_window
from ..models.plugged import PluggedForward
from ..models.slim import write_slim
from .corpus import Sample
from .recipe import Step
from .teacher import Lesson


class DistillRecipe:
    """See the module; `Recipe`.

    Args:
        draft: the model to begin from; copied.
        vocab: the draft vocabulary, or None for all.
        layers: how many of its layers stay, or exactly which; None are all.
        shares_embedding: its embeddings are the target's, which will be there when it drafts.
        train_output: train the output rows too; otherwise they stay the model's.
        weights_format: of the written folder: "bf16" or "int8".
        low_memory: compute activations anew for the gradient.

    Raises:
        OptionError: layers it does not have, or attention that the training cannot lay side by side.
    """

    name = "distill"
    ce_weight = 1.0
    same_law = True
    taps: tuple[int, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    def __init__(
        self,
        draft: LoadedModel,
        vocab: Tensor | None,
        *,
        layers: int | Sequence[int] | None = None,
        shares_embedding: bool = False,
        train_output: bool = True,
        weights_format: str = "bf16",
        low_memory: bool = False,
    ):
        if sliding_window(draft.config) is not None:
            raise OptionError(f"{draft.name} has a sliding window: choose a draft model with plain attention")
        self.net = copy.deepcopy(draft.model).float()
        self.vocab = vocab
        self._tokenizer, self._eos_ids = draft.tokenizer, draft.eos_token_ids
        self._shares_embedding, self._format = shares_embedding, weights_format
        if layers is not None:
            shrink.keep_layers(self.net, layers, draft.name)
        shrink.keep_outputs(self.net, list(range(draft.vocab_size)) if vocab is None else vocab.tolist())
        self._body = getattr(self.net, self.net.base_model_prefix)
        self.net.requires_grad_(True)
        self.net.get_input_embeddings().weight.requires_grad_(False)
        self.net.get_output_embeddings().weight.requires_grad_(train_output)
        if low_memory:
            self.net.gradient_checkpointing_enable({"use_reentrant": False})
            self.net.train()
            for module in self.net.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0

    def steps(self, lesson: Lesson, num_steps: int, seed: int | None = None) -> Iterator[Step]:
        """See `Recipe`; one step says the law at every position."""
        batch, device = lesson.batch, self.net.device
        output = self._body(
            input_ids=batch.tokens.to(device),
            attention_mask=batch.sees().to(device),
            position_ids=batch.positions.to(device),
            use_cache=False,
        )
        yield Step(output.last_hidden_state.flatten(0, 1)[batch.rows()])

    def rollout(self, samples: Sequence[Sample], seed: int) -> list[Sample]:
        """The same prompts, the answers drawn from the draft as it is now (on-policy distillation, 2306.13649).

        An answer is as long as it was, or ends at an end of text. A text's first answer begins it; a text that counts
        from its beginning keeps its first quarter.
        """
        starts = [_start(s) for s in samples]
        lm = CachedLM(PluggedForward(self.net, max(len(s.ids) for s in samples) + 1), len(samples))
        chance = torch.Generator().manual_seed(seed)
        texts = [list(s.ids[:start]) for s, start in zip(samples, starts)]
        rows = [lm.open(()) for _ in texts]
        going = [i for i, s in enumerate(samples) if len(texts[i]) < len(s.ids)]
        while going:
            unread = [texts[i][len(lm.held(rows[i])) :] for i in going]
            logits = lm.extend([rows[i] for i in going], unread).float()
            drawn = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=chance)[:, 0]
            ids = drawn if self.vocab is None else self.vocab[drawn]
            for i, token in zip(going, ids.tolist()):
                texts[i].append(token)
            going = [i for i in going if texts[i][-1] not in self._eos_ids and len(texts[i]) < len(samples[i].ids)]
        return [
            Sample(tuple(text), (False,) * start + (True,) * (len(text) - start), s.category, s.key)
            for text, start, s in zip(texts, starts, samples)
        ]

    def logits(self, hidden: Tensor, step: int) -> Tensor:
        return self.net.get_output_embeddings()(hidden)

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        """A folder for `model:FOLDER`; see `models.slim`."""
        write_slim(
            self.net,
            folder,
            ids=self.vocab,
            embedding=not self._shares_embedding,
            weights=self._format,
            tokenizer=None if self._shares_embedding else self._tokenizer,
            eos_ids=self._eos_ids,
        )


def _start(sample: Sample) -> int:
    """Where the text's own answer begins."""
    first = sample.answer.index(True)
    return first if first >= 4 else max(1, len(sample.ids) // 4)
