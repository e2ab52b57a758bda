"""Turn a GGUF file into a bfloat16 Hugging Face folder: dequantised once, written whole or not at all.

Importing this file does not import torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import DraftproofError, ModelError
from .folder import first_line
from .store import is_full, storing


def convert(gguf: Path, folder: Path) -> Path:
    """Make `folder` from `gguf` unless it is there already; the caller holds the folder's lock.

    Raises:
        ModelError: cut short, damaged, tensors missing, or an architecture transformers cannot read.
        FetchError: no room, or the cache folder cannot be written.
    """
    if is_whole(folder):
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    with storing(folder.name):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with quiet(), contextlib.redirect_stderr(io.StringIO()):  # a bar that knows no switch
                _write_folder(gguf, partial)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            if is_full(error) or isinstance(error, DraftproofError):
                raise
            raise ModelError(
                f"{gguf} cannot be read ({first_line(error)}); it may be cut short, fetch it again"
            ) from error
        put_folder(partial, folder)
    return folder


def _write_folder(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where, file = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
    model, info = AutoModelForCausalLM.from_pretrained(
        where,
        gguf_file=file,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=file, dequantize=True),
        output_loading_info=True,
    )
    if info["missing_keys"]:
        raise ModelError(f"{gguf} lacks {len(info['missing_keys'])} tensors, first {sorted(info['missing_keys'])[0]}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def put_folder(partial: Path, folder: Path) -> None:
    """Give a finished temporary folder its final name."""
    shutil.rmtree(folder, ignore_errors=True)  # incomplete, or it would have been used
    os.replace(partial, folder)


def _safetensors_whole(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > 100_000_000:
                return False
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        return path.stat().st_size == 8 + length + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_whole(folder: Path) -> bool:
    """Whether a converted folder has everything: config, tokenizer, and safetensors files of their full length."""
    needed = [folder / "config.json", folder / "tokenizer.json"]
    weights = list(folder.glob("*.safetensors"))
    return bool(weights) and all(p.is_file() for p in needed) and all(map(_safetensors_whole, weights))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings and progress bars of transformers and the hub client off the screen."""
    import warnings

    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    level, hub_level, bars = logging.get_verbosity(), hub_logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub_logging.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()
