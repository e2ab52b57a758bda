"""Does the auditor keep its word? `audit model` on many engines without a fault, and on many with a planted leak.

    python benchmarks/audit_calibration.py OUT.json [--nulls 500] [--leaks 100] [--tokens 400]

Everything runs through the whole engine on test doubles with a known law: batching, random streams, generation, reading
and the tests. Nulls: how often any test rejects, by Holm, at a false-alarm rate of 5 % in all, with the exact interval
(Clopper-Pearson, 99 %). Leaks: one token in twenty comes from the draft unverified, at TV(p, q) = 0.3, with as many
tokens as the formula asks for; how many are found at level 0.001.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from scipy import stats

from draftproof.audit import model
from draftproof.audit.findings import LEAK, pooled
from draftproof.audit.reading import Reader
from draftproof.audit.stats import power
from draftproof.audit.verdict import holm
from draftproof.engine import Engine
from draftproof.interfaces import RandomSource, Verifier
from draftproof.params import SamplingParams
from draftproof.sampling import draw
from draftproof.testing import LawDrafter, RandomTable, SilentDrafter, TableTarget
from draftproof.types import Draft, Probs, Verification
from draftproof.verify import auto_rule

V, TV, BATCH = 8, 0.3, 64
PROMPTS = [[i % V, (i // V) % V] for i in range(BATCH)]
P = torch.stack([RandomTable(V, 3)((i,)) for i in range(V)])


def far_from_p() -> torch.Tensor:
    """q `[V, V]` whose every row is at total variation TV from p's: p moved towards its least likely token."""
    rows = P.clone()
    for row in rows:
        least = int(row.argmin())
        row.mul_(1 - TV / (1 - float(row[least])))
        row[least] += 1 - row.sum()
    return rows


Q = far_from_p()


def leaking(draft: Draft, p: Probs, source: RandomSource) -> Verification:
    """One drafted token in twenty is emitted unverified, and nothing beside it: y from (1 - e) p + e q, every token."""
    if draft.num_nodes and source.bernoulli(LEAK, "leak"):
        return Verification((), draft.tokens[0], "residual", draft.num_nodes)
    if draft.num_nodes:
        return Verification((), draw(p, 0, source, "residual"), "residual", draft.num_nodes)
    return auto_rule(draft, p, source)


def engine(drafter: LawDrafter | SilentDrafter, verify: Verifier = auto_rule) -> Engine:
    return Engine(TableTarget(P), drafter, verify, max_draft=2, max_batch=BATCH)


def interval(count: int, runs: int) -> tuple[float, float]:
    found = stats.binomtest(count, runs).proportion_ci(0.99, "exact")
    return float(found.low), float(found.high)


def nulls(runs: int, tokens: int) -> dict[str, object]:
    """Sound engines, drafting chains of two, each with its own seeds."""
    plan = model.Plan(
        tokens=tokens, max_new_tokens=32, settings={"T = 1": SamplingParams()}, greedy=False, alpha=0.05, tv=1.0
    )
    alarms, each = 0, [0, 0, 0, 0]
    for run in range(runs):
        found = model.audit(
            engine(SilentDrafter()), engine(LawDrafter(Q, 2)), PROMPTS[:16], replace(plan, seed=run * 1_000_003)
        )
        p_values = [test.p_value for test in found.evidence]
        alarms += min(holm(p_values)) < plan.alpha
        each = [count + (p < plan.alpha) for count, p in zip(each, p_values)]
        if run % 50 == 49:
            print(f"{run + 1} sound engines: {alarms} alarms", flush=True)
    names = [test.name for test in found.evidence]
    return {
        "runs": runs,
        "tokens_each": tokens,
        "level": plan.alpha,
        "alarms": alarms,
        "interval_99": interval(alarms, runs),
        "each_test": {name: {"alarms": n, "interval_99": interval(n, runs)} for name, n in zip(names, each)},
    }


def leaks(runs: int) -> dict[str, object]:
    """Leaking engines, with the predicted number of tokens."""
    needed = power.tokens_needed(LEAK * TV)
    plan = model.Plan(tokens=needed, max_new_tokens=128)
    found = 0
    for run in range(runs):
        arm = model.sample(
            engine(LawDrafter(Q, 1), leaking), "leaking", PROMPTS, SamplingParams(), plan, run << 32, lambda *_: None
        )
        readings = Reader(TableTarget(P), arm.params, LawDrafter(Q, 1), run, BATCH).read(arm.texts)
        drift = pooled("leaking", readings).drift
        found += drift.p_value < power.ALPHA and drift.total > 0
        if run % 10 == 9:
            print(f"{run + 1} leaks: {found} found", flush=True)
    return {
        "runs": runs,
        "leak": LEAK,
        "tv": TV,
        "tokens_predicted": needed,
        "level": power.ALPHA,
        "found": found,
        "interval_99": interval(found, runs),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nulls", type=int, default=500)
    parser.add_argument("--leaks", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=400)
    given = parser.parse_args()
    started = time.perf_counter()
    content: dict[str, object] = {}
    for name, part in (("nulls", lambda: nulls(given.nulls, given.tokens)), ("leaks", lambda: leaks(given.leaks))):
        content[name] = part()
        content["seconds"] = round(time.perf_counter() - started, 1)
        temporary = given.out.with_suffix(".part")
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        temporary.replace(given.out)
    print(json.dumps(content))
