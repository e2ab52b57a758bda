"""Engines over test doubles and tiny models, and the slow, obvious loop they are compared with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from draftproof import SamplingParams, sampling
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.engine import Engine
from draftproof.models.cached_lm import CachedLM
from draftproof.models.plugged import PluggedForward
from draftproof.testing import FnTarget
from draftproof.verify import auto_rule

GREEDY = SamplingParams(temperature=0, max_new_tokens=64)


def engine(target: Any, drafter: Any, codec: Any = None, verify: Any = auto_rule, **options: Any) -> Engine:
    return Engine(target, drafter, verify, codec, **options)


def lm(model: Any, num_rows: int = 4, max_length: int | None = None) -> CachedLM:
    """A cached language model over a transformers model."""
    positions = model.config.max_position_embeddings
    return CachedLM(PluggedForward(model, positions), num_rows, max_length)


def model_drafter(model: Any, vocab_size: int = 128, common: int | None = None, **options: Any) -> ModelDrafter:
    return ModelDrafter(lm(model, **options), vocab_size, common or vocab_size)


class ModelTarget(FnTarget):
    """A transformers model as a pure function of the whole prefix: no cache, one plain pass for each prefix."""

    def __init__(self, model: Any):
        super().__init__(
            functools.cache(self._plain), model.config.vocab_size, max_length=model.config.max_position_embeddings
        )
        self.model = model

    @torch.inference_mode()
    def _plain(self, prefix: Sequence[int]) -> torch.Tensor:
        return self.model(input_ids=torch.tensor([list(prefix)]), use_cache=False).logits[0, -1]


def reference(target: FnTarget, prompt: Sequence[int], params: SamplingParams, eos: Sequence[int] = ()) -> list[int]:
    """Greedy decoding that recomputes the full prefix at every step, through the same processors."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < params.max_new_tokens and len(tokens) < target.max_length:
        row = target.next_logits(tokens)[None]
        tokens.append(int(sampling.penalise(row, params, tokens, len(prompt)).argmax()))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


def smallest_margin(target: FnTarget, prompt: Sequence[int], output: Sequence[int]) -> float:
    """The least gap between the two highest logits along a greedy path: equality is only owed where it is not tiny."""
    gaps = []
    for i in range(len(output)):
        top = target.next_logits([*prompt, *output[:i]]).topk(2).values
        gaps.append(float(top[0] - top[1]))
    return min(gaps)
