"""The speed-up of a draft length at a batch size, from costs and acceptance that were each measured once.

A round over B sequences with K guesses each takes T_draft(K, B) + T(B (1 + n)), where n of the K tokens are really
drafted (a drafter may end its draft itself), and gives E = 1 + P(accepted >= 1) + ... + P(accepted >= K) tokens a
sequence; plain decoding takes T(B) for one. Neither the acceptance nor (for the token rule and block verification) its
survival function depends on K, and none of it on the hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..bench.intervals import Interval, resampled
from ..costs import Calibration, Curve
from ..verify.analysis import expected_tokens, geometric_survival


def constant_speedup(acceptance: float, num_drafted: int, t1: float, verify: float, draft: float) -> float:
    """With every token accepted alike: (1 - a^(K+1)) / (1 - a) x T(1) / (K T_draft + T(K + 1)).

    Args:
        acceptance: a. t1, verify, draft: times of a pass over one token, over K + 1, and of drafting one.
    """
    return expected_tokens(geometric_survival(acceptance, num_drafted)) * t1 / (num_drafted * draft + verify)


@dataclass(frozen=True)
class Texts:
    """What came of drafting for some prompts, a cluster each.

    Fields:
        clusters: for each prompt: rounds, new tokens, prompt tokens, then rounds that accepted 1, ..., K and that
            drafted 1, ..., K.
        depth: K.
    """

    clusters: tuple[tuple[float, ...], ...]
    depth: int

    def sums(self) -> list[float]:
        return [sum(column) for column in zip(*self.clusters)]


@dataclass(frozen=True)
class Costs:
    """What the parts of a round take, in seconds.

    Fields:
        base: passes and a draft for one sequence.
        draft_batch: a pass of the drafter for B sequences over one for one; a constant where it makes none.
        rest: per scored token, outside the passes.
    """

    base: Calibration
    draft_batch: Curve = field(default_factory=lambda: Curve(((1, 1.0),)))
    rest: float = 0.0

    def passing(self, num_tokens: float) -> float:
        return self.base.passes.at(num_tokens) + self.rest * num_tokens

    def drafting(self, layers: float, batch: int) -> float:
        """Of as many passes on average; nothing is paid where nothing is drafted."""
        return self.base.drafting(layers) * self.draft_batch.at(batch)


@dataclass(frozen=True)
class Prediction:
    """One draft length at one batch size.

    Fields:
        length: E. num_drafted: n. tok_s: of the whole batch. tpot_ms: of one sequence. interval: of the speed-up, over
            prompts; None with fewer than two.
    """

    max_draft: int
    batch: int
    speedup: float
    length: float
    num_drafted: float
    tok_s: float
    tpot_ms: float
    interval: Interval | None = None


def predict(texts: Texts, costs: Costs, max_draft: int, batch: int) -> Prediction:
    """Chains of up to `max_draft` tokens for every one of `batch` sequences."""
    speedup, length, drafted, seconds = _from_sums(texts.sums(), texts.depth, costs, max_draft, batch)
    interval = None
    if len(texts.clusters) > 1:
        ratios = sorted(
            _from_sums(sums, texts.depth, costs, max_draft, batch)[0]
            for sums in resampled(texts.clusters)[:400].tolist()
        )
        interval = ratios[len(ratios) // 40], ratios[-1 - len(ratios) // 40]
    return Prediction(
        max_draft, batch, speedup, length, drafted, batch * length / seconds, 1e3 * seconds / length, interval
    )


def _from_sums(
    sums: Sequence[float], depth: int, costs: Costs, max_draft: int, batch: int
) -> tuple[float, float, float, float]:
    """Speed-up, tokens a round, drafted tokens a round, seconds of a round."""
    rounds, tokens, prompt = sums[:3]
    used = min(max_draft, depth)
    accepted, drafted = sums[3 : 3 + used], sums[3 + depth : 3 + depth + used]
    survival = [count / rounds for count in accepted]
    length, num = expected_tokens(survival), sum(drafted) / rounds
    reading = costs.base.draft_reading * prompt / max(tokens, 1.0) * length * batch if max_draft else 0.0
    seconds = costs.drafting(num, batch) + costs.passing(batch * (1 + num)) + reading
    return length * costs.passing(batch) / seconds, length, num, seconds
