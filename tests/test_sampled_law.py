"""Sampled text follows the target's law: exactly, by enumerating the engine, and by drawing (H02, H03, H05, H21)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from draftproof import SamplingParams
from draftproof.api import VERIFIERS
from draftproof.audit.exact import engine_distance, law_of_engine
from draftproof.audit.laws import law_of_texts
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.errors import OptionError
from draftproof.models import shrink
from draftproof.testing import LawDrafter, RandomTable, ScriptDrafter, TableTarget
from draftproof.verify.law import exact_law, total_variation
from engines import ModelTarget, engine, lm, model_drafter
from tiny import tiny_llama

F64 = {"dtype": torch.float64}


@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("kind", ["sampled", "truncated", "argmax"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_whole_engine_has_exactly_the_targets_law(k, kind, zeros):
    """Three tokens in at least two rounds; laws depend on the whole prefix."""
    p, q = RandomTable(3, 1, zeros), RandomTable(3, 2, zeros)
    drafter = LawDrafter(q, k, top=2 if kind == "truncated" else 0, fixed=kind == "argmax")
    params = SamplingParams(max_new_tokens=3)
    assert engine_distance(p, drafter, params, max_draft=k) < 1e-12


@pytest.mark.parametrize("drawn", ["fixed", "independent", "without_replacement", "hybrid"])
@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("parents", [(-1, -1, 0), (-1, 0, 0), (-1, 0, 1)], ids=str)
def test_the_whole_engine_is_exact_with_trees_and_every_rule(parents, name, drawn):
    """Four tokens; the budget cuts the tree in later rounds."""
    params = SamplingParams(max_new_tokens=4)
    p, q = RandomTable(2, 1), RandomTable(2, 2)
    drafter = LawDrafter(q, drawn=drawn, parents=parents)
    made: dict[str, Any] = {"max_draft": 3, "verify": VERIFIERS[name]}
    if name == "block" and parents != (-1, 0, 1):
        with pytest.raises(OptionError, match="takes chains"):
            engine_distance(p, drafter, params, **made)
        return
    assert engine_distance(p, drafter, params, **made) < 1e-12


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.6},
        {"top_k": 2},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"repetition_penalty": 1.4, "temperature": 1.3},
        {"presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"logit_bias": {1: -0.9}, "banned_tokens": (2,)},
        {"temperature": 0.0},
    ],
    ids=lambda s: "-".join(s),
)
def test_the_law_is_exact_under_every_processor(settings):
    p, q = RandomTable(4, 3), RandomTable(4, 4)
    params = SamplingParams(max_new_tokens=3, **settings)
    for drafter in (LawDrafter(q, 2), LawDrafter(q, 2, fixed=True)):
        assert engine_distance(p, drafter, params, max_draft=2) < 1e-12


@pytest.mark.parametrize(
    "case",
    [
        {"k": 2},
        {"k": 3, "temperature": 0.7, "draft_eos": True},
        {"k": 2, "repetition_penalty": 1.5, "top_k": 3},
        {"k": 2, "draft_confidence": 0.5, "stop_token_ids": (2,)},
        {"k": 3, "kept": [0, 2, 3], "presence_penalty": 0.5},
        {"k": 8, "kept": [1, 3]},
    ],
    ids=str,
)
def test_the_law_is_exact_with_a_real_draft_model(case):
    """Both models are float64 Llamas over four tokens; every draw of drafter and verifier is enumerated.

    transformers' norms round to float32, so the passes agree to about 1e-7 and the law to that.
    """
    settings = dict(case)
    k, eos, confidence = settings.pop("k"), settings.pop("draft_eos", False), settings.pop("draft_confidence", 0.0)
    kept = settings.pop("kept", None)
    params = SamplingParams(max_new_tokens=3, **settings)
    big, small = (tiny_llama(seed, vocab_size=4, initializer_range=0.5).double() for seed in (5, 6))
    if kept is not None:
        shrink.keep_outputs(small, kept)
    target, draft_lm = lm(big, 1), lm(small, 1)
    ended = frozenset([1]) if eos else frozenset()

    def run(source):
        drafter = ModelDrafter(draft_lm, 4, 4, ended, kept=kept, confidence=confidence)
        made = engine(target, drafter, max_draft=k, eos_ids=ended, make_source=lambda seed, index: source)
        return tuple(made.generate([[0]], params)[0].token_ids)

    plain = ModelTarget(big)
    plain.dtype = torch.float64
    expected = law_of_texts(plain, params, {*ended, *params.stop_token_ids})
    assert total_variation(exact_law(run), expected) < 1e-6


P, Q = [0.4, 0.4, 0.2], [0.6, 0.3, 0.1]


@pytest.mark.parametrize("kind", ["always token 0", "top 2 of q", "q"])
def test_h02_the_law_verified_is_the_law_drawn_from(kind):
    fixed, top = LawDrafter(Q, 1, fixed=True), LawDrafter(Q, 1, top=2)
    drafter = {"always token 0": fixed, "top 2 of q": top, "q": LawDrafter(Q, 1)}
    params = SamplingParams(max_new_tokens=2)
    got = law_of_engine(TableTarget(P, **F64), drafter[kind], params, max_draft=1)
    first = Counter()
    for text, weight in got.items():
        first[text[0]] += weight
    assert [first[i] for i in range(3)] == pytest.approx(P, abs=1e-12)


def test_h02_twenty_thousand_seeds_give_the_law_and_the_acceptance_rate():
    """TV at most .02 at n = 20 000 over 3 cells: false alarm below 1e-8 (Bretagnolle-Huber-Carol); rate: 5.6 sigma."""
    run = engine(TableTarget(P, max_rows=64), LawDrafter(Q, 1), max_draft=1, max_batch=64)
    results = run.generate([[0]] * 20_000, [SamplingParams(max_new_tokens=2, seed=i) for i in range(20_000)])
    counts = Counter(r.token_ids[0] for r in results)
    assert sum(abs(counts[i] / 20_000 - P[i]) for i in range(3)) / 2 <= 0.02
    accepted = sum(r.stats.num_accepted for r in results) / 20_000
    assert accepted == pytest.approx(0.8, abs=0.02)


def test_h03_no_impossible_transitions():
    """Forbidden pairs are impossible, not improbable; the share of +1 steps: 4 x 5 000 fair draws, .02 is 5.6 sigma."""
    rows = torch.zeros(7, 7)
    for i in range(7):
        rows[i, (i + 1) % 7] = rows[i, (i + 2) % 7] = 0.5
    run = engine(TableTarget(rows), LawDrafter([1 / 7] * 7, 5), max_draft=5)
    steps: Counter[int] = Counter()
    drafted = accepted = 0
    for seed in range(4):
        if seed > 1:  # the first two share an engine and its cached rows
            run = engine(TableTarget(rows), LawDrafter([1 / 7] * 7, 5), max_draft=5)
        result = run.generate([[0]], SamplingParams(max_new_tokens=5000, seed=seed))[0]
        text = [0, *result.token_ids]
        steps.update((b - a) % 7 for a, b in zip(text, text[1:]))
        drafted, accepted = drafted + result.stats.num_drafted, accepted + result.stats.num_accepted
    assert set(steps) == {1, 2}
    assert 0 < accepted < drafted
    assert steps[1] / steps.total() == pytest.approx(0.5, abs=0.02)


CHAIN, TREE = (-1, 0, 1), (-1, -1, 0)


@pytest.mark.parametrize(
    ("name", "parents", "drawn"),
    [
        *((name, CHAIN, "fixed") for name in VERIFIERS),
        ("auto", CHAIN, "independent"),
        *(("auto", TREE, drawn) for drawn in ("fixed", "without_replacement", "hybrid")),
    ],
)
def test_h04_a_token_that_is_always_proposed_keeps_its_share(name, parents, drawn):
    """20 000 tokens of law .6, .4 from a drafter that always says 1 first: a share off by .02 is 5.8 sigma."""
    drafter = LawDrafter([0.001, 0.999], 3, drawn=drawn, parents=parents)
    run = engine(TableTarget([0.6, 0.4], max_rows=50), drafter, max_draft=3, max_batch=50, verify=VERIFIERS[name])
    params = [SamplingParams(max_new_tokens=200, seed=i) for i in range(100)]
    results = run.generate([[0]] * 100, params)
    assert 0 < sum(r.stats.num_accepted for r in results) < sum(r.stats.num_drafted for r in results)
    assert sum(sum(r.token_ids) for r in results) / 20_000 == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("settings", [{"logit_bias": {7: -100.0}}, {"banned_tokens": (7,)}], ids=["bias", "ban"])
def test_h05_bias_and_bans_reach_every_position_of_a_block(settings, temperature):
    law = [0.0] * 10
    law[7], law[8], law[9] = 0.9, 0.08, 0.02
    drafter = ScriptDrafter([(7, 7, 7, 7)] * 2000)
    params = SamplingParams(temperature=temperature, max_new_tokens=2000, seed=1, **settings)
    result = engine(TableTarget(law), drafter, max_draft=4).generate([[0]], params)[0]
    assert 7 not in result.token_ids
    assert result.stats.num_accepted == 0 and result.stats.num_drafted > 0


def test_h05_min_p_reaches_every_position_of_a_block():
    """2 000 tokens of law 7: .918, 8: .082; a share off by .04 is 6.5 sigma. Token 9 is impossible."""
    law = [0.0] * 10
    law[7], law[8], law[9] = 0.9, 0.08, 0.02
    drafter = ScriptDrafter([(7, 7, 7, 7)] * 2000)
    params = SamplingParams(min_p=0.05, max_new_tokens=2000, seed=1)
    result = engine(TableTarget(law), drafter, max_draft=4).generate([[0]], params)[0]
    counts = Counter(result.token_ids)
    assert set(counts) == {7, 8}
    assert counts[7] / 2000 == pytest.approx(0.918, abs=0.04)
    assert 0 < result.stats.num_accepted < result.stats.num_drafted


def test_h21_a_seed_fixes_the_text_whatever_shares_the_batch():
    """Equal texts of 16 uniform tokens out of 50 under different seeds have probability 50^-16."""

    def text(seed, others=0):
        run = engine(TableTarget([0.02] * 50), LawDrafter([0.02] * 50, 4), max_draft=4)
        prompts = [[1]] * others + [[0]]
        params = [SamplingParams(max_new_tokens=16, seed=100 + i) for i in range(others)]
        return run.generate(prompts, [*params, SamplingParams(max_new_tokens=16, seed=seed)])[-1].token_ids

    assert len({tuple(text(42)) for _ in range(5)}) == 1
    assert text(42) == text(42, others=3) == text(42, others=9)
    assert len({tuple(text(seed)) for seed in (42, 43, 44)}) == 3


def test_h21_real_forward_seeds_are_independent_of_the_batch_and_greedy_ignores_them():
    model, small = tiny_llama(0), tiny_llama(1)
    run = engine(lm(model), model_drafter(small), max_draft=3, max_batch=4)
    params = [SamplingParams(max_new_tokens=20, seed=s, top_p=0.95) for s in range(4)]
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 11]]
    together = run.generate(prompts, params)
    assert [run.generate([p], s)[0].token_ids for p, s in zip(prompts, params)] == [r.token_ids for r in together]
    greedy = [run.generate([[1, 2]], SamplingParams(temperature=0, seed=s))[0].token_ids for s in (1, 2)]
    assert greedy[0] == greedy[1]


def test_n_continuations_differ_when_sampled_and_repeat_with_the_seed():
    run = engine(TableTarget([0.02] * 50), LawDrafter([0.02] * 50, 4), max_draft=4)
    params = SamplingParams(max_new_tokens=12, seed=5, n=3)
    results = run.generate([[0], [1]], params)
    assert [(r.prompt_index, r.index) for r in results] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert len({tuple(r.token_ids) for r in results[:3]}) == 3
    assert [r.token_ids for r in run.generate([[0], [1]], params)] == [r.token_ids for r in results]
