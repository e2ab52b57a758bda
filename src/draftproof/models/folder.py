"""Look at a model folder before anything of it is loaded: is it whole, is it safe?

Importing this file does not import torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ModelError

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLE_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "merges.txt")


def check_folder(folder: Path, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> None:
    """Refuse a folder that has no readable config, no whole set of safe weights, or needs its own code to run."""
    config = _read_json(folder / "config.json", folder)
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{folder} holds an adapter; merge it into its base model, save that, and give its folder")
    kind, own_code = config.get("model_type"), bool(config.get("auto_map"))
    if not (_known_type(kind) or (own_code and trust_remote_code)):
        if own_code:
            raise ModelError(
                f"{folder}: model type {kind!r} is Python code in the model folder; "
                "read that code, then allow it with --trust-remote-code"
            )
        raise ModelError(
            f"{folder}: transformers does not know the model type {kind!r}; update it or convert the model"
        )
    if any((folder / name).exists() for name in SAFE_WEIGHTS):
        _check_shards(folder, "model.safetensors")
        return
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
    if not pickles:
        raise ModelError(f"{folder} has a config.json but no weights; expected model.safetensors there")
    if not allow_pickle:
        raise ModelError(
            f"{folder} has only pickle weights ({pickles[0]}), which can run code when loaded; "
            "convert them to safetensors, or load their tensors with --allow-pickle"
        )
    if not any((folder / name).exists() for name in _PICKLE_WEIGHTS):
        raise ModelError(f"{folder}: expected model.safetensors or pytorch_model.bin, found only {pickles[0]}")
    _check_shards(folder, "pytorch_model.bin")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, cut to a readable length."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    line = lines[0] if not lines[0].endswith(":") else " ".join(lines[:2])
    line = line.rstrip(".:")
    return line if len(line) <= 200 else line[:197] + "..."


def _check_shards(folder: Path, whole: str) -> None:
    if (folder / whole).exists():
        return
    index = f"{whole}.index.json"
    shards = _read_json(folder / index, folder).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelError(f"{folder}: {index} lists no weights; fetch the model again")
    for shard in sorted(set(map(str, shards.values()))):
        if "/" in shard or "\\" in shard or not (folder / shard).exists():
            raise ModelError(f"{folder}: {index} names {shard}, which is not there; fetch the model again")


def _read_json(path: Path, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ModelError(f"expected a model folder, {folder} is not one")
    if not path.exists():
        found = "it is empty" if not any(folder.iterdir()) else f"no {path.name} in it"
        raise ModelError(f"expected a model folder with config.json and weights, given {folder}: {found}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not readable JSON ({first_line(error)}); fetch the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(content).__name__}; fetch the model again")
    return content


def _known_type(model_type: Any) -> bool:
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING
