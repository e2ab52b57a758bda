"""Texts to learn from: token ids with a mask of what the target wrote, in units on disk that are whole or not there.

A folder holds `manifest.json` (the target's identity and how the texts were made) and `NAME-000000.safetensors` units.
A unit depends on its number, the settings and the units before it alone, so that a run killed at any instant goes on
to the same texts, and one with larger counts adds to them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import TrainingError
from ..whole import remove_partials
from .files import digest, read_json, read_tensors, write_json, write_tensors
from .identity import Identity

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Sample:
    """One text.

    Fields:
        ids: its tokens.
        answer: by token, whether the target's law of it counts.
        category: what kind of text, for reports.
        key: what it must not share with another, for deduplication.
    """

    ids: tuple[int, ...]
    answer: tuple[bool, ...]
    category: str = ""
    key: str = ""

    @property
    def num_answer(self) -> int:
        return sum(self.answer)

    def cut(self, length: int) -> Sample:
        return Sample(self.ids[:length], self.answer[:length], self.category, self.key)


class CorpusFolder:
    """Writes units and counts, reads them back; knows nothing of how they are made."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        """Begin, or go on with what is there.

        Args:
            manifest: `identity`, and `settings` of which each source's must not change while its units are kept.

        Raises:
            TrainingError: the folder holds something else, or was made with other settings; names the first.
        """
        self.folder = folder
        remove_partials(folder)
        path = folder / MANIFEST
        if path.exists():
            before = read_json(path)
            Identity(**manifest["identity"]).check(before.get("identity", {}), f"the data in {folder}")
            _check_settings(before.get("settings", {}), manifest["settings"], folder)
            manifest = {**manifest, "settings": {**before.get("settings", {}), **manifest["settings"]}}
        elif folder.exists() and any(folder.iterdir()):
            raise TrainingError(f"{folder} is there and holds no {MANIFEST}: choose a new folder for the data")
        self.manifest = manifest
        write_json(path, manifest)

    def units(self, source: str) -> list[Path]:
        """The units of a source, numbered without a gap from 0."""
        paths: list[Path] = []
        while (path := self.path(source, len(paths))).exists():
            paths.append(path)
        return paths

    def path(self, source: str, number: int) -> Path:
        return self.folder / f"{source}-{number:06d}.safetensors"

    def write(self, source: str, number: int, samples: Sequence[Sample], about: dict[str, Any]) -> None:
        ends = torch.tensor([len(s.ids) for s in samples], dtype=torch.int64).cumsum(0)
        tensors = {
            "ids": torch.tensor([i for s in samples for i in s.ids], dtype=torch.int32),
            "answer": torch.tensor([a for s in samples for a in s.answer], dtype=torch.bool),
            "ends": ends,
        }
        entries = {"categories": [s.category for s in samples], "keys": [s.key for s in samples]}
        write_tensors(self.path(source, number), tensors, {**about, **entries})

    def finish(self, counts: dict[str, Any]) -> None:
        """State what is there now."""
        self.manifest = {**self.manifest, "counts": counts}
        write_json(self.folder / MANIFEST, self.manifest)


@dataclass(frozen=True)
class Corpus:
    """All samples of one or more folders, in order.

    Fields:
        samples: the texts.
        identity: of the target that wrote them.
        digest: stands for the manifests and the number of samples.
    """

    samples: tuple[Sample, ...]
    identity: dict[str, Any]
    digest: str

    @classmethod
    def read(cls, folders: Sequence[Path]) -> Corpus:
        """Raises: TrainingError: no data, or of more than one target."""
        samples: list[Sample] = []
        manifests = []
        for folder in folders:
            if not (folder / MANIFEST).exists():
                raise TrainingError(f"{folder} holds no training data: make it with draftproof train data {folder}")
            manifests.append(read_json(folder / MANIFEST))
            for path in sorted(folder.glob("*-??????.safetensors")):
                samples += read_unit(path)[0]
        if not samples:
            raise TrainingError(f"{', '.join(map(str, folders))}: no text in it; make some with draftproof train data")
        first = manifests[0]["identity"]
        for folder, manifest in zip(folders, manifests):
            own = manifest["identity"]
            if any(own[part] != first[part] for part in ("weights", "tokenizer", "template")):
                raise TrainingError(f"{folders[0]} and {folder} hold text of different targets; train with one of them")
        stated = [{k: m.get(k) for k in ("identity", "settings")} for m in manifests]
        lengths = hashlib.sha256(repr([(len(s.ids), s.num_answer) for s in samples]).encode()).hexdigest()
        return cls(tuple(samples), first, digest([stated, lengths]))

    def split(self, num_held_out: int, length: int) -> tuple[list[Sample], list[Sample]]:
        """For training and held out, both cut to `length` and without those that then have no answer.

        Which are held out depends on the texts alone: the `num_held_out` of smallest hash, at most a fifth.

        Raises:
            TrainingError: nothing is left to train on.
        """
        cut = [s.cut(length) for s in self.samples]
        useful = [s for s in cut if s.num_answer]
        ranked = sorted(range(len(useful)), key=lambda i: hashlib.sha256(repr(useful[i].ids).encode()).digest())
        held = set(ranked[: min(num_held_out, len(useful) // 5)])
        training = [s for i, s in enumerate(useful) if i not in held]
        if not training:
            raise TrainingError(
                f"none of the {len(self.samples)} texts has an answer within {length} tokens: raise --length"
            )
        return training, [useful[i] for i in sorted(held)]

    def frequencies(self) -> Counter[int]:
        """How often each token stands in an answer."""
        counts: Counter[int] = Counter()
        for sample in self.samples:
            counts.update(i for i, a in zip(sample.ids, sample.answer) if a)
        return counts


def read_unit(path: Path) -> tuple[list[Sample], dict[str, Any]]:
    """The samples of one unit, and what it says of how they came about."""
    tensors, about = read_tensors(path)
    ids, answer = tensors["ids"].tolist(), tensors["answer"].tolist()
    samples, start = [], 0
    for end, category, key in zip(tensors["ends"].tolist(), about["categories"], about["keys"]):
        samples.append(Sample(tuple(ids[start:end]), tuple(answer[start:end]), category, key))
        start = end
    return samples, about


def count(samples: Iterable[Sample]) -> dict[str, Any]:
    """Samples, tokens and answer tokens, in all and by category."""
    by: dict[str, Counter[str]] = {}
    for s in samples:
        for name in ("all", s.category or "other"):
            by.setdefault(name, Counter()).update(samples=1, tokens=len(s.ids), answer_tokens=s.num_answer)
    return {name: dict(counts) for name, counts in by.items()}


def _check_settings(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    for name, old, new in _differences(before, now):
        raise TrainingError(
            f"{folder} was made with {name} = {old!r}, now {new!r}: give the same settings to add to it, "
            "or another folder"
        )


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Settings that both state and that differ."""
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name} ")
        elif old != new:
            yield f"{prefix}{name}", old, new
