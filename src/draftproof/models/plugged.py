"""transformers' own forward over our slotted cache: the general form, and the oracle of every faster one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .cache import SlotCache
from .hf import sliding_window
from .masks import Block, Pass, arrange
from .passes import PassOutput, Want


class PluggedForward:
    """Runs any decoder-only `AutoModelForCausalLM`; masks and positions are ours, arithmetic is the model's.

    Args:
        model: in evaluation mode, with a cache that holds keys and values only (`hf.check_rewindable`).
        max_length: number of positions the model knows.
    """

    def __init__(self, model: Any, max_length: int):
        config = model.config.get_text_config()
        names = inspect.signature(model.forward).parameters
        self.model = model
        self.max_length = max_length
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        self.device: torch.device = model.device
        self._config = config
        self.window = sliding_window(config)
        self._mixed = bool(getattr(config, "layer_types", None))  # such models take one mask per layer type
        self._additive = config._attn_implementation == "eager"
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._can_select = "logits_to_keep" in names
        self.chunk = 512
        self.weights = "dense"
        self.bitwise = False
        self.num_layers: int = config.num_hidden_layers
        self.hidden_size: int = config.hidden_size
        self.dtype: torch.dtype = model.dtype
        self.taps: tuple[int, ...] = ()
        self.cache = SlotCache(config.num_hidden_layers)

    @torch.inference_mode()
    def __call__(self, blocks: Sequence[Block], want: Want) -> PassOutput:
        """See `passes.Forward`; rows distinct, logits in the model's dtype."""
        sizes = [len(block.queries) for block in blocks]
        picks = [{"all": range(size), "last": range(size - 1, size), "none": range(0)}[want] for size in sizes]
        current = arrange(blocks, self.max_length - 1, self.device)
        self.cache.reserve(max(current.rows) + 1, current.span)
        self.cache.current = current
        columns = sorted({column for wanted in picks for column in wanted})
        arguments: dict[str, Any] = {self._cache_name: self.cache, "use_cache": True}
        if self._can_select:
            arguments["logits_to_keep"] = torch.tensor(columns, dtype=torch.long, device=self.device)
        if self.taps:
            arguments["output_hidden_states"] = True
        try:
            output = self.model(
                input_ids=current.ids, position_ids=current.positions, attention_mask=self._masks(current), **arguments
            )
        finally:
            self.cache.current = None
        at = {column: i for i, column in enumerate(columns)} if self._can_select else range(max(sizes))
        rows = [row for row, wanted in enumerate(picks) for _ in wanted]
        logits = output.logits[rows, [at[column] for wanted in picks for column in wanted]]
        features = None
        if self.taps:
            states = torch.cat([output.hidden_states[layer] for layer in self.taps], dim=-1)
            features = torch.cat([states[row, :size] for row, size in enumerate(sizes)])
        return PassOutput(logits, features)

    @property
    def embedding(self) -> Tensor:
        """See `passes.Forward`."""
        return self.model.get_input_embeddings().weight

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """See `passes.Forward`."""
        return self.model.get_input_embeddings()(ids)

    @torch.inference_mode()
    def project(self, states: Tensor) -> Tensor:
        """See `passes.Forward`."""
        return self.model.get_output_embeddings()(states)

    def _masks(self, current: Pass) -> Any:
        if self.window is None:
            return self._form(current.mask)
        windowed = self._form(current.window(self.window))
        if not self._mixed:
            return windowed
        return {"full_attention": self._form(current.mask), "sliding_attention": windowed}

    def _form(self, mask: Tensor) -> Tensor:
        if not self._additive:
            return mask
        dtype = self.model.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
