"""The one definition of the distribution: what drafts are drawn from and what they are verified against.

Processors run in the order transformers uses: logit bias, repetition penalty, presence and frequency penalties,
banned tokens, temperature, top-k, top-p, min-p. Greedy is the one-hot case (ties go to the lowest id). Laws are
sparse wherever the processors leave few tokens, so no vocabulary-sized sort or copy is made in the common case.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import ModelError
from .interfaces import RandomSource
from .kernels import nucleus
from .types import EMPTY_DRAFT, Draft, Probs, SamplingParams, TokenLogprob

_CHUNK = 512  # ids per chunk in the search for the highest
_SMALL_CHUNK = 64  # ids per chunk in the search for the highest few
_LARGE = 4096  # ids from which on the kernel is worth its call
_FIRST_WIDTH = 64  # candidates looked at first by top-p and min-p; grows by 8 until they suffice


def probs(
    logits: Tensor, params: SamplingParams, tokens: Sequence[int] = (), num_prompt: int = 0, draft: Draft = EMPTY_DRAFT
) -> Probs:
    """The law of the next token at the root and at every node of a draft.

    Args:
        logits: `[N+1, V]`; row 0 follows `tokens`, row i+1 follows the path to node i of `draft`.
        tokens, num_prompt: prompt and output so far, for the penalties.

    Returns:
        N+1 rows; float32, or float64 if the logits are.

    Raises:
        ModelError: the logits hold no finite maximum (a damaged model, or an overflow).
    """
    logits = penalise(logits, params, tokens, num_prompt, draft)
    wide = torch.promote_types(logits.dtype, torch.float32)
    if params.greedy:
        top, ids = highest(logits)
        _demand(bool(torch.isfinite(top).all()))
        return Probs(torch.ones_like(top, dtype=wide), ids, logits.shape[-1])
    if (law := _by_kernel(logits, params)) is not None:
        return law
    scaled = logits.to(wide, copy=True)
    top = scaled.amax(-1, keepdim=True)
    _demand(bool(torch.isfinite(top).all()))
    scaled.sub_(top)
    if params.temperature != 1:
        scaled.div_(max(params.temperature, 1e-30))
    return _truncate(scaled, params)


def _by_kernel(logits: Tensor, params: SamplingParams) -> Probs | None:
    """The truncated law of large rows in two passes over them instead of fifty small operations, where that can be."""
    truncated = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    if not truncated or logits.shape[-1] < _LARGE or nucleus.unsupported(logits):
        return None
    temperature = max(params.temperature, 1e-30)
    values, ids, finite = nucleus.nucleus(logits, temperature, params.top_k, params.top_p, params.min_p)
    _demand(finite)
    return Probs(values, ids, logits.shape[-1])


def _demand(finite: bool) -> None:
    if not finite:
        raise ModelError("the model's logits are not finite: every token is banned, or the weights are damaged")


def highest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The highest of each row `[R, V]` and its id, `[R, 1]` each; ties go to the lowest id.

    torch's argmax over a large vocabulary takes as long as a layer of a small model; a maximum is fast. So the
    maxima of chunks come first, then the place within the best chunk.
    """
    num_chunks = logits.shape[-1] // _CHUNK
    if num_chunks < 8:
        ids = logits.argmax(dim=-1, keepdim=True)
        return logits.gather(-1, ids), ids
    whole = num_chunks * _CHUNK
    peaks = logits[:, :whole].unflatten(-1, (num_chunks, _CHUNK)).amax(-1)
    if whole < logits.shape[-1]:
        peaks = torch.cat([peaks, logits[:, whole:].amax(-1, keepdim=True)], -1)
    first = peaks.argmax(dim=-1, keepdim=True) * _CHUNK
    places = (first + torch.arange(_CHUNK, device=logits.device)).clamp_(max=logits.shape[-1] - 1)
    ids = first + logits.gather(-1, places).argmax(dim=-1, keepdim=True)
    return logits.gather(-1, ids), ids


