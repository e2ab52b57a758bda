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
        self.cache = SlotCache(config.num_hidden_layers)

    @torch.inference_mode()
    def __call__(self, blocks: Sequence[Block], queries: Sequence[int] | None) -> Tensor:
        """Run one pass.

        Args:
            blocks: one per row; rows distinct.
            queries: which query columns need logits (None: all).

        Returns:
            logits `[B, len(queries) or Q, V]` in the model's dtype.
        """
        current = arrange(blocks, self.max_length - 1, self.device)
        self.cache.reserve(max(current.rows) + 1, current.span)
        self.cache.current = current
        arguments: dict[str, Any] = {self._cache_name: self.cache, "use_cache": True}
        if self._can_select:
            arguments["logits_to_keep"] = (
                0 if queries is None else torch.tensor(queries, dtype=torch.long, device=self.device)
            )
        try:
            output = self.model(
                input_ids=current.ids, position_ids=current.positions, attention_mask=self._masks(current), **arguments
            )
        finally:
            self.cache.current = None
        if queries is None or self._can_select:
            return output.logits
        return output.logits[:, list(queries)]

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
