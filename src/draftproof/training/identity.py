"""Who a target is, for data and caches that are worth nothing with another: its weights, tokenizer and template.

Hashes of file contents, remembered by path, size and time, so a large model is read once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError, TrainingError
from ..models import sources
from ..models.folder import SAFE_WEIGHTS
from ..models.store import file_sha256, sha256
from .files import digest

_LARGE = 64 << 20  # bytes; the hashes of larger files are remembered


@dataclass(frozen=True)
class Identity:
    """What must be the same.

    Fields:
        target: as the user wrote it; may differ.
        weights: of config and weights.
        tokenizer: of every entry and rule of the tokenizer.
        template: of the chat template and the flags it is used with.
    """

    target: str
    weights: str
    tokenizer: str
    template: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    def check(self, other: Mapping[str, Any], what: str, *, anyones: bool = False) -> None:
        """Refuse what was made with another target.

        Args:
            anyones: it holds public text only, which any target with this tokenizer may read.

        Raises:
            TrainingError: names the first part that differs.
        """
        for part in ("tokenizer",) if anyones else ("weights", "tokenizer", "template"):
            if other.get(part) != getattr(self, part):
                names = {"weights": "of another model", "tokenizer": "split by another tokenizer"}
                said = names.get(part, "laid out by another chat template, or with other template flags")
                raise TrainingError(
                    f"{what} was made with {other.get('target')} and is {said} than {self.target}: "
                    "make it anew in another folder, or name its own target"
                )


def identify(target: str, tokenizer: Any, template_flags: Mapping[str, Any] | None = None) -> Identity:
    """The identity of a model that can be loaded by this name.

    Raises:
        ModelError: its files cannot be found.
    """
    text = "" if tokenizer is None else _tokenizer_text(tokenizer)
    template = [getattr(tokenizer, "chat_template", None), dict(template_flags or {})]
    return Identity(target, _weights(target), hashlib.sha256(text.encode()).hexdigest()[:16], digest(template))


def _tokenizer_text(tokenizer: Any) -> str:
    inner = getattr(tokenizer, "backend_tokenizer", None)
    return inner.to_str() if inner is not None else repr(sorted(tokenizer.get_vocab().items()))


def _weights(target: str) -> str:
    where = sources.resolve(target)
    folder = where if isinstance(where, Path) else _hub_folder(where)
    files = [folder / "config.json"]
    files += sorted(p for name in ("*.safetensors", *SAFE_WEIGHTS, "pytorch_model*.bin") for p in folder.glob(name))
    found = [path for path in dict.fromkeys(files) if path.exists()]
    return digest({path.name: (file_sha256 if path.stat().st_size > _LARGE else sha256)(path) for path in found})


def _hub_folder(name: str) -> Path:
    from transformers.utils import cached_file

    found = cached_file(name, "config.json", local_files_only=True)
    if not found:
        raise ModelError(f"{name} is not in the local Hugging Face cache; load it once, or give its folder")
    return Path(found).parent
