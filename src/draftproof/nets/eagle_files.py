"""EAGLE checkpoints on disk: the original layout (SafeAILab) of EAGLE-1, -2 and -3, and the speculators layout.

Facts of both: vLLM's and speculators' readers, and published checkpoints. What differs between the two:

                      original                                speculators
    config            one flat Llama config                   the layers' config nested in it
    first layer       midlayer.* (EAGLE-3), layers.0.*        layers.0.*
    embeddings        EAGLE-3: the target's                   its own, or the target's where there are none
    d2t, t2d          in both: token = i + d2t[i], and a mask of the tokens that can be drafted
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from .eagle import EagleConfig, EagleNet
from .folder import fill, read_config, read_tensors, whole_number, write_folder

LAYOUTS = ("original", "speculators")
_SAFE, _PICKLES = ("model.safetensors",), ("pytorch_model.bin",)
_MAPS = ("d2t", "t2d")
_OWN = (  # keys of a flat config that are not the layers'
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "norm_output",
    "norm_before_fc",
    "fc_norm",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "bias",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
)
_log = logging.getLogger("draftproof")


@dataclass(frozen=True)
class EagleCheckpoint:
    """An EAGLE network's config and tensors, as they are on disk except for their names.

    Fields:
        config: what it is made of.
        tensors: by the names of `EagleNet`, and `d2t` int64 `[D]` and `t2d` bool `[V]` where the vocabulary is reduced.
        source: the layout and the config file it was read from, written again as it was for the same layout.
    """

    config: EagleConfig
    tensors: Mapping[str, Tensor]
    source: tuple[str, Mapping[str, Any]] | None = field(default=None, compare=False)

    def net(self, label: str = "eagle") -> EagleNet:
        """The network with exactly these tensors.

        Raises:
            ModelError: unknown, missing or misshaped tensors.
        """
        with torch.device("meta"):
            net = EagleNet(self.config)
        fill(net, {name: tensor for name, tensor in self.tensors.items() if name not in _MAPS}, label)
        return net.eval().requires_grad_(False)

    def target_ids(self, label: str = "eagle") -> Tensor | None:
        """The target's id of each draft id, int64 `[D]`; None where both vocabularies are the same.

        Raises:
            ModelError: d2t or t2d is missing, of another size, or they contradict each other.
        """
        config, d2t, t2d = self.config, self.tensors.get("d2t"), self.tensors.get("t2d")
        size, vocab = config.draft_vocab_size, config.vocab_size
        if d2t is None:
            if size != vocab:
                raise ModelError(f"{label}: missing tensor d2t; it maps the {size} drafted tokens to {vocab} ids")
            return None
        for name, tensor, length in (("d2t", d2t, size), ("t2d", t2d, vocab)):
            if tensor is not None and tuple(tensor.shape) != (length,):
                raise ModelError(f"{label}: tensor {name} must have shape [{length}], found {list(tensor.shape)}")
        ids = torch.arange(size) + d2t.long()
        if not bool(((ids >= 0) & (ids < vocab)).all()) or len(ids.unique()) != size:
            raise ModelError(f"{label}: d2t must give each drafted token an id of its own below {vocab} (id - index)")
        if t2d is not None and not torch.equal(t2d.bool().nonzero().flatten(), ids.sort().values):
            raise ModelError(f"{label}: t2d must be true for exactly the ids that d2t gives")
        return ids


def read_eagle(folder: Path | str, *, allow_pickle: bool = False) -> EagleCheckpoint:
    """Read a folder of either layout.

    Raises:
        ModelError: no folder, an unknown kind, config keys without meaning, or tensors that do not fit the config.
    """
    folder = Path(folder)
    config = read_config(folder)
    tensors = read_tensors(folder, _SAFE, _PICKLES, allow_pickle=allow_pickle)
    label = str(folder)
    if "speculators_model_type" in config or "transformer_layer_config" in config:
        layout, made = "speculators", _speculators_config(config, tensors, label)
    else:
        layout, made = "original", _original_config(config, tensors, label)
        tensors = {_renamed(name, "midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    checkpoint = EagleCheckpoint(made, tensors, (layout, config))
    checkpoint.net(label)
    checkpoint.target_ids(label)
    return checkpoint


def write_eagle(checkpoint: EagleCheckpoint, folder: Path | str, layout: str, *, target: str = "") -> None:
    """Write a folder in a layout; `target` names the model it drafts for.

    Raises:
        ModelError: the layout cannot express it, or the folder cannot be written.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    if layout == "original":
        if config.version == 3:
            if config.num_layers != 1:
                raise ModelError(f"the original layout holds one EAGLE-3 layer, not {config.num_layers}")
            tensors = {_renamed(name, "layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
        written = _original_keys(checkpoint)
    elif layout == "speculators":
        if config.version != 3:
            raise ModelError("the speculators layout is written for EAGLE-3 only; use original for EAGLE-1 and -2")
        written = _speculators_keys(checkpoint, target)
    else:
        raise ModelError(f"unknown layout {layout!r} for an EAGLE head: use {', '.join(LAYOUTS)}")
    write_folder(Path(folder), written, tensors, _SAFE[0])


def _renamed(name: str, before: str, after: str) -> str:
    return after + name.removeprefix(before) if name.startswith(before) else name


def _layer_keys(config: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The decoder layers' own keys, checked."""
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        whole_number(config, key, label)
    whole_number(config, "num_hidden_layers", label, 1)
    kind, act = config.get("model_type", "llama"), config.get("hidden_act", "silu")
    if kind not in ("llama", "qwen2", "qwen3"):
        raise ModelError(f"{label}: layers of type {kind!r} are not known; use llama, qwen2 or qwen3")
    if act != "silu":
        raise ModelError(f"{label}: config key hidden_act must be silu, not {act!r}")
    return dict(config)


def _config(keys: Mapping[str, Any], layer: dict[str, Any], tensors: Mapping[str, Tensor], label: str) -> EagleConfig:
    """EAGLE-3's own keys, which both layouts share."""
    nested = keys.get("eagle_config") or {}
    ids = keys.get("eagle_aux_hidden_state_layer_ids") or nested.get("eagle_aux_hidden_state_layer_ids")
    if ids is not None and (not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids)):
        raise ModelError(f"{label}: config key eagle_aux_hidden_state_layer_ids must list layers, not {ids!r}")
    if ids is not None and len(set(ids)) != len(ids):
        raise ModelError(f"{label}: config key eagle_aux_hidden_state_layer_ids names a layer twice: {ids}")
    return EagleConfig(
        version=3,
        layer=layer,
        target_hidden_size=whole_number(keys, "target_hidden_size", label, layer["hidden_size"]),
        draft_vocab_size=whole_number(keys, "draft_vocab_size", label, layer["vocab_size"]),
        num_features=len(ids) if ids else 3,
        feature_layers=tuple(sorted(ids)) if ids else None,  # states are captured, and so joined, in ascending order
        norm_before_residual=bool(keys.get("norm_before_residual", False)),
        norm_output=bool(keys.get("norm_output", False)),
        norm_before_fc=bool(keys.get("norm_before_fc", nested.get("norm_before_fc", False))),
        fc_norm=bool(keys.get("fc_norm", False)),
        own_embedding="embed_tokens.weight" in tensors,
    )


def _speculators_config(config: Mapping[str, Any], tensors: Mapping[str, Tensor], label: str) -> EagleConfig:
    kind = config.get("speculators_model_type")
    if kind != "eagle3":
        raise ModelError(f"{label}: speculators_model_type must be eagle3, not {kind!r}")
    nested = config.get("transformer_layer_config")
    if not isinstance(nested, dict):
        raise ModelError(f"{label}: config key transformer_layer_config must hold the layers' config")
    if "norm_before_residual" not in config:
        _log.warning("%s: no norm_before_residual in the config; taken as false, speculators' own default", label)
    if config.get("norm_before_fc") and config.get("fc_norm"):
        raise ModelError(f"{label}: config keys norm_before_fc and fc_norm exclude each other")
    return _config(config, _layer_keys(nested, label), tensors, label)


def _original_config(config: Mapping[str, Any], tensors: Mapping[str, Tensor], label: str) -> EagleConfig:
    layer = _layer_keys({key: value for key, value in config.items() if key not in _OWN}, label)
    if any(name.startswith("midlayer.") for name in tensors):
        return _config(config, layer, tensors, label)
    return EagleConfig(
        version=1,
        layer=layer,
        target_hidden_size=layer["hidden_size"],
        draft_vocab_size=layer["vocab_size"],
        num_features=1,
        fc_bias=bool(config.get("bias", "fc.bias" in tensors)),
    )


def _own_keys(config: EagleConfig) -> dict[str, Any]:
    layers = None if config.feature_layers is None else list(config.feature_layers)
    return {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "eagle_aux_hidden_state_layer_ids": layers,
    }


def _original_keys(checkpoint: EagleCheckpoint) -> dict[str, Any]:
    if checkpoint.source and checkpoint.source[0] == "original":
        return dict(checkpoint.source[1])
    config = checkpoint.config
    written = {"architectures": ["LlamaForCausalLM"], **config.layer, "torch_dtype": _dtype(checkpoint)}
    if config.version != 3:
        return {**written, "bias": config.fc_bias}
    own = {key: value for key, value in _own_keys(config).items() if value is not None}
    return {**written, "architectures": ["LlamaForCausalLMEagle3"], **own}


def _speculators_keys(checkpoint: EagleCheckpoint, target: str) -> dict[str, Any]:
    if checkpoint.source and checkpoint.source[0] == "speculators":
        return dict(checkpoint.source[1])
    config = checkpoint.config
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 5,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        **_own_keys(config),
        "transformer_layer_config": {"model_type": "llama", **config.layer},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target or None, "architectures": []},
        },
        "torch_dtype": _dtype(checkpoint),
    }


def _dtype(checkpoint: EagleCheckpoint) -> str:
    return str(checkpoint.tensors["fc.weight"].dtype).removeprefix("torch.")