def reduced_probs(
    logits: Tensor,
    ids: Tensor | None,
    vocab_size: int,
    params: SamplingParams,
    tokens: Sequence[int] = (),
    num_prompt: int = 0,
) -> Probs:
    """Laws of the next token after `tokens`, from logits that speak of some tokens only; the others have none.

    Args:
        logits: `[R, D]`.
        ids: the token of each logit, distinct, int64 `[D]`; None means all V in order.
        vocab_size: V, the width of the law.
    """
    if ids is None or params.needs_history or params.logit_bias or params.banned_tokens:
        if ids is not None:
            logits = logits.new_full((len(logits), vocab_size), -torch.inf).index_copy_(1, ids, logits)
        return probs(logits, params, tokens, num_prompt)
    law = probs(logits, params)
    return Probs(law.values, ids.expand(len(law), -1) if law.ids is None else ids[law.ids], vocab_size)


def penalise(
    logits: Tensor, params: SamplingParams, tokens: Sequence[int], num_prompt: int, draft: Draft = EMPTY_DRAFT
) -> Tensor:
    """Bias, penalties and bans, exact for the history of every row; a copy is made only if something applies."""
    vocab_size = logits.shape[-1]
    bias = {t: b for t, b in params.logit_bias.items() if t < vocab_size}
    banned = [t for t in params.banned_tokens if t < vocab_size]
    if not (bias or banned or params.needs_history):
        return logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    if bias:
        logits[:, list(bias)] += logits.new_tensor(list(bias.values()))
    if params.needs_history:
        seen, output = set(tokens), Counter(tokens[num_prompt:])
        for row in range(logits.shape[0]):
            path = [draft.tokens[node] for node in draft.path(row - 1)]
            _penalise_row(logits[row], params, seen.union(path), output + Counter(path))
    if banned:
        logits[:, banned] = -torch.inf
    return logits


def _penalise_row(row: Tensor, params: SamplingParams, seen: set[int], output: Counter[int]) -> None:
    """In place on one row `[V]`: CTRL's repetition penalty (1909.05858), then presence and frequency."""
    vocab_size = row.shape[0]
    if params.repetition_penalty != 1:
        ids = torch.tensor([t for t in seen if t < vocab_size], device=row.device, dtype=torch.long)
        values = row[ids]
        row[ids] = torch.where(values < 0, values * params.repetition_penalty, values / params.repetition_penalty)
    counts = {t: c for t, c in output.items() if t < vocab_size}
    if counts and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
        row[ids] -= params.presence_penalty + params.frequency_penalty * times


def _truncate(scaled: Tensor, params: SamplingParams) -> Probs:
    """Top-k, top-p and min-p of `scaled` `[R, V]`, whose row maxima are 0."""
    vocab_size = scaled.shape[-1]
    if params.top_k == 0 and params.top_p == 1 and params.min_p == 0:
        return Probs.dense(torch.softmax(scaled, dim=-1))
    width = min(vocab_size, max(_FIRST_WIDTH, 2 * params.top_k))
    total = None
    if params.top_p < 1 and not params.top_k:  # sum of exp: softmax gives the maximum 1 / total, faster than summing
        total = 1 / torch.softmax(scaled, dim=-1).amax(-1, keepdim=True)
    while True:
        values, ids = best(scaled, width)
        keep = _kept(values, total, params)
        tied = params.top_k > 0 and bool((values[:, -1] == values[:, min(params.top_k, width) - 1]).any())
        if width == vocab_size or not (tied or bool(keep[:, -1].any())):  # the last one is out, so are all beyond it
            break
        if len(scaled) > 1:  # one flat row must not widen the others
            return Probs.stack([_truncate(row, params) for row in scaled.split(1)])
        width = min(vocab_size, 8 * width)
    widest = int(keep.sum(-1).max())
    kept = values[:, :widest].exp() * keep[:, :widest]
    return Probs(kept / kept.sum(-1, keepdim=True), ids[:, :widest], vocab_size)


