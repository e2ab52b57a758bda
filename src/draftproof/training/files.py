"""What training keeps on disk: JSON and tensors, each file whole or not there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import TrainingError
from ..whole import write_file


def write_json(path: Path, content: Any) -> None:
    """One JSON document.

    Raises:
        TrainingError: the disk is full or cannot be written.
    """
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Raises: TrainingError as `write_json`."""
    put(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> None:
    """A safetensors file; `about` is kept in its header as JSON.

    Raises:
        TrainingError: as `write_json`.
    """
    from safetensors.torch import save_file

    header = {"format": "pt", "about": json.dumps(about or {}, ensure_ascii=False)}
    put(path, lambda partial: save_file({k: t.contiguous() for k, t in tensors.items()}, partial, header))


def read_json(path: Path) -> Any:
    """Raises: TrainingError: it is not readable JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} is not readable JSON: {error}; remove it and run again") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a file, and what its header says about them.

    Raises:
        TrainingError: it cannot be read.
    """
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, json.loads((file.metadata() or {})["about"])
    except Exception as error:
        raise TrainingError(f"{path} cannot be read as safetensors: {error}; remove it and run again") from error


def digest(content: Any) -> str:
    """16 hexadecimal digits that stand for a JSON document."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


@contextlib.contextmanager
def disk(path: Path) -> Iterator[None]:
    """A full or unwritable disk in one line; what was whole before stays whole."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in text or "os error 28" in text:
            raise TrainingError(
                f"no space left to write {path}; everything up to then is whole: free some and run the same command"
            ) from error
        if isinstance(error, OSError) or "os error" in text:
            raise TrainingError(f"{path} cannot be written: {getattr(error, 'strerror', None) or text}") from error
        raise


def put(path: Path, write: Callable[[Path], Any]) -> None:
    """A file as `whole.write_file` makes it; its folder is made too.

    Raises:
        TrainingError: as `write_json`.
    """
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, write)
