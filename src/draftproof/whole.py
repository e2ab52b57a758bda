"""Files and folders that are there whole or not at all: written under a temporary name, then renamed.

Importing this file does not import torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import ModelError


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """What `write` makes of a path, flushed to the disk and put in the place of what was there.

    Raises:
        OSError, or what `write` raises; the file is as it was then.
    """
    partial = _partial(path)
    try:
        write(partial)
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which gets its name at the end.

    Raises:
        ModelError: the folder is there already, or cannot be written.
    """
    if folder.exists():
        raise ModelError(f"{folder} is there already; remove it, or choose another name")
    partial = _partial(folder)
    try:
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, folder)
    except OSError as error:
        raise ModelError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_partials(folder: Path) -> None:
    """What a killed process left of files under temporary names."""
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
