"""The verdict: speculate or do not, how and up to which batch size, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..bench.intervals import Interval
from .predict import Costs, Prediction, Texts, constant_speedup, predict

NOISE = 0.05  # a gain or loss within this cannot be told from none
Verdict = Literal["speculate", "do not", "within noise"]


def judge(speedup: float, interval: Interval | None = None) -> Verdict:
    """ "within noise" where the gain is small, or where the prompts' interval says that there may be none."""
    if speedup >= 1 + NOISE and (interval is None or interval[0] > 1):
        return "speculate"
    if speedup <= 1 - NOISE and (interval is None or interval[1] < 1):
        return "do not"
    return "within noise"


@dataclass(frozen=True)
class Reason:
    """What stands in the way: "draft too slow", "target already compute-bound" or "acceptance too low", in figures."""

    kind: str
    text: str


def reason_against(acceptance: float, num_drafted: int, t1: float, verify: float, draft: float) -> Reason:
    """The one thing without which speculation would pay most: a draft for nothing, a pass over K + 1 tokens for the
    price of one, or nine tokens of ten accepted.
    """
    if_free = constant_speedup(acceptance, num_drafted, t1, verify, 0.0)
    if_flat = constant_speedup(acceptance, num_drafted, t1, t1, draft)
    if_accepted = constant_speedup(max(acceptance, 0.9), num_drafted, t1, verify, draft)
    cures = {"draft too slow": if_free, "target already compute-bound": if_flat, "acceptance too low": if_accepted}
    kind = max(cures, key=lambda name: cures[name])
    texts = {
        "draft too slow": f"a drafted token takes {draft / t1:.0%} of a token of the target",
        "target already compute-bound": f"a pass over {num_drafted + 1} tokens takes {verify / t1:.2f} times a pass "
        "over one",
        "acceptance too low": f"only {acceptance:.0%} of the guesses are accepted",
    }
    return Reason(kind, f"{kind}: {texts[kind]}")


@dataclass(frozen=True)
class Choice:
    """A drafter with a draft length, and what is expected of it at every batch size."""

    drafter: str
    max_draft: int
    by_batch: Mapping[int, Prediction]


@dataclass(frozen=True)
class Advice:
    """The answer.

    Fields:
        verdict: for the smallest of the batch sizes asked about.
        best: the fastest choice there, whether it pays or not.
        up_to: the largest batch size at which it still pays; 0 where it never does.
        meets_goal: whether each token comes within the wanted time at that batch size; None without a goal.
    """

    verdict: Verdict
    reason: str
    best: Choice | None
    up_to: int
    meets_goal: bool | None = None


def advise(
    texts: Mapping[str, Texts],
    costs: Mapping[str, Costs],
    batches: Sequence[int],
    max_draft: int,
    goal_tpot_ms: float | None = None,
) -> Advice:
    """Weigh every drafter and draft length at every batch size.

    Args:
        texts, costs: by drafter.
        batches: what the user runs; the smallest decides.
        max_draft: the longest draft to consider.
        goal_tpot_ms: what a token may take.
    """
    every = predictions(texts, costs, batches, max_draft)
    choices = [Choice(*key, by_batch) for key, by_batch in every.items()]
    first = min(batches)
    if not choices:
        return Advice("do not", "there is no drafter to use", None, 0)
    best = max(choices, key=lambda choice: choice.by_batch[first].speedup)
    found = best.by_batch[first]
    verdict = judge(found.speedup, found.interval)
    paying = [b for b in sorted(batches) if judge(best.by_batch[b].speedup, best.by_batch[b].interval) == "speculate"]
    said = _said(found)
    if verdict == "speculate":
        reason = f"{best.drafter} with up to {best.max_draft} tokens a round is expected to be {said}"
        if paying[-1] < max(batches):
            reason += f"; beyond batch {paying[-1]} it no longer pays, because passes over more tokens take longer"
    else:
        against = reason_against(*typical(texts[best.drafter], costs[best.drafter], best.max_draft, first))
        reason = (
            f"the best of all, {best.drafter} with {best.max_draft} tokens a round, would be {said}; {against.text}"
        )
        if verdict == "within noise":
            reason = f"within noise: {reason}"
    meets = None
    if goal_tpot_ms is not None:
        plain = 1e3 * costs[best.drafter].passing(first)
        shown = found.tpot_ms if verdict == "speculate" else plain
        meets = shown <= goal_tpot_ms
        word = "meets" if meets else "misses"
        reason += f"; {shown:.1f} ms a token {word} the goal of {goal_tpot_ms:g} ms (plain decoding: {plain:.1f} ms)"
    return Advice(verdict, reason, best, paying[-1] if paying else 0, meets)


def predictions(
    texts: Mapping[str, Texts], costs: Mapping[str, Costs], batches: Sequence[int], max_draft: int
) -> dict[tuple[str, int], dict[int, Prediction]]:
    """Every drafter and draft length, by batch size."""
    return {
        (name, length): {batch: predict(own, costs[name], length, batch) for batch in sorted(set(batches))}
        for name, own in texts.items()
        for length in range(1, max(1, min(max_draft, own.depth)) + 1)
    }


def typical(texts: Texts, costs: Costs, max_draft: int, batch: int) -> tuple[float, int, float, float, float]:
    """Acceptance of a drafted token, K, T(1), T(K + 1) and T_draft, as `constant_speedup` takes them."""
    found = predict(texts, costs, max_draft, batch)
    drafted = max(1, round(found.num_drafted))
    acceptance = (found.length - 1) / found.num_drafted if found.num_drafted else 0.0
    verify = costs.passing(batch * (1 + max(found.num_drafted, 1.0)))
    return acceptance, drafted, costs.passing(batch), verify, costs.drafting(drafted, batch) / drafted


def _said(found: Prediction) -> str:
    text = f"{found.speedup:.2f} times as fast as plain decoding"
    return text if found.interval is None else f"{text} (95 % {found.interval[0]:.2f} to {found.interval[1]:.2f})"
