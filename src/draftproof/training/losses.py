"""What a draft's law q is measured by against the target's law p, row by row, and the teacher's law they both need.

Expected acceptance is alpha = sum of min(p, q) = 1 - TV(p, q). A draft may know fewer tokens than the target: what p
gives to the others is lost whatever q says, so p keeps its true values and its rows may sum to less than 1. Where the
teacher stored only its k most likely tokens, all others are one bucket, on both sides.

    kl      forward KL(p || q), the safe start: never without a gradient
    rkl     reverse KL(q || p), seeks p's modes
    jsd     Jensen-Shannon divergence
    tv      1 - alpha, what is wanted; without a gradient where p and q hardly meet
    nla     -log alpha (LK, 2602.23881): its gradient is that of tv, divided by alpha
    lk      w KL + (1 - w) TV with w = exp(-eta alpha) (the same paper): KL first, TV once they meet

Each takes p and log q `[n, C]` and gives `[n]`; p is a constant. Plain torch in the dtype of its input, so that
autograd does the derivative and gradcheck can check it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import OptionError

_TINY = 1e-20
Divergence = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Law:
    """The target's law at n rows, in the draft's own token numbers.

    Fields:
        p: `[n, K]`: the probabilities of the listed tokens.
        ids: int64 `[n, K]`: which these are; None lists all D in order.
        rest: `[n]`: the mass of the draft's tokens that are not listed; None where all are.
        best: int64 `[n]`: the target's most likely token, -1 where the draft does not know it.
        said: int64 `[n]`: the text's next token, likewise.
        p_said: `[n]`: its probability under the target, whether the draft knows it or not.
    """

    p: Tensor
    ids: Tensor | None
    rest: Tensor | None
    best: Tensor
    said: Tensor
    p_said: Tensor

    def __len__(self) -> int:
        return len(self.best)

    def at(self, rows: Tensor) -> Law:
        """The law at some of the rows."""
        parts = (self.p, self.ids, self.rest, self.best, self.said, self.p_said)
        return Law(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """p and log q `[n, C]` over the same columns, the bucket of unlisted tokens the last where there is one.

        Args:
            logits: the draft's, `[n, D]`.
        """
        if self.ids is None:
            return self.p, logits.log_softmax(-1)
        whole = logits.logsumexp(-1, keepdim=True)
        log_q = logits.gather(-1, self.ids) - whole
        if self.rest is None or self.ids.shape[-1] == logits.shape[-1]:
            return self.p, log_q
        others = logits.scatter(-1, self.ids, -torch.inf).logsumexp(-1, keepdim=True) - whole
        return torch.cat([self.p, self.rest[:, None]], -1), torch.cat([log_q, others], -1)


def whole_law(logits: Tensor, next_ids: Tensor, vocab: Tensor | None, temperature: float = 1.0) -> Law:
    """The law of the target's logits `[n, V]` on the draft's vocabulary, every token listed.

    Args:
        next_ids: int64 `[n]`: the text's next tokens, in the target's ids.
        vocab: int64 `[D]`, ascending: the target's ids that the draft knows; None is all.
        temperature: of p.
    """
    logits = logits.float() / temperature
    whole = logits.logsumexp(-1, keepdim=True)
    best, p_said = logits.argmax(-1), (logits.gather(-1, next_ids[:, None]) - whole).exp()[:, 0]
    if vocab is None:
        return Law((logits - whole).exp(), None, None, best, next_ids, p_said)
    p = (logits[:, vocab] - whole).exp()
    return Law(p, None, None, number_in(vocab, best), number_in(vocab, next_ids), p_said)


def top_law(law: Law, k: int) -> Law:
    """The same law with its k most likely tokens listed and the rest in a bucket."""
    p, ids = law.p.topk(min(k, law.p.shape[-1]), dim=-1)
    rest = (law.p.sum(-1) - p.sum(-1)).clamp_(min=0)
    return Law(p, ids, rest, law.best, law.said, law.p_said)


def number_in(vocab: Tensor, ids: Tensor) -> Tensor:
    """Where in the ascending `vocab` each id stands; -1 where it does not."""
    at = torch.searchsorted(vocab, ids).clamp_(max=len(vocab) - 1)
    return torch.where(vocab[at] == ids, at, -1)


def alpha(p: Tensor, log_q: Tensor) -> Tensor:
    """Expected acceptance of a token drawn from q."""
    return torch.minimum(p, log_q.exp()).sum(-1)


def kl(p: Tensor, log_q: Tensor) -> Tensor:
    """Of p renormalised, times its mass: rows of which the draft knows little count little."""
    mass = p.sum(-1, keepdim=True)
    return (p * ((p.clamp(min=_TINY) / mass.clamp(min=_TINY)).log() - _finite(log_q, p))).sum(-1)


def rkl(p: Tensor, log_q: Tensor) -> Tensor:
    """p counts as at least 1e-8, which is what float32 tells apart from 0 beside 1."""
    q = log_q.exp()
    return (q * (_finite(log_q, q) - _normalised(p).clamp(min=1e-8).log())).sum(-1)


def jsd(p: Tensor, log_q: Tensor) -> Tensor:
    p, q = _normalised(p), log_q.exp()
    middle = ((p + q) / 2).clamp(min=_TINY).log()
    return ((p * (p.clamp(min=_TINY).log() - middle)).sum(-1) + (q * (_finite(log_q, q) - middle)).sum(-1)) / 2


def tv(p: Tensor, log_q: Tensor) -> Tensor:
    return 1 - alpha(p, log_q)


def nla(p: Tensor, log_q: Tensor) -> Tensor:
    return -alpha(p, log_q).clamp(min=1e-8).log()


def lk(p: Tensor, log_q: Tensor, eta: float = 3.0) -> Tensor:
    """The weight is each row's own and has no gradient."""
    met = alpha(p, log_q)
    weight = (-eta * met.detach()).exp()
    return weight * kl(p, log_q) + (1 - weight) * (1 - met)


LOSSES: dict[str, Divergence] = {"kl": kl, "rkl": rkl, "jsd": jsd, "tv": tv, "nla": nla, "lk": lk}


def divergence(name: str, eta: float = 3.0) -> Divergence:
    """The loss of a name.

    Raises:
        OptionError: there is none of that name.
    """
    if name not in LOSSES:
        raise OptionError(f"unknown loss {name!r}: use {', '.join(LOSSES)}")
    return (lambda p, log_q: lk(p, log_q, eta)) if name == "lk" else LOSSES[name]


def _normalised(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True).clamp(min=_TINY)


def _finite(log_q: Tensor, weight: Tensor) -> Tensor:
    """log q where it counts: a factor 0 * -inf must be 0, and so must its gradient."""
    return torch.where(weight > 0, log_q, 0.0)
