"""What the scripts that write another engine's texts share: prompts as ids, files that `draftproof audit texts` reads.

Standard library only, so that it runs in every engine's own environment. The prompts are a JSON file, a list of lists
of ids, so that no tokenizer or template of the engine takes part:

    python benchmarks/peer_texts.py TARGET_FOLDER prompts.jsonl ids.json      # needs transformers
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path


class Texts:
    """One arm, kept on disk as it grows: a run that is stopped has lost nothing that was finished."""

    def __init__(self, path: str, engine: str, arm: str, params: dict[str, object]):
        self.path = Path(path)
        self.content: dict[str, object] = {"engine": engine, "arm": arm, "params": params, "notes": {}, "texts": []}
        self.num_tokens = 0

    def add(self, prompt: int, prompt_ids: list[int], token_ids: list[int]) -> None:
        self.content["texts"].append({"prompt": prompt, "prompt_ids": prompt_ids, "token_ids": token_ids})  # type: ignore[attr-defined]
        self.num_tokens += len(token_ids)

    def save(self, **notes: object) -> None:
        """Under a temporary name, then renamed."""
        self.content["notes"] = {**self.content["notes"], **notes}  # type: ignore[dict-item]
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        temporary.write_text(json.dumps(self.content) + "\n", encoding="utf-8")
        temporary.replace(self.path)
        print(f"{self.path}: {len(self.content['texts'])} texts, {self.num_tokens} tokens", flush=True)  # type: ignore[arg-type]


def parse(description: str, *positions: str, **options: object) -> argparse.Namespace:
    """The command line: what each script needs beside what all of them take.

    Args:
        positions: names of positional arguments.
        options: name to default; a callable instead makes the value of its text, and the default is None.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in positions:
        parser.add_argument(name)
    common = {"temperature": 1.0, "top_p": 1.0, "tokens": 30_000, "max_new_tokens": 128, "seed": 0}
    for name, default in {**common, **options}.items():
        flag = "--" + name.replace("_", "-")
        if callable(default):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()


def law(given: argparse.Namespace) -> dict[str, object]:
    """What of the command line shapes the law."""
    if given.temperature == 0:
        return {"temperature": given.temperature}
    return {"temperature": given.temperature, "top_p": given.top_p}


def rounds(texts: Texts, given: argparse.Namespace, num_prompts: int, **notes: object) -> Iterator[list[int]]:
    """Seeds of the prompts, round after round, until there are enough tokens; greedy text needs one round, sampled text
    two at least. What was added is saved after every round.
    """
    done = 0
    greedy = given.temperature == 0
    while texts.num_tokens < given.tokens or done < (1 if greedy else 2):
        yield [given.seed + done * num_prompts + number for number in range(num_prompts)]
        done += 1
        texts.save(rounds=done, **notes)
        if greedy:
            break


def read_ids(path: str) -> list[list[int]]:
    """The prompts as ids."""
    prompts = json.loads(Path(path).read_text(encoding="utf-8"))
    if not all(isinstance(prompt, list) and all(isinstance(i, int) for i in prompt) for prompt in prompts):
        sys.exit(f"{path} must be a JSON list of lists of token ids: see `python peer_texts.py TARGET PROMPTS OUT`")
    return prompts


def ended(token_ids: list[int], finish: str, eos_ids: list[int]) -> list[int]:
    """With the end-of-text id, where a text ended by itself and the engine left it out."""
    if finish == "stop" and eos_ids and (not token_ids or token_ids[-1] not in eos_ids):
        return [*token_ids, eos_ids[0]]
    return token_ids


def eos_of(folder: str) -> list[int]:
    """The end-of-text ids of a model folder."""
    for name in ("generation_config.json", "config.json"):
        path = Path(folder) / name
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
        if value is not None:
            return value if isinstance(value, list) else [value]
    return []


if __name__ == "__main__":
    from transformers import AutoTokenizer

    folder, source, out = sys.argv[1:4]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = []
    for line in Path(source).read_text(encoding="utf-8").splitlines():
        if line.strip():
            entry = json.loads(line)
            messages = entry.get("messages") or [
                {"role": "user", "content": entry.get("prompt") or (entry.get("turns") or [""])[0]}
            ]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            ids.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    Path(out).write_text(json.dumps(ids) + "\n", encoding="utf-8")
    print(f"{out}: {len(ids)} prompts")
