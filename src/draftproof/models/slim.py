"""A draft model's folder without what it need not hold: output rows of its own vocabulary only, and no embeddings where
they are its target's.

    config.json          the model's config by Hugging Face's keys, and under "draftproof": embedding ("own" or
                         "target"), num_outputs and eos_token_ids
    model.safetensors    the weights by Hugging Face's names; an int8 matrix X `[out, in]` has its scales in X.scale
                         `[out, 1]`; draft_ids int32 `[D]`: the token each output row belongs to
    tokenizer files      where the embeddings are its own

`write_plain` makes an ordinary Hugging Face model of it, for other software.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, VocabularyError
from ..whole import new_folder
from .folder import first_line
from .hf import LoadedModel, max_length, read_tokenizer

KEY, _CONFIG, _WEIGHTS = "draftproof", "config.json", "model.safetensors"
_EMBEDDING, _IDS, _SCALE = "embedding", "draft_ids", ".scale"


def is_slim(name: str | Path) -> bool:
    """Whether this is a folder of this kind."""
    path = Path(name).expanduser() / _CONFIG
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")).get(KEY), dict)
    except (OSError, ValueError, AttributeError):
        return False


def write_slim(
    model: Any,
    folder: Path,
    *,
    ids: Tensor | None,
    embedding: bool,
    weights: str = "bf16",
    tokenizer: Any = None,
    eos_ids: Collection[int] = (),
) -> None:
    """Write a transformers model, whole or not at all.

    Args:
        ids: int64 `[D]`: the token of each row of its output layer, or None where it has all.
        embedding: write its embeddings.
        weights: "bf16" or "int8" (every matrix of the layers and the output, each row with a scale of its own).

    Raises:
        ModelError: the folder is there already, or cannot be written.
    """
    from safetensors.torch import save_file

    table = model.get_input_embeddings().weight
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter is table:
            if embedding:
                tensors[name] = parameter.detach().to(torch.bfloat16)
        elif weights == "int8" and parameter.dim() == 2:
            tensors[name], tensors[name + _SCALE] = _to_int8(parameter.detach())
        else:
            tensors[name] = parameter.detach().to(torch.bfloat16)
    num_outputs = model.get_output_embeddings().weight.shape[0]
    if ids is not None:
        tensors[_IDS] = ids.to(torch.int32)
    config = model.config.to_dict() | {"tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    config["architectures"] = [type(model).__name__]
    stated = {_EMBEDDING: "own" if embedding else "target", "num_outputs": num_outputs}
    config[KEY] = {**stated, "eos_token_ids": sorted(eos_ids)}
    with new_folder(folder) as partial:
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        save_file({name: t.contiguous().cpu() for name, t in tensors.items()}, partial / _WEIGHTS, {"format": "pt"})
        text = json.dumps(config, indent=2, default=str)
        (partial / _CONFIG).write_text(text + "\n", encoding="utf-8")


def read_slim(folder: Path, embedding: Tensor | None, target_name: str = "the target") -> tuple[Any, Tensor | None]:
    """The model, its output layer reduced, and the token of each output row (None where it has all).

    Args:
        embedding: `[V, H]` of the target, for a folder that shares them.

    Raises:
        ModelError: damaged, or its embeddings are the target's and there are none.
        VocabularyError: they are of another size.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        stored = load_file(folder / _WEIGHTS)
        about = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))[KEY]
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except Exception as error:
        raise ModelError(f"{folder} cannot be loaded as a draft model: {first_line(error)}; make it again") from error
    tensors = _from_int8(stored)
    ids = tensors.pop(_IDS, None)
    table = model.get_input_embeddings()
    head = nn.Linear(table.embedding_dim, int(about["num_outputs"]), bias=False, dtype=torch.bfloat16)
    model.set_output_embeddings(head)
    if about.get(_EMBEDDING) == "target":
        if embedding is None:
            raise ModelError(f"{folder} takes its embeddings from its target: use it as a drafter, not by itself")
        if tuple(embedding.shape) != tuple(table.weight.shape):
            raise VocabularyError(
                f"{folder} takes embeddings of shape {list(table.weight.shape)} from its target, {target_name} has "
                f"{list(embedding.shape)}; choose a draft trained for this target"
            )
        name = next(name for name, parameter in model.named_parameters() if parameter is table.weight)
        tensors[name] = embedding.to(torch.bfloat16)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wrong := sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)):
        name = wrong[0]
        raise ModelError(
            f"{folder}: tensor {name} must have shape {list(expected.get(name, ()))}, found "
            f"{list(found[name]) if name in found else 'none'}; make it again"
        )
    if ids is not None and (len(ids) != head.out_features or len(ids.unique()) != len(ids)):
        raise ModelError(f"{folder}: {_IDS} must give each of the {head.out_features} output rows a token of its own")
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False), None if ids is None else ids.long()


def load_slim(
    name: str | Path, embedding: Tensor | None, tokenizer: Any, target_name: str = "the target"
) -> tuple[LoadedModel, list[int] | None]:
    """The folder as a loaded model, on the device of its target, and the tokens of its output rows.

    Args:
        tokenizer: of the target, for a folder that brings none.

    Raises:
        ModelError, VocabularyError: as `read_slim`.
    """
    folder = Path(name).expanduser()
    model, ids = read_slim(folder, embedding, target_name)
    if embedding is not None:
        model = model.to(embedding.device)
    tokenizer = read_tokenizer(folder, str(name), {"local_files_only": True}) or tokenizer
    about = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))[KEY]
    eos_ids = tuple(about.get("eos_token_ids", ()))
    loaded = LoadedModel(model, tokenizer, model.config, str(name), eos_ids, max_length(model.config))
    return loaded, None if ids is None else ids.tolist()


def write_plain(folder: Path, destination: Path, target: Any, tokenizer: Any) -> None:
    """An ordinary Hugging Face model: all embeddings and all output rows.

    Output rows of tokens the draft never learned to say are 0, and so are their logits.

    Args:
        target: its target as transformers loaded it, for the embeddings.

    Raises:
        ModelError: it cannot be read or written.
    """
    table = target.get_input_embeddings().weight.detach()
    model, ids = read_slim(folder, table)
    if ids is not None:
        rows = model.get_output_embeddings().weight
        whole = rows.new_zeros(table.shape[0], rows.shape[1])
        whole[ids] = rows
        head = nn.Linear(whole.shape[1], whole.shape[0], bias=False, dtype=whole.dtype)
        head.weight = nn.Parameter(whole, requires_grad=False)
        model.set_output_embeddings(head)
    model.config.tie_word_embeddings = False
    if hasattr(model.config, KEY):
        delattr(model.config, KEY)
    with new_folder(destination) as partial:
        model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)


def _to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 `[out, in]` and float32 scales `[out, 1]`."""
    scale = (weight.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
    return (weight.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def _from_int8(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    scales = {name: tensor for name, tensor in stored.items() if name.endswith(_SCALE)}
    return {
        name: (tensor.float() * scales[name + _SCALE]).to(torch.bfloat16) if name + _SCALE in scales else tensor
        for name, tensor in stored.items()
        if name not in scales
    }
