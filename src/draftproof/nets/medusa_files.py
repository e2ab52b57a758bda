"""Medusa checkpoints on disk: the original layout (FasterDecoding) and vLLM's.

    original    {head}.{block}.linear.weight|bias, {head}.{number of blocks}.weight; medusa_lm_head.safetensors or .pt
    vllm        blocks.{head}.layers.{block}.weight|bias, lm_heads.{head}.weight (or one lm_head.weight for all with
                original_lm_head), token_map; model.safetensors

Heads and blocks are counted from the tensors: published configs are known to state fewer heads than there are.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from .folder import fill, read_config, read_tensors, whole_number, write_folder
from .medusa import Choice, MedusaConfig, MedusaNet

LAYOUTS = ("original", "vllm")
_SAFE, _PICKLES = ("medusa_lm_head.safetensors", "model.safetensors"), ("medusa_lm_head.pt", "pytorch_model.bin")
_ORIGINAL = re.compile(r"(\d+)\.(\d+)\.(linear\.(?:weight|bias)|weight)")
_log = logging.getLogger("draftproof")


@dataclass(frozen=True)
class MedusaCheckpoint:
    """Medusa's heads as they are on disk except for their names.

    Fields:
        config: what they are made of.
        tensors: by the names of `MedusaNet`, and `token_map` int64 `[D]` where only some tokens are proposed.
        source: the layout and the config file it was read from, written again as it was for the same layout.
    """

    config: MedusaConfig
    tensors: Mapping[str, Tensor]
    source: tuple[str, Mapping[str, Any]] | None = field(default=None, compare=False)

    @property
    def choices(self) -> list[tuple[int, ...]]:
        """The tree the config asks for (`medusa_choices`: paths of ranks, parents first); empty means chains."""
        stated = self.source[1].get("medusa_choices") if self.source else None
        if not stated:
            return []
        if not isinstance(stated, list) or not all(
            isinstance(path, list) and path and all(isinstance(rank, int) for rank in path) for path in stated
        ):
            raise ModelError(
                f"config key medusa_choices must list paths of ranks, such as [[0], [0, 0], [1]], not {stated!r:.60}"
            )
        return [tuple(path) for path in stated]

    def net(self, label: str = "medusa") -> MedusaNet:
        """The heads with exactly these tensors.

        Raises:
            ModelError: unknown, missing or misshaped tensors.
        """
        with torch.device("meta"):
            net = MedusaNet(self.config)
        fill(net, {name: tensor for name, tensor in self.tensors.items() if name != "token_map"}, label)
        return net.eval().requires_grad_(False)

    def target_ids(self, label: str = "medusa") -> Tensor | None:
        """The target's id of each output, int64 `[D]`; None where they are the same.

        Raises:
            ModelError: a token map that names an id twice or has not one for each output.
        """
        ids = self.tensors.get("token_map")
        if ids is None:
            return None
        if tuple(ids.shape) != (self.config.num_outputs,):
            expected, found = self.config.num_outputs, list(ids.shape)
            raise ModelError(f"{label}: tensor token_map must have shape [{expected}], found {found}")
        if len(ids.unique()) != len(ids) or bool((ids < 0).any()):
            raise ModelError(f"{label}: token_map must give each output a token id of its own")
        return ids.long()


def read_medusa(folder: Path | str, *, allow_pickle: bool = False) -> MedusaCheckpoint:
    """Read a folder of either layout.

    Raises:
        ModelError: no folder, or tensors that are no Medusa heads.
    """
    folder = Path(folder)
    config, label = read_config(folder), str(folder)
    stored = read_tensors(folder, _SAFE, _PICKLES, allow_pickle=allow_pickle)
    stored = {name.removeprefix("medusa_heads."): tensor for name, tensor in stored.items()}
    layout = "original" if any(map(_ORIGINAL.fullmatch, stored)) else "vllm"
    num_blocks = 1 + max((int(m[2]) for m in map(_ORIGINAL.fullmatch, stored) if m and m[3] != "weight"), default=-1)
    tensors = {_name(name, num_blocks): tensor for name, tensor in stored.items()}
    shared = False
    if "lm_head.weight" in tensors or (config.get("original_lm_head") and "lm_heads.1.weight" not in tensors):
        shared = True
        if "lm_head.weight" in tensors:
            tensors["lm_heads.0.weight"] = tensors.pop("lm_head.weight")
    heads = _count(tensors, r"blocks\.(\d+)\.")
    blocks = _count(tensors, r"blocks\.\d+\.layers\.(\d+)\.")
    output, block = tensors.get("lm_heads.0.weight"), tensors.get("blocks.0.layers.0.weight")
    if not heads or output is None or block is None:
        raise ModelError(f"{label} holds no Medusa heads: expected tensors like 0.0.linear.weight and 0.1.weight")
    stated = config.get("medusa_num_heads", config.get("num_heads"))
    if stated is None:
        _log.warning("%s: no medusa_num_heads in the config; the tensors hold %d heads", label, heads)
    elif whole_number({"medusa_num_heads": stated}, "medusa_num_heads", label) != heads:
        _log.warning("%s: the config states %d heads, the tensors hold %d, which are used", label, stated, heads)
    made = MedusaConfig(
        num_heads=heads,
        num_blocks=blocks,
        hidden_size=block.shape[0],
        vocab_size=whole_number(config, "vocab_size", label, output.shape[0]),
        num_outputs=output.shape[0],
        block_bias="blocks.0.layers.0.bias" in tensors,
        shared_output=shared,
    )
    checkpoint = MedusaCheckpoint(made, tensors, (layout, config))
    checkpoint.net(label)
    checkpoint.target_ids(label)
    return checkpoint


def write_medusa(
    checkpoint: MedusaCheckpoint, folder: Path | str, layout: str, *, target: str = "", choices: Sequence[Choice] = ()
) -> None:
    """Write a folder in a layout; `target` names the model the heads are for, `choices` the tree they are to draft.

    Raises:
        ModelError: the layout cannot express them, or the folder cannot be written.
    """
    config, tensors = checkpoint.config, dict(checkpoint.tensors)
    if layout == "original":
        if config.shared_output or not config.block_bias or "token_map" in tensors:
            raise ModelError("the original Medusa layout has biases, a full output layer per head and no token map")
        tensors = {_original_name(name, config.num_blocks): tensor for name, tensor in tensors.items()}
        written: dict[str, Any] = {
            "medusa_num_heads": config.num_heads,
            "medusa_num_layers": config.num_blocks,
            "base_model_name_or_path": target or None,
            "version": "2",
        }
    elif layout == "vllm":
        if config.shared_output:
            tensors["lm_head.weight"] = tensors.pop("lm_heads.0.weight")
        ids = checkpoint.target_ids()
        written = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "num_heads": config.num_heads,
            "num_hidden_layers": config.num_blocks,
            "medusa_fc_bias": config.block_bias,
            "original_lm_head": config.shared_output,
            "torch_dtype": str(tensors["blocks.0.layers.0.weight"].dtype).removeprefix("torch."),
        }
        if ids is not None:
            written |= {"truncated_vocab_size": len(ids)}
    else:
        raise ModelError(f"unknown layout {layout!r} for Medusa heads: use {', '.join(LAYOUTS)}")
    if checkpoint.source and checkpoint.source[0] == layout:
        written = dict(checkpoint.source[1])
    if tree := choices or checkpoint.choices:
        written["medusa_choices"] = [list(choice) for choice in tree]
    write_folder(Path(folder), written, tensors, _SAFE[0] if layout == "original" else _SAFE[1])


def _name(name: str, num_blocks: int) -> str:
    """A tensor's name in `MedusaNet`; names of neither layout stay, to be reported."""
    found = _ORIGINAL.fullmatch(name)
    if found is None:
        return name
    head, place, rest = found.groups()
    if rest == "weight":
        return f"lm_heads.{head}.weight" if int(place) == num_blocks else name
    return f"blocks.{head}.layers.{place}.{rest.removeprefix('linear.')}"


def _original_name(name: str, num_blocks: int) -> str:
    parts = name.split(".")
    if parts[0] == "lm_heads":
        return f"{parts[1]}.{num_blocks}.weight"
    return f"{parts[1]}.{parts[3]}.linear.{parts[4]}"


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """One more than the highest number the pattern finds among the names."""
    return 1 + max((int(m[1]) for name in tensors if (m := re.match(pattern, name))), default=-1)
