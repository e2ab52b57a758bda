"""A cheaper drafter from a model as it is: fewer layers, fewer output tokens; costs acceptance, never exactness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import OptionError


def keep_layers(model: Any, num: int | Sequence[int], name: str = "the drafter") -> None:
    """Drop all but `num` decoder layers, in place: a run of layers from the middle on goes, the first and last stay.

    Args:
        num: how many, or exactly which, ascending.

    Raises:
        OptionError: not between 1 and the model's own number, or layers that cannot be found.
    """
    body = getattr(model, model.base_model_prefix, model)
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise OptionError(f"draft_layers cannot be used with {type(model).__name__}: it has no list of layers")
    chosen = _kept(num, len(layers), name)
    kept = [layers[i] for i in chosen]
    for index, layer in enumerate(kept):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index  # type: ignore[assignment]
    body.layers = nn.ModuleList(kept)
    config = model.config.get_text_config(decoder=True)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in chosen]


def _kept(num: int | Sequence[int], of: int, name: str) -> list[int]:
    """The numbers of the layers that stay."""
    if isinstance(num, Sequence):
        chosen = list(num)
        if not chosen or any(not low < high for low, high in zip((-1, *chosen), (*chosen, of))):
            raise OptionError(f"the layers to keep must ascend from 0 to {name}'s last, {of - 1}, not {chosen}")
        return chosen
    if not isinstance(num, int) or isinstance(num, bool) or not 1 <= num <= of:
        raise OptionError(f"draft_layers must be a whole number from 1 to {name}'s {of}, not {num!r}")
    first = min(of // 2, num)
    return [i for i in range(of) if not first <= i < first + of - num]


def frequent_ids(num: int, limit: int, texts: Iterable[Iterable[int]] = (), always: Iterable[int] = ()) -> list[int]:
    """The ids a small drafter should know, ascending: `always`, then the most frequent in `texts`, then the lowest.

    Byte-pair vocabularies number their entries by how early they were merged, so low ids are frequent ones.

    Args:
        num: how many.
        limit: only ids below it.
    """
    counts = Counter(token for text in texts for token in text)
    ranked = [token for token, _ in counts.most_common() if token < limit]
    chosen = dict.fromkeys([*(token for token in always if token < limit), *ranked])
    for token in range(limit):
        if len(chosen) >= num:
            break
        chosen.setdefault(token)
    return sorted(list(chosen)[:num])


def keep_outputs(model: Any, ids: list[int]) -> None:
    """Reduce the output layer to the rows of `ids`, in place; logit i then belongs to token ids[i]."""
    head = model.get_output_embeddings()
    index = torch.tensor(ids, device=head.weight.device)
    reduced = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    reduced.weight = nn.Parameter(head.weight.detach()[index], requires_grad=False)
    if head.bias is not None:
        reduced.bias = nn.Parameter(head.bias.detach()[index], requires_grad=False)
    model.set_output_embeddings(reduced)
