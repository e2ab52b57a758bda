"""How much of what a drafter drafts would be accepted, measured on held-out text by teacher forcing.

Rounds begin at every answer token. c_s, the chance that the s-th drafted token is accepted given that those before it
were, is estimated from the rounds in which those before it could be:

    greedy      the text follows the target's most likely tokens and the drafter's are the same; then c_s is how often
                the drafter's most likely token is the target's.
    sampled     a text drawn from the target (temperature 1) has its first tokens x accepted with a chance of the
                product of min(1, q(x) / p(x)), which weighs the round; c_s is the weighted mean of sum min(p, q).

Their products are the marginal rates, and 1 + the sum of these the expected acceptance length of a chain. Text that was
drawn at another temperature, or was not written by the target, makes the second estimate one of that text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor

from ..errors import TrainingError
from .losses import Divergence, Law, alpha
from .recipe import Recipe
from .teacher import Lesson

_ROWS = 512  # rows of draft logits at a time


@dataclass(frozen=True)
class Acceptance:
    """Rates by position, K of them.

    Fields:
        conditional: given that the positions before were accepted.
        rounds: how many rounds each estimate stands on (sampled: their weights' sum).
    """

    conditional: tuple[float, ...]
    rounds: tuple[float, ...]

    @property
    def marginal(self) -> tuple[float, ...]:
        return tuple(accumulate(self.conditional, mul))

    @property
    def length(self) -> float:
        """The expected acceptance length of chains of K tokens; plain decoding is 1."""
        return 1 + sum(self.marginal)

    def to_dict(self) -> dict[str, Any]:
        return {
            "acceptance_length": round(self.length, 4),
            "conditional": [round(value, 4) for value in self.conditional],
            "marginal": [round(value, 4) for value in self.marginal],
            "rounds": [round(value, 1) for value in self.rounds],
        }


@dataclass(frozen=True)
class Measured:
    """What held-out text says.

    Fields:
        greedy, sampled: at temperature 0, and at the teacher's.
        by_category: the greedy rates of each kind of text.
        ranks: by step, how often the target's most likely token is the drafter's r-th, r = 0, 1, ...
        loss: the mean divergence of the first step.
        num_tokens: answer tokens measured on.
    """

    greedy: Acceptance
    sampled: Acceptance
    by_category: dict[str, Acceptance]
    ranks: tuple[tuple[float, ...], ...]
    loss: float
    num_tokens: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "greedy": self.greedy.to_dict(),
            "sampled": self.sampled.to_dict(),
            "by_category": {name: found.to_dict() for name, found in sorted(self.by_category.items())},
            "loss": round(self.loss, 4),
            "num_tokens": self.num_tokens,
        }


class _Sums:
    """Hits and the weight of the rounds they were sought in, by position."""

    def __init__(self, depth: int):
        self.hits, self.weights = [0.0] * depth, [0.0] * depth

    def add(self, step: int, hits: Tensor, weights: Tensor) -> None:
        self.hits[step] += float((hits * weights).sum())
        self.weights[step] += float(weights.sum())

    def rates(self) -> Acceptance:
        measured = [(hits / weight, weight) for hits, weight in zip(self.hits, self.weights) if weight]
        return Acceptance(tuple(rate for rate, _ in measured), tuple(weight for _, weight in measured))


@dataclass(frozen=True)
class _Judged:
    """The drafter's law against the target's, `[n]` each, float64 on the CPU.

    Fields:
        same: 1 where both have the same most likely token.
        alpha: sum min(p, q).
        kept: min(1, q / p) at the text's next token.
        follows: 1 where that is the target's most likely one.
        rank: the rank of the target's most likely token in the drafter's law; a large number where it has none.
        loss: the divergence.
    """

    same: Tensor
    alpha: Tensor
    kept: Tensor
    follows: Tensor
    rank: Tensor
    loss: Tensor

    def at(self, places: Tensor) -> _Judged:
        return _Judged(*(getattr(self, field.name)[places] for field in fields(self)))


def _judge(logits: Tensor, law: Law, loss: Divergence, temperature: float) -> _Judged:
    logits = logits.float()
    own, best, said = logits.argmax(-1), law.best.clamp(min=0), law.said.clamp(min=0)
    p, log_q = law.pair(logits / temperature)
    q_said = (logits / temperature).log_softmax(-1).gather(-1, said[:, None])[:, 0].exp() * (law.said >= 0)
    rank = (logits > logits.gather(-1, best[:, None])).sum(-1)
    judged = (
        own == law.best,
        alpha(p, log_q),
        (q_said / law.p_said.clamp(min=1e-20)).clamp(max=1),
        law.best == law.said,
        torch.where(law.best >= 0, rank, 1 << 30),
        loss(p, log_q),
    )
    return _Judged(*(part.double().cpu() for part in judged))


@torch.no_grad()
def measure(
    recipe: Recipe,
    lessons: Iterable[Lesson],
    depth: int,
    loss: Divergence,
    *,
    temperature: float = 1.0,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    num_ranks: int = 10,
) -> Measured:
    """Teacher-forced acceptance over lessons.

    Args:
        depth: K; heads that draft fewer tokens are measured to their own depth.
        loss: what is reported beside it.
        temperature: of the laws that are compared.
        context: of the arithmetic (autocast).

    Raises:
        TrainingError: there is no held-out text.
    """
    greedy, sampled, kinds = _Sums(depth), _Sums(depth), defaultdict[str, _Sums](lambda: _Sums(depth))
    ranks, seen = torch.zeros(depth, num_ranks), [0] * depth
    losses, num_tokens = 0.0, 0
    for lesson in lessons:
        batch = lesson.batch
        names, kind = batch.kinds()
        able = torch.ones(2, batch.tokens.numel(), dtype=torch.float64)  # greedily and sampled, by where a round began
        said: _Judged | None = None
        steps = recipe.steps(lesson, 1 if recipe.same_law else depth)
        for step in range(depth):
            rows = batch.rows(step)
            if said is not None and recipe.same_law:
                now = said.at(torch.searchsorted(batch.rows(), rows))
            else:
                with context():
                    found = next(steps, None)
                    if found is None:
                        break
                    parts = [
                        _judge(recipe.logits(hidden, step), lesson.law_at(some), loss, temperature)
                        for hidden, some in zip(found.hidden.split(_ROWS), rows.split(_ROWS))
                    ]
                if not len(rows):
                    break
                now = _Judged(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(_Judged)))
            if said is None:
                said = now
                losses, num_tokens = losses + float(now.loss.sum()), num_tokens + len(rows)
            began = rows - step
            greedy.add(step, now.same, able[0, began])
            sampled.add(step, now.alpha, able[1, began])
            for name in names:
                mine = kind[rows] == names.index(name)
                kinds[name].add(step, now.same[mine], able[0, began][mine])
            ranks[step] += torch.bincount(now.rank[now.rank < num_ranks].long(), minlength=num_ranks)
            seen[step] += len(rows)
            able[0, began] *= now.same * now.follows
            able[1, began] *= now.kept
    if not num_tokens:
        raise TrainingError("no held-out text to measure on: raise --held-out, or give more data")
    shares = tuple(tuple((ranks[step] / seen[step]).tolist()) for step in range(depth) if seen[step])
    by = {name: sums.rates() for name, sums in kinds.items() if name}
    return Measured(greedy.rates(), sampled.rates(), by, shares, losses / num_tokens, num_tokens)
