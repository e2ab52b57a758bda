"""A text read by the target, token by token: what it, and the drafter, would have said before each token.

Teacher forcing: the target is fed the text as it is, in blocks, and gives p_t for every position; the drafter is asked
for one token at every prefix, and its stated law is q_t. Both are functions of the emitted text alone, as the tests
need: when rounds began, what was drafted and what was accepted plays no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import sampling
from ..errors import PromptError
from ..interfaces import Drafter, Target
from ..types import Draft, DraftRequest, Probs, SamplingParams
from .texts import Text

BLOCK = 16
"""Positions of a text that are read in one pass."""
_ids = count(1 << 40)  # no sequence of an engine has these


@dataclass
class Reading:
    """What is known of the T tokens of one text.

    Fields:
        hits, masses: was the token in the set A_t, and p_t(A_t); see `stats.martingale`.
        u: randomised transforms; see `stats.pit`.
        tv: total variation between p_t and q_t; 0 where nothing was drafted.
        drafted: whether the drafter had something to say there.
        gaps: how far the token's logit is below the highest, after the processors.
        impossible: tokens that p_t excludes.
    """

    hits: list[bool] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)
    u: list[float] = field(default_factory=list)
    tv: list[float] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    impossible: int = 0


class Reader:
    """Reads texts in groups of as many as the target has rows for.

    Args:
        target: idle; needs `batch` free rows.
        params: how the tokens are said to have been chosen.
        drafter: whose q_t directs the tests; None: the target's most likely token does, with less power.
        seed: of the auditor's own noise.
        batch: texts read together.
    """

    def __init__(
        self, target: Target, params: SamplingParams, drafter: Drafter | None = None, seed: int = 0, batch: int = 8
    ):
        self._target, self._params, self._drafter, self._batch = target, params, drafter, batch
        self._noise = np.random.default_rng(seed)
        self._source = sampling.SeededSource(seed)

    def read(self, texts: Sequence[Text], progress: Callable[[int, int], None] = lambda d, t: None) -> list[Reading]:
        """One reading per text, in order.

        Raises:
            PromptError: a text longer than the target's context, or ids it does not have.
        """
        for text in texts:
            self._check(text)
        readings = [Reading() for _ in texts]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].token_ids))  # alike lengths together
        for start in range(0, len(order), self._batch):
            group = order[start : start + self._batch]
            self._read_group([_Open(texts[i], readings[i], next(_ids)) for i in group])
            progress(start + len(group), len(order))
        return readings

    def _check(self, text: Text) -> None:
        size = len(text.prompt_ids) + len(text.token_ids)
        if size > self._target.max_length:
            raise PromptError(f"a text has {size} tokens, but the target's context holds {self._target.max_length}")
        if max((*text.prompt_ids, *text.token_ids)) >= self._target.vocab_size:
            raise PromptError(f"a text has ids beyond the target's {self._target.vocab_size}: it is another model's")

    def _read_group(self, group: list[_Open]) -> None:
        opened: list[_Open] = []
        try:
            for one in group:
                one.row = self._target.open(one.tokens[: one.done - 1])
                opened.append(one)
                self._target.prefill(one.row, one.tokens[: one.done - 1])
            while active := [one for one in group if one.done < len(one.tokens)]:
                self._read_block(active)
        finally:
            for one in opened:
                self._target.free(one.row)
                if self._drafter is not None:
                    self._drafter.release(one.id)

    def _read_block(self, active: list[_Open]) -> None:
        """The next up to BLOCK tokens of each text."""
        drafts = [Draft.chain(one.tokens[one.done : one.done + BLOCK - 1]) for one in active]
        roots = [one.tokens[one.done - 1] for one in active]
        outputs = self._target.score([one.row for one in active], roots, drafts)
        laws = []
        for one, block, output in zip(active, drafts, outputs):
            known, prompt = one.tokens[: one.done], one.num_prompt
            logits = sampling.penalise(output.logits, self._params, known, prompt, block)
            laws.append(_Laws(sampling.probs(output.logits, self._params, known, prompt, block), logits))
            self._target.keep(one.row, one.done, tuple(range(block.num_nodes)))
        for offset in range(BLOCK):
            here = [(one, law) for one, law in zip(active, laws) if one.done + offset < len(one.tokens)]
            asked = self._drafted([one for one, _ in here], offset)
            for (one, law), draft in zip(here, asked):
                self._note(one, law, offset, draft)
        for one in active:
            one.done += min(BLOCK, len(one.tokens) - one.done)

    def _drafted(self, group: list[_Open], offset: int) -> Sequence[Draft | None]:
        """What the drafter proposes after the first `done + offset` tokens of each text."""
        if self._drafter is None or not group:
            return [None] * len(group)
        requests = []
        for one in group:
            size = one.done + offset
            features = self._target.features(one.row)
            requests.append(
                DraftRequest(
                    one.id,
                    one.tokens[:size],
                    one.num_prompt,
                    self._params,
                    self._source,
                    1,
                    None if features is None else features[: size - 1],
                    taps=self._target.taps,
                    row=one.row,
                )
            )
        return self._drafter.propose(requests)

    def _note(self, one: _Open, laws: _Laws, row: int, draft: Draft | None) -> None:
        """What the row says of the token that came."""
        token, reading = one.tokens[one.done + row], one.reading
        ids, values = laws.p.support(row)
        p = values.double()
        p = p / p.sum()
        q = None if draft is None else _stated(draft, ids, laws.p.vocab_size)
        place = _place(ids, token)
        if place is not None and not p[place] > 0:
            place = None
        if q is None:
            liked = p == p.max() if draft is None else torch.zeros_like(p, dtype=torch.bool)
            order, hit = p, place is not None and bool(liked[place])
        else:
            liked = q.values > p
            order = p / q.values.clamp(min=1e-300)
            hit = bool(liked[place]) if place is not None else q.of(token) > 0
        reading.hits.append(hit)
        reading.masses.append(float(p[liked].sum()))
        reading.tv.append(0.0 if q is None else float((p - q.values).clamp(min=0).sum()))
        reading.drafted.append(q is not None)
        xi = float(self._noise.random())
        if place is None:
            reading.impossible += 1
            reading.u.append(xi)
        else:
            below, same = order < order[place], order == order[place]
            reading.u.append(float(p[below].sum() + xi * p[same].sum()))
        top = laws.logits[row]
        reading.gaps.append(float(top.max() - top[token]))


@dataclass
class _Open:
    """A text while it is read: the row holds all but the last of its first `done` tokens."""

    text: Text
    reading: Reading
    id: int
    row: int = -1

    def __post_init__(self) -> None:
        self.tokens = (*self.text.prompt_ids, *self.text.token_ids)
        self.done = self.num_prompt = len(self.text.prompt_ids)


@dataclass(frozen=True)
class _Laws:
    """The rows of one block: p, and the logits after penalties."""

    p: Probs
    logits: Tensor


@dataclass(frozen=True)
class _Stated:
    """q over the support of p, in its order, and q itself."""

    values: Tensor
    law: Probs

    def of(self, token: int) -> float:
        return self.law.prob(0, token)


def _stated(draft: Draft, ids: Tensor | None, vocab_size: int) -> _Stated | None:
    """The law of the first drafted token, a point mass where nothing was drawn; None if there is no token."""
    if not draft.num_nodes:
        return None
    if draft.drawn == "fixed" or draft.probs is None:
        law = Probs.one_hot(draft.tokens[:1], vocab_size)
    else:
        law = draft.probs.row(0)
    return _Stated(law.at(0, ids).double(), law)


def _place(ids: Tensor | None, token: int) -> int | None:
    """Where a token lies in the support, if it does."""
    if ids is None:
        return token
    found = (ids == token).nonzero()
    return int(found[0]) if len(found) else None


def flat(parts: Iterator[Sequence[float]]) -> NDArray[np.float64]:
    """The tokens of several texts one after another."""
    listed = [np.asarray(part, dtype=np.float64) for part in parts]
    return np.concatenate(listed) if listed else np.zeros(0)
