"""Texts side by side in rows of a fixed length, so that no arithmetic is spent on padding.

A row holds whole texts one after another; each sees itself alone (`segments`) and counts its own positions. Which texts
share a row, and the order of the rows, depend on seed and epoch only, so a batch is known by its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .corpus import Sample

_WINDOW = 256  # texts that are sorted by length before they are packed


@dataclass(frozen=True)
class Batch:
    """R rows of L tokens.

    Fields:
        tokens: int64 `[R, L]`, 0 where there is no text.
        segments: int64 `[R, L]`: which text of the row, from 0; -1 where there is none.
        positions: int64 `[R, L]`: within the text.
        answer: bool `[R, L]`: whether the token's law counts.
        categories: of each text, by row and segment.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    answer: Tensor
    categories: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def supervised(self) -> Tensor:
        """bool `[R * L]`: positions whose next token is one that counts."""
        same = self.segments[:, 1:] == self.segments[:, :-1]
        found = torch.zeros_like(self.answer)
        found[:, :-1] = self.answer[:, 1:] & same & (self.positions[:, :-1] > 0)
        return found.flatten()

    def rows(self, step: int = 0) -> Tensor:
        """Flat positions whose next token is drafted as the step-th of a round (from 0) that began in the answer.

        A round that began at position r - step drafts the token after r as its step-th; r and that beginning must both
        be supervised, and in one text.
        """
        found = self.supervised
        if step:
            began = torch.zeros_like(found)
            began[step:] = found[:-step]
            segments = self.segments.flatten()
            row = torch.arange(len(segments)) // self.segments.shape[1]
            same = torch.zeros_like(found)
            same[step:] = (segments[step:] == segments[:-step]) & (row[step:] == row[:-step])
            found = found & began & same
        return found.nonzero().flatten()

    def next_ids(self, rows: Tensor) -> Tensor:
        """The tokens after flat positions."""
        return self.tokens.flatten()[rows + 1]

    def sees(self) -> Tensor:
        """bool `[R, 1, L, L]`: causal within a text; a position without text sees itself."""
        length = self.tokens.shape[1]
        same = self.segments[:, :, None] == self.segments[:, None, :]
        return (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]

    def texts(self) -> list[tuple[int, int, int]]:
        """(row, start, end) of each text, in order."""
        found = []
        for row, segments in enumerate(self.segments.tolist()):
            start = 0
            for _, members in itertools.groupby(segment for segment in segments if segment >= 0):
                end = start + len(list(members))
                found.append((row, start, end))
                start = end
        return found

    def kinds(self) -> tuple[list[str], Tensor]:
        """The names of the categories here, and the number of its own for each flat position, int64 `[R * L]`."""
        names = sorted({name for row in self.categories for name in row})
        found = torch.zeros_like(self.tokens)
        for (row, start, end), name in zip(self.texts(), itertools.chain(*self.categories)):
            found[row, start:end] = names.index(name)
        return names, found.flatten()

    @property
    def num_tokens(self) -> int:
        return int((self.segments >= 0).sum())


def collate(rows: Sequence[Sequence[Sample]], length: int) -> Batch:
    """Rows of samples that fit into `length` as a batch."""
    shape = (len(rows), length)
    tokens, segments = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    positions, answer = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    for row, samples in enumerate(rows):
        start = 0
        for number, sample in enumerate(samples):
            end = start + len(sample.ids)
            tokens[row, start:end] = torch.tensor(sample.ids)
            segments[row, start:end] = number
            positions[row, start:end] = torch.arange(len(sample.ids))
            answer[row, start:end] = torch.tensor(sample.answer)
            start = end
    return Batch(tokens, segments, positions, answer, tuple(tuple(s.category for s in samples) for samples in rows))


def pack(samples: Sequence[Sample], length: int, order: Sequence[int]) -> list[list[int]]:
    """Numbers of samples by row: first fit, longest first within windows of the order."""
    rows: list[list[int]] = []
    for begin in range(0, len(order), _WINDOW):
        window = sorted(order[begin : begin + _WINDOW], key=lambda i: -len(samples[i].ids))
        fresh: list[tuple[list[int], int]] = []  # rows of this window and their room
        for number in window:
            size = len(samples[number].ids)
            at = next((k for k, (_, room) in enumerate(fresh) if room >= size), None)
            if at is None:
                fresh.append(([number], length - size))
            else:
                fresh[at] = ([*fresh[at][0], number], fresh[at][1] - size)
        rows += [row for row, _ in fresh]
    return rows


class Packing:
    """The batches of one epoch by number, from the samples; the same for the same seed and epoch.

    Args:
        samples: none longer than `length`.
        num_rows: rows of a batch; the last has fewer where they run out.
    """

    def __init__(self, samples: Sequence[Sample], length: int, num_rows: int, seed: int, epoch: int):
        chance = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(samples), generator=chance).tolist()
        rows = pack(samples, length, order)
        shuffled = torch.randperm(len(rows), generator=chance).tolist()
        self.batches = [
            [rows[i] for i in shuffled[start : start + num_rows]] for start in range(0, len(rows), num_rows)
        ]
        self._samples, self._length = samples, length

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Batch:
        return collate([[self._samples[i] for i in row] for row in self.batches[number]], self._length)

    def filled(self, number: int, samples: Sequence[Sample]) -> Batch:
        """The batch with other samples, none longer, in the places of its own."""
        given = iter(samples)
        return collate([[next(given) for _ in row] for row in self.batches[number]], self._length)

    def members(self, number: int) -> list[int]:
        """The numbers of a batch's samples, in the order of `Batch.texts`."""
        return [i for row in self.batches[number] for i in row]
