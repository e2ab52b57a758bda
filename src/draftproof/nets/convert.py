"""From one layout of a draft head's checkpoint to another."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelError
from . import eagle_files, medusa_files
from .eagle_files import EagleCheckpoint, read_eagle, write_eagle
from .folder import read_config
from .medusa_files import MedusaCheckpoint, read_medusa, write_medusa

LAYOUTS = tuple(dict.fromkeys((*eagle_files.LAYOUTS, *medusa_files.LAYOUTS)))


def read_head(folder: Path, *, allow_pickle: bool = False) -> EagleCheckpoint | MedusaCheckpoint:
    """Read EAGLE or Medusa heads, whichever the config names, in whatever layout.

    Raises:
        ModelError: see `read_eagle` and `read_medusa`.
    """
    config = read_config(folder)
    if config.get("model_type") == "medusa" or any(key.startswith("medusa_") for key in config):
        return read_medusa(folder, allow_pickle=allow_pickle)
    return read_eagle(folder, allow_pickle=allow_pickle)


def convert(
    source: Path, destination: Path, layout: str, *, target: str = "", allow_pickle: bool = False
) -> EagleCheckpoint | MedusaCheckpoint:
    """Write the head in `source` to `destination` in a layout; tensors keep every bit.

    Args:
        target: the name of the model it drafts for, where the layout has a place for it.

    Raises:
        ModelError: the source cannot be read, or the layout cannot hold it, or the destination is there already.
    """
    if layout not in LAYOUTS:
        raise ModelError(f"unknown layout {layout!r}: use {', '.join(LAYOUTS)}")
    head = read_head(source, allow_pickle=allow_pickle)
    if isinstance(head, MedusaCheckpoint):
        write_medusa(head, destination, layout, target=target)
    else:
        write_eagle(head, destination, layout, target=target)
    return head
