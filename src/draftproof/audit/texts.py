"""Generated texts as an auditor keeps them, ours or another engine's: token ids, and how they were asked for.

The file, one JSON object (extra keys are kept out of the way):

    {"engine": "name and version", "arm": "draft model, K = 4", "params": {"temperature": 1.0, "top_p": 1.0},
     "texts": [{"prompt": 0, "prompt_ids": [...], "token_ids": [...]}, ...]}

`prompt` numbers the prompts, so that continuations of one prompt are known; the end-of-text id belongs to `token_ids`
if it was generated. `params` are the fields of SamplingParams that shape the law.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..params import SamplingParams
from ..whole import write_file

LAW_FIELDS = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "banned_tokens"),
)
"""What of the parameters shapes the law of the next token."""


@dataclass(frozen=True)
class Text:
    """One continuation of one prompt, as ids."""

    prompt: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Arm:
    """Texts of one engine in one mode.

    Fields:
        engine: whose.
        name: in which mode.
        params: how tokens were chosen.
        texts: in any order.
        notes: figures of the engine about itself, such as how much it accepted.
    """

    engine: str
    name: str
    params: SamplingParams
    texts: Sequence[Text]
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(len(text.token_ids) for text in self.texts)

    def by_prompt(self) -> dict[int, list[tuple[int, ...]]]:
        """The continuations of each prompt."""
        found: dict[int, list[tuple[int, ...]]] = {}
        for text in self.texts:
            found.setdefault(text.prompt, []).append(text.token_ids)
        return found

    def to_dict(self) -> dict[str, Any]:
        params = {name: value for name, value in asdict(self.params).items() if name in LAW_FIELDS}
        texts = [
            {"prompt": text.prompt, "prompt_ids": list(text.prompt_ids), "token_ids": list(text.token_ids)}
            for text in self.texts
        ]
        return {"engine": self.engine, "arm": self.name, "params": params, "notes": self.notes, "texts": texts}

    def save(self, folder: Path) -> Path:
        """Written to the folder under the arm's name, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        slug = "".join(c if c.isalnum() or c in ".-" else "-" for c in f"{self.name}".lower()).strip("-")
        final = folder / f"arm-{slug}.json"
        write_file(final, lambda partial: partial.write_text(json.dumps(self.to_dict()) + "\n", encoding="utf-8"))
        return final


def read_arm(path: str) -> Arm:
    """A file of texts.

    Raises:
        OptionError: it cannot be read, or is not as described above.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"the texts {path!r} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise OptionError(f"the texts {path!r} are not JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("texts"), list):
        raise OptionError(f"the texts {path!r} must be a JSON object with the key texts, a list")
    given = content.get("params", {})
    if not isinstance(given, dict):
        raise OptionError(f"{path}: params must be an object, not {given!r:.60}")
    if unknown := sorted(set(given) - set(LAW_FIELDS)):
        raise OptionError(f"{path}: params has {unknown[0]!r}; known are {', '.join(LAW_FIELDS)}")
    if isinstance(given.get("logit_bias"), dict):
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    params = SamplingParams(**given)
    texts = [_text(entry, f"{path}, text {number}") for number, entry in enumerate(content["texts"], 1)]
    if not texts:
        raise OptionError(f"the texts {path!r} hold none")
    notes = content.get("notes") if isinstance(content.get("notes"), dict) else {}
    return Arm(str(content.get("engine", path)), str(content.get("arm", "texts")), params, texts, notes or {})


def _text(entry: Any, where: str) -> Text:
    if not isinstance(entry, dict):
        raise OptionError(f"{where}: expected an object with prompt, prompt_ids and token_ids, not {entry!r:.60}")
    ids = []
    for key in ("prompt_ids", "token_ids"):
        value = entry.get(key)
        if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
            raise OptionError(f"{where}: {key} must be a list of token ids, not {value!r:.60}")
        ids.append(tuple(value))
    if not ids[0]:
        raise OptionError(f"{where}: prompt_ids is empty")
    prompt = entry.get("prompt")
    if not isinstance(prompt, int):
        raise OptionError(f"{where}: prompt must be the number of the prompt, not {prompt!r:.60}")
    return Text(prompt, ids[0], ids[1])
