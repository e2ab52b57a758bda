"""`audit sample`: a sound engine passes, shared noise and a leak do not, and the sizes are those of the formula."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from draftproof import cli
from draftproof.audit import sample
from draftproof.audit.stats import power
from draftproof.sampling import SeededSource
from leaks import SharedNoise, leaking

PLAN = sample.Plan(tv=0.25)


@pytest.fixture(scope="module")
def few():
    """Four of the systems: one of each way of drawing."""
    systems = list(sample._systems())
    return [systems[i] for i in (1, 4, 10, 15)]


def drawn(systems, monkeypatch, plan=PLAN, **options):
    monkeypatch.setattr(sample, "_systems", lambda: iter(systems))
    return sample.audit(plan, **options)


def test_every_verifier_and_way_of_drawing_and_real_forwards_are_drawn():
    systems = list(sample._systems())
    assert len(systems) == 4 * 4 + 1 and len({system.name for system in systems}) == 17
    assert all(sum(system.law.values()) == pytest.approx(1) for system in systems)


def test_a_sound_engine_is_certified_against_every_alternative(few, monkeypatch):
    """False alarms: 1e-3 in all; the seed is fixed."""
    found = drawn(few, monkeypatch)
    assert found.verdict.kind == "lossless" and "every alternative" in found.verdict.sentence
    assert found.unrepeatable == []
    assert found.laws[0].test.num == power.draws_needed(0.25, 64, PLAN.alpha_of_each)
    assert 0.1 < found.verdict.tv_bound < 0.5


def test_a_leak_of_half_the_rounds_is_found_by_the_texts(few, monkeypatch):
    leaky = [replace(few[1], verify=leaking(0.5))]
    found = drawn(leaky, monkeypatch)
    assert found.verdict.kind == "not lossless" and "texts" in found.verdict.sentence


def test_noise_used_twice_is_found_by_the_joint_law_and_the_streams(few, monkeypatch):
    """vLLM #54282 in small: every stream alone is good, and they are the same numbers."""
    found = drawn(few[1:2], monkeypatch, make_source=SharedNoise)
    assert found.verdict.kind == "not lossless"
    p_values = {test.name: test.p_value for test in found.evidence}
    assert p_values["streams draft and residual"] < 1e-12
    assert p_values["joint law of draft, acceptance and next token"] < 1e-6
    assert p_values["stream draft: uniform"] > 1e-4


def test_a_text_that_depends_on_its_batch_is_named(few, monkeypatch):
    """All sequences share one source: what a seed gives depends on who was served before."""
    shared = SeededSource(3)
    found = drawn(few[1:2], monkeypatch, make_source=lambda seed, index: shared)
    assert found.verdict.kind == "not lossless" and "changes when 3 run together" in found.verdict.sentence


def test_the_tiny_pair_reads_its_law_without_a_cache():
    from draftproof.audit.tiny import TinyPair

    pair = TinyPair(4)
    law = pair.law(2)
    assert len(law) == 16 and sum(law.values()) == pytest.approx(1)
    first = pair.target()
    row = first.open([])
    from draftproof.types import EMPTY_DRAFT

    logits = first.score([row], [0], [EMPTY_DRAFT])[0].logits[0].double().softmax(-1)
    for token in range(4):
        marginal = sum(chance for text, chance in law.items() if text[0] == token)
        assert marginal == pytest.approx(float(logits[token]), abs=1e-5)


def test_the_command_line_prints_a_certificate(few, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sample, "_systems", lambda: iter(few[:1]))
    files = ["--json", str(tmp_path / "s.json"), "--html", str(tmp_path / "s.html")]
    assert cli.main(["audit", "sample", "--tv", "0.4", *files]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("lossless within TV <= 0.")
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["laws"][0]["certified_tv"] == document["tv_bound"]
