"""Tiny random models, real in every respect but size: built from configs, no network, a few milliseconds each."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from ..drafters.draft_model import ModelDrafter
from ..models.cached_lm import CachedLM
from ..models.forwards import make_forward
from ..models.hf import LoadedModel
from ..verify.law import Prefix, extended
from .exact import PROMPT


def tiny_llama(seed: int = 0, **overrides: Any) -> Any:
    """A random Llama: vocab 128, hidden 64, 2 layers, 4 heads, 2 KV heads, 256 positions, fp32, CPU, no end-of-text."""
    settings: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return tiny_model(LlamaConfig(**{**settings, **overrides}), seed)


def tiny_model(config: PretrainedConfig, seed: int = 0) -> Any:
    """The causal language model of any config with random weights that depend on `seed` alone; fp32, CPU, eval."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval().requires_grad_(False)


class TinyPair:
    """Two random Llamas over a few tokens: a target and a drafter through the product's own forward and caches.

    The target's law is read off by plain transformers passes over whole prefixes, without a cache.
    """

    def __init__(self, vocab_size: int, num_rows: int = 8):
        self.vocab_size, self._num_rows = vocab_size, num_rows
        self._forwards = [make_forward(self._loaded(seed)) for seed in (1, 2)]

    def _loaded(self, seed: int) -> LoadedModel:
        model = tiny_llama(seed, vocab_size=self.vocab_size)
        return LoadedModel(model, None, model.config, f"tiny {seed}", (), model.config.max_position_embeddings)

    def target(self) -> CachedLM:
        return CachedLM(self._forwards[0], self._num_rows)

    def drafter(self) -> ModelDrafter:
        return ModelDrafter(CachedLM(self._forwards[1], self._num_rows), self.vocab_size, self.vocab_size)

    def law(self, length: int) -> dict[Prefix, float]:
        """Of texts after the prompt (0,)."""
        model = tiny_llama(1, vocab_size=self.vocab_size)

        @torch.inference_mode()
        def next_law(prefix: Prefix) -> torch.Tensor:
            logits = model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1]
            return logits.double().softmax(-1)

        return extended({(): 1.0}, next_law, length, PROMPT)
