"""The cache folder: where it is, whether it has room, which files in it are checked, and one writer at a time.

Importing this file does not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DraftproofError, FetchError
from ..home import cache_dir

BLOCK = 1 << 20


def models_dir() -> Path:
    return cache_dir() / "models"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file; remembered by path, size and modification time, so a large file is read once."""
    stat, known = path.stat(), _remembered().get(str(path.resolve()))
    if isinstance(known, list) and known[:2] == [stat.st_size, stat.st_mtime_ns]:
        return str(known[2])
    digest = sha256(path)
    remember(path, digest)
    return digest


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time fetches or converts a model; the others wait and then find it."""
    from filelock import FileLock

    with storing(name):
        models_dir().mkdir(parents=True, exist_ok=True)
        lock = FileLock(models_dir() / f".{name}.lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def storing(name: str) -> Iterator[None]:
    """Turn a full or unwritable disk into one line."""
    try:
        yield
    except DraftproofError:
        raise
    except Exception as error:
        if is_full(error):
            raise FetchError(
                f"{name}: no space left in {models_dir()}; free some, or set DRAFTPROOF_HOME to another disk"
            ) from error
        if isinstance(error, OSError):
            raise FetchError(f"{name} cannot be stored in {models_dir()}: {error.strerror or error}") from error
        raise


def is_full(error: BaseException) -> bool:
    return getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)


def check_space(name: str, needed: int) -> None:
    free = shutil.disk_usage(models_dir()).free
    if free < needed:
        raise FetchError(
            f"{name} needs {needed / 1e9:.1f} GB in {models_dir()}, {free / 1e9:.1f} GB are free; "
            "free some, or set DRAFTPROOF_HOME to another disk"
        )


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _remembered() -> dict[str, Any]:
    try:
        content = json.loads((models_dir() / "hashes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def remember(path: Path, digest: str) -> None:
    stat, table = path.stat(), models_dir() / "hashes.json"
    content = {**_remembered(), str(path.resolve()): [stat.st_size, stat.st_mtime_ns, digest]}
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
        table.parent.mkdir(parents=True, exist_ok=True)
        temporary = table.with_suffix(".json.partial")
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        os.replace(temporary, table)