def best(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` highest of each row `[R, V]` in falling order, and their ids, `[R, width]` each.

    They lie in the `width` chunks with the highest maxima, so that only these have to be sorted.
    """
    vocab_size = scores.shape[-1]
    num_chunks = vocab_size // _SMALL_CHUNK
    if width > num_chunks // 4:
        return scores.topk(width, dim=-1)
    whole = num_chunks * _SMALL_CHUNK
    peaks = scores[:, :whole].unflatten(-1, (num_chunks, _SMALL_CHUNK)).amax(-1)
    first = peaks.topk(width, dim=-1).indices.mul_(_SMALL_CHUNK)
    places = (first[:, :, None] + torch.arange(_SMALL_CHUNK, device=scores.device)).flatten(1)
    if whole < vocab_size:
        rest = torch.arange(whole, vocab_size, device=scores.device)
        places = torch.cat([places, rest.expand(len(scores), -1)], -1)
    found = scores.gather(-1, places).topk(width, dim=-1)
    return found.values, places.gather(-1, found.indices)


def _kept(values: Tensor, total: Tensor | None, params: SamplingParams) -> Tensor:
    """Which of the sorted candidates `[R, W]` survive; `total` is the mass `[R, 1]` that top-p is a share of.

    Borders are thresholds on the value, so equal tokens share their fate and the order of ties does not matter.
    """
    keep = torch.ones_like(values, dtype=torch.bool)
    if params.top_k and params.top_k < values.shape[-1]:
        keep &= values >= values[:, params.top_k - 1 : params.top_k]
    weights = values.exp() * keep
    if params.top_p < 1:
        mass = weights.sum(-1, keepdim=True) if total is None else total
        before = weights.double().cumsum(-1) - weights
        outside = before >= params.top_p * mass
        outside[:, 0] = False  # the most likely token always stays, however small top_p
        border = values.masked_fill(outside | ~keep, torch.inf).amin(-1, keepdim=True)
        keep &= values >= border
    if params.min_p > 0:
        keep &= values.exp() >= params.min_p  # the row's maximum has exp(0) = 1
    return keep


def logprobs(logits: Tensor, tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log-probabilities of `tokens` `[M]` under `logits` `[M, V]`, with the `num_top` most likely of each row."""
    logs = torch.log_softmax(logits.float(), dim=-1)
    top = logs.topk(min(num_top, logs.shape[-1]), dim=-1)
    return [
        TokenLogprob(token, float(logs[i, token]), tuple(zip(top.indices[i].tolist(), top.values[i].tolist())))
        for i, token in enumerate(tokens)
    ]


def draw(law: Probs, row: int, source: RandomSource, stream: str) -> int:
    """One token from one row of `law`."""
    ids, weights = law.support(row)
    index = source.categorical(weights, stream)
    return index if ids is None else int(ids[index])


def draw_distinct(law: Probs, row: int, num: int, source: RandomSource, stream: str) -> list[int]:
    """Up to `num` different tokens from one row of `law`, one after another, each from what the earlier ones left,
    renormalised; fewer only where no more tokens have mass.
    """
    ids, weights = law.support(row)
    weights = weights.clone()
    tokens: list[int] = []
    while len(tokens) < num and bool(weights.sum() > 0):
        index = source.categorical(weights, stream)
        weights[index] = 0
        tokens.append(index if ids is None else int(ids[index]))
    return tokens


class SeededSource:
    """A sequence's own chance: one Mersenne Twister per stream, each seeded by a hash of seed, index and stream.

    Every number is used once, and no other sequence can disturb it: given the same laws, the same seed gives the same
    text whatever shares the batch.
    """

    def __init__(self, seed: int | None = None, index: int = 0):
        """seed: None takes one from the system. index: which of the n continuations of a prompt."""
        self.seed = random.SystemRandom().getrandbits(63) if seed is None else seed
        self.index = index
        self._streams: dict[str, random.Random] = {}

    def _uniform(self, stream: str) -> float:
        if stream not in self._streams:
            self._streams[stream] = random.Random(f"draftproof/{self.seed}/{self.index}/{stream}")
        return self._streams[stream].random()

    def bernoulli(self, prob: float, stream: str) -> bool:
        return self._uniform(stream) < prob

    def categorical(self, weights: Tensor, stream: str) -> int:
        """Inverse transform in float64; an index of weight zero is never returned."""
        cumulative = weights.double().cumsum(-1)
        total = cumulative[-1]
        if not bool(total > 0) or not bool(torch.isfinite(total)):
            raise ModelError(f"cannot draw a token: the {stream} weights sum to {float(total)}")
        index = int(torch.searchsorted(cumulative, total * self._uniform(stream), right=True))
        if index >= len(weights):  # the product rounded up to the total
            index = int(weights.nonzero()[-1])
        return index
