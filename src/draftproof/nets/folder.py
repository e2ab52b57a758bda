"""A folder with a config and tensors: read strictly, written whole or not at all.

Strict means: every tensor the network needs is there in its shape, and no other. safetensors by default; pickle files
only where they are allowed, and then nothing but tensors is loaded from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..whole import new_folder

CONFIG = "config.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a draft head's folder.

    Raises:
        ModelError: no folder, no config, or no JSON object in it.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(f"expected a folder with {CONFIG} and the weights of a draft head, given {folder}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(config).__name__}")
    return config


def read_tensors(
    folder: Path, names: Sequence[str], pickles: Sequence[str], *, allow_pickle: bool = False
) -> dict[str, Tensor]:
    """The tensors of the first file of `names` (safetensors) that is there, else of `pickles` if they are allowed.

    Raises:
        ModelError: none of the files, an unreadable one, or only pickle files without permission.
    """
    for name in names:
        if (folder / name).is_file():
            return _read_safetensors(folder / name)
    for name in pickles:
        if not (folder / name).is_file():
            continue
        if not allow_pickle:
            raise ModelError(
                f"{folder} has only pickle weights ({name}), which can run code when loaded; "
                "convert them to safetensors, or load their tensors with --allow-pickle"
            )
        return _read_pickle(folder / name)
    raise ModelError(f"{folder} has no weights: expected {' or '.join(names)}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except Exception as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(f"{path} holds more than tensors and is not loaded; use safetensors") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ModelError(f"{path} must hold named tensors and nothing else")
    return content


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str) -> None:
    """Write config and tensors under a temporary name, then rename.

    Raises:
        ModelError: the folder is there already, or cannot be written.
    """
    from safetensors.torch import save_file

    with new_folder(folder) as partial:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, partial / name, {"format": "pt"})
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def fill(module: nn.Module, tensors: Mapping[str, Tensor], label: str) -> None:
    """Give a module built on the meta device exactly its tensors.

    Raises:
        ModelError: unknown, missing or misshaped tensors; names the first, with both shapes.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if unknown := sorted(tensors.keys() - expected.keys()):
        raise ModelError(f"{label}: unknown tensors {_listed(unknown)}; the config has no place for them")
    if missing := sorted(expected.keys() - tensors.keys()):
        raise ModelError(f"{label}: missing tensors {_listed(missing)}; the config asks for them")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise ModelError(f"{label}: tensor {name} must have shape {list(shape)}, found {list(tensors[name].shape)}")
    module.load_state_dict(dict(tensors), assign=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def whole_number(config: Mapping[str, Any], key: str, label: str, default: Any = None) -> int:
    """A positive whole number of a config.

    Raises:
        ModelError: missing without a default, or something else; names the key.
    """
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{label}: config key {key} must be a whole number of at least 1, not {value!r}")
    return value
