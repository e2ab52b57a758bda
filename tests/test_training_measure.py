"""Held-out acceptance against what an engine really accepts and against slow counting."""

from __future__ import annotations

import pytest
import torch

import draftproof as dp
from draftproof.training.distill import DistillRecipe
from draftproof.training.evaluate import Acceptance, measure
from draftproof.training.losses import tv
from draftproof.training.medusa import MedusaRecipe
from training_runs import answers, batch_of, loaded, rounded, samples, teacher_of, tiny_target

DEPTH = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("measure") / "target")


def shaken(recipe, scale):
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in recipe.net.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=chance))
    rounded(recipe.net)
    return recipe


def test_on_greedy_text_it_is_what_chains_of_every_start_are_accepted(target):
    """Counted by hand: from each answer position, how many tokens in a row the drafter would have got right."""
    recipe = shaken(MedusaRecipe(loaded(target).model, None, num_heads=DEPTH), 0.02)
    given = answers(target, 0.0)
    lesson = teacher_of(recipe, target).lesson(batch_of(given))
    found = measure(recipe, [lesson], DEPTH, tv)
    said = {}
    for step, out in enumerate(recipe.steps(lesson, DEPTH)):
        said[step] = dict(zip(lesson.batch.rows(step).tolist(), recipe.logits(out.hidden, step).argmax(-1).tolist()))
    tokens = lesson.batch.tokens.flatten().tolist()
    hits, tries = [0] * DEPTH, [0] * DEPTH
    for start in lesson.batch.rows().tolist():
        for step in range(DEPTH):
            if start + step not in said[step]:
                break
            tries[step] += 1
            if said[step][start + step] != tokens[start + step + 1]:
                break
            hits[step] += 1
    assert found.greedy.conditional == pytest.approx([h / t for h, t in zip(hits, tries)])
    assert found.greedy.rounds == pytest.approx(tries) and hits[1] > 0
    assert found.num_tokens == tries[0] == len(lesson.law)
    own = [sum(1 for row, token in said[0].items() if token == tokens[row + 1]) / len(said[0])]
    assert [ranks[0] for ranks in found.ranks][:1] == pytest.approx(own)
    assert all(sum(ranks) <= 1 + 1e-6 for ranks in found.ranks)


def test_on_sampled_text_it_predicts_what_an_engine_accepts(tmp_path, target):
    """Both estimate the same rates; the engine's have standard errors below 0.02 at the first two positions, so a
    difference of 0.1 has a false-alarm probability below 1e-5."""
    recipe = shaken(DistillRecipe(loaded(target), None, layers=3, shares_embedding=True), 0.01)
    found = measure(recipe, [teacher_of(recipe, target).lesson(batch_of(answers(target, 1.0, 48, 40)))], DEPTH, tv)
    recipe.write(tmp_path / "draft", {})
    options = {"dtype": "float32", "weights": "dense", "draft_weights": "dense", "verifier": "token", "adaptive": False}
    engine = dp.load(str(target), f"model:{tmp_path / 'draft'}", max_draft=DEPTH, **options)
    params = dp.SamplingParams(max_new_tokens=60, ignore_eos=True, seed=1)
    results = engine.generate([list(s.ids[:6]) for s in samples(24)], params)
    accepted = [sum(r.stats.accepted_at[i] for r in results if len(r.stats.accepted_at) > i) for i in range(DEPTH)]
    rounds = sum(r.stats.num_rounds for r in results)
    rates = [now / before for now, before in zip(accepted, [rounds, *accepted])]
    assert 0.2 < rates[0] < 0.98
    assert found.sampled.conditional[:2] == pytest.approx(rates[:2], abs=0.1)


def test_a_draft_that_is_the_target_is_always_right(target):
    recipe = DistillRecipe(loaded(target), None, shares_embedding=True)
    lesson = teacher_of(recipe, target).lesson(batch_of(answers(target, 0.7)))
    found = measure(recipe, [lesson], DEPTH, tv)
    assert found.greedy.conditional == (1.0,) * DEPTH and found.greedy.length == 1 + DEPTH
    assert found.sampled.conditional == pytest.approx([1.0] * DEPTH, abs=1e-4)
    assert found.loss == pytest.approx(0, abs=1e-4)


def test_lengths_are_one_plus_the_marginal_rates():
    assert Acceptance((0.5, 0.5, 0.2), (1, 1, 1)).length == pytest.approx(1 + 0.5 + 0.25 + 0.05)


def test_kinds_of_text_are_told_apart(target):
    recipe = shaken(MedusaRecipe(loaded(target).model, None, num_heads=2), 0.02)
    teacher = teacher_of(recipe, target)
    given = samples(12)
    found = measure(recipe, [teacher.lesson(batch_of(given))], 2, tv)
    for name in ("kind 0", "kind 1"):
        alone = measure(recipe, [teacher.lesson(batch_of([s for s in given if s.category == name]))], 2, tv)
        assert found.by_category[name].conditional == pytest.approx(alone.greedy.conditional)
