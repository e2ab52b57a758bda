"""The teacher's lessons on disk, for texts that are learned from more than once.

An entry is named by everything its content depends on: the target's identity, the texts, their length, the layers, the
draft vocabulary, the temperature and k. So a changed setting never finds an old entry, and an entry under another
target's name cannot exist. Of each law the k most likely draft tokens are kept, the others as one bucket.

An entry is made shard by shard, each whole or not there; a killed run goes on with the next.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import TrainingError
from ..whole import remove_partials
from .batch import Batch, collate, pack
from .corpus import Sample
from .files import digest, read_json, write_json, write_tensors
from .identity import Identity
from .losses import Law, number_in, top_law
from .teacher import Lesson, Teacher

_SHARD = 128  # samples


class Capture:
    """A stored teacher; see `loop.LessonSource`.

    Args:
        root: the cache folder; the entry is a folder below it.
        teacher: who fills it.
        samples: the texts, cut to `length`.
        identity: of the target.
        corpus: what stands for the texts (`Corpus.digest`).
        k: listed tokens of each law.
    """

    def __init__(
        self,
        root: Path,
        teacher: Teacher,
        samples: Sequence[Sample],
        identity: Identity,
        corpus: str,
        *,
        length: int,
        k: int = 64,
    ):
        vocab = teacher.vocab
        self.about: dict[str, Any] = {
            "identity": identity.to_dict(),
            "texts": corpus,
            "samples": len(samples),
            "length": length,
            "layers": list(teacher.taps),
            "vocab_size": teacher.forward.vocab_size,
            "draft_vocab": None if vocab is None else [len(vocab), digest(vocab.tolist())],
            "temperature": teacher.temperature,
            "dtype": str(teacher.forward.dtype),
            "k": k,
        }
        of = {key: value for key, value in self.about.items() if key != "identity"}
        of["identity"] = {part: value for part, value in identity.to_dict().items() if part != "target"}
        self.folder = root / digest(of)
        self._teacher, self._samples, self._length, self._k = teacher, samples, length, k
        self._number = {sample.ids: number for number, sample in enumerate(samples)}
        self._open = lru_cache(maxsize=32)(self._opened)

    @property
    def num_bytes(self) -> int:
        """How much the whole entry takes, estimated from its shapes."""
        width = len(self._teacher.taps) * self._teacher.forward.hidden_size * self._teacher.forward.dtype.itemsize
        tokens, answers = sum(len(s.ids) for s in self._samples), sum(s.num_answer for s in self._samples)
        return tokens * width + answers * (self._k * 6 + 16)

    @property
    def num_missing(self) -> int:
        """Shards that are yet to be made."""
        return sum(not self._path(shard).exists() for shard in range(self.num_shards))

    @property
    def num_shards(self) -> int:
        return -(-len(self._samples) // _SHARD)

    def fill(self, report: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Make the shards that are missing; `report` gets the shards done and all.

        Raises:
            TrainingError: too little room, a full disk, or an entry of something else under this name.
        """
        manifest = self.folder / "manifest.json"
        if manifest.exists():
            stated = read_json(manifest)
            if stated != self.about:
                wrong = next(key for key in self.about if stated.get(key) != self.about[key])
                if wrong != "identity":
                    raise TrainingError(f"{self.folder} was captured with another {wrong}: remove it and run again")
                Identity(**self.about["identity"]).check(stated.get("identity", {}), str(self.folder))
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_partials(self.folder)
        needed = self.num_bytes * self.num_missing // max(1, self.num_shards)
        if (free := shutil.disk_usage(self.folder).free) < needed:
            raise TrainingError(
                f"capturing needs {needed / 1e9:.1f} GB in {self.folder}, {free / 1e9:.1f} GB are free: free some, "
                "or train without --cache"
            )
        write_json(manifest, self.about)
        for shard in range(self.num_shards):
            if not self._path(shard).exists():
                self._make(shard)
            report(shard + 1, self.num_shards)

    def lesson(self, batch: Batch, samples: Sequence[Sample]) -> Lesson:
        """What the teacher said of these texts.

        Raises:
            TrainingError: a shard is missing or damaged.
        """
        length = batch.tokens.shape[1]
        parts: list[dict[str, Tensor]] = []
        states = None
        for (row, start, end), sample in zip(batch.texts(), samples, strict=True):
            part = self._read(self._number[sample.ids])
            if states is None:
                states = part["states"].new_zeros(batch.tokens.numel(), part["states"].shape[-1])
            states[row * length + start : row * length + end] = part["states"]
            parts.append(part)
        assert states is not None
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name != "states"}
        device, vocab = self._teacher.forward.device, self._teacher.vocab
        said = batch.next_ids(batch.rows())
        law = Law(
            joined["p"].float().to(device),
            joined["ids"].long().to(device),
            joined["rest"].float().to(device),
            joined["best"].long().to(device),
            (said if vocab is None else number_in(vocab, said)).to(device),
            joined["p_said"].to(device),
        )
        return Lesson(batch, states.to(device), law)

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:06d}.safetensors"

    def _make(self, shard: int) -> None:
        samples = self._samples[shard * _SHARD : (shard + 1) * _SHARD]
        kept: list[dict[str, Tensor]] = [{} for _ in samples]
        rows = pack(samples, self._length, range(len(samples)))
        for first in range(0, len(rows), 4):
            some = rows[first : first + 4]
            batch = collate([[samples[i] for i in row] for row in some], self._length)
            lesson = self._teacher.lesson(batch)
            law, at = top_law(lesson.law, self._k), batch.rows()
            numbers = [number for row in some for number in row]
            for number, (place, start, end) in zip(numbers, batch.texts()):
                begin = place * self._length
                mine = (at >= begin + start) & (at < begin + end)
                assert law.ids is not None and law.rest is not None
                kept[number] = {
                    "states": lesson.states[begin + start : begin + end].cpu(),
                    "p": law.p[mine].half().cpu(),
                    "ids": law.ids[mine].int().cpu(),
                    "rest": law.rest[mine].cpu(),
                    "best": law.best[mine].int().cpu(),
                    "p_said": law.p_said[mine].cpu(),
                }
        tensors = {name: torch.cat([part[name] for part in kept]) for name in kept[0]}
        for name, of in (("text_ends", "states"), ("law_ends", "p")):
            tensors[name] = torch.tensor([len(part[of]) for part in kept]).cumsum(0)
        write_tensors(self._path(shard), tensors)

    def _opened(self, shard: int) -> Any:
        from safetensors import safe_open

        try:
            file = safe_open(self._path(shard), "pt")
            ends = {name: [0, *file.get_tensor(name).tolist()] for name in ("text_ends", "law_ends")}
        except Exception as error:
            raise TrainingError(f"{self._path(shard)} cannot be read: {error}; remove it and run again") from error
        return file, ends

    def _read(self, number: int) -> dict[str, Tensor]:
        """One sample's states and law."""
        file, ends = self._open(number // _SHARD)
        at = number % _SHARD
        found = {}
        for name in ("states", "p", "ids", "rest", "best", "p_said"):
            start, end = ends["text_ends" if name == "states" else "law_ends"][at : at + 2]
            found[name] = file.get_slice(name)[start:end]
        return found
