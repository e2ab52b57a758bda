"""What a recipe says in training is what its drafter says when it drafts: text by text, step by step."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from draftproof.training.batch import Packing
from draftproof.training.corpus import Sample
from draftproof.training.distill import DistillRecipe
from draftproof.training.eagle import EagleRecipe
from draftproof.training.losses import whole_law
from draftproof.training.medusa import MedusaRecipe
from heads import eagle_logits, medusa_logits
from training_runs import FUSED, batch_of, loaded, rounded, samples, teacher_of, tiny_target

VOCAB = torch.arange(30, 140)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("recipes") / "target")


def made(folder, recipe):
    """The written head as the tests' own reference reads it."""
    rounded(recipe.net)
    recipe.write(folder, {"target": "tiny"})
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: t.float() for name, t in load_file(folder / "model.safetensors").items()}
    return {**config.get("transformer_layer_config", {}), **config}, tensors


def shaken(net, seed=1):
    """Weights away from where they begin, so that every part matters."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=chance))


def test_each_text_lies_in_one_row_of_each_epoch_and_the_order_is_the_seeds():
    given = samples(60)
    for epoch in range(2):
        packing = Packing(given, 48, 3, seed=5, epoch=epoch)
        seen = [number for batch in range(len(packing)) for number in packing.members(batch)]
        assert sorted(seen) == list(range(60))
        for number in range(len(packing)):
            batch = packing[number]
            texts = [given[i] for i in packing.members(number)]
            assert len(batch.texts()) == len(texts)
            for (row, start, end), text in zip(batch.texts(), texts):
                assert batch.tokens[row, start:end].tolist() == list(text.ids)
                assert batch.answer[row, start:end].tolist() == list(text.answer)
                assert batch.positions[row, start:end].tolist() == list(range(len(text.ids)))
    same = Packing(given, 48, 3, seed=5, epoch=0)
    assert same.batches == Packing(given, 48, 3, seed=5, epoch=0).batches
    assert same.batches != Packing(given, 48, 3, seed=6, epoch=0).batches != packing.batches
    filled = sum(len(s.ids) for s in given) / (48 * sum(len(batch) for batch in packing.batches))
    assert filled > 0.85  # packing is worth its trouble


def test_supervised_rows_are_those_whose_round_began_in_the_same_answer():
    batch = batch_of(samples(5))
    length = batch.tokens.shape[1]
    for step in range(4):
        expected = []
        for row, start, end in batch.texts():
            for at in range(start, end - 1):
                began = at - step
                if began > start and batch.answer[row, at + 1] and batch.answer[row, began + 1]:
                    expected.append(row * length + at)
        assert batch.rows(step).tolist() == expected


def test_a_lesson_is_what_the_target_says_of_each_text_alone(target):
    recipe = EagleRecipe(loaded(target).model, VOCAB, layers=FUSED)
    teacher = teacher_of(recipe, target)
    given = samples(5)
    batch = batch_of(given)
    lesson = teacher.lesson(batch)
    model, length = loaded(target).model, batch.tokens.shape[1]
    at = 0
    for row, start, end in batch.texts():
        ids = batch.tokens[row, start:end]
        with torch.no_grad():
            output = model(ids[None], output_hidden_states=True)
        states = torch.cat([output.hidden_states[layer][0] for layer in FUSED], -1)
        mine = slice(row * length + start, row * length + end)
        torch.testing.assert_close(lesson.states[mine], states, rtol=1e-4, atol=1e-4)
        rows = batch.rows() - mine.start
        rows = rows[(rows >= 0) & (rows < end - start)]
        law = whole_law(output.logits[0][rows], ids[rows + 1], VOCAB)
        own = slice(at, at + len(rows))
        torch.testing.assert_close(lesson.law.p[own], law.p, rtol=1e-4, atol=1e-5)
        assert lesson.law.said[own].tolist() == law.said.tolist() and lesson.law.best[own].tolist() == law.best.tolist()
        at += len(rows)
    assert at == len(lesson.law)
    numbers = teacher.lesson(batch).law_at(batch.rows(2))
    torch.testing.assert_close(numbers.p, lesson.law.p[torch.isin(batch.rows(), batch.rows(2))])


@pytest.mark.parametrize("kind", ["eagle3", "post-norm", "eagle1"])
def test_unrolled_eagle_steps_are_what_it_drafts_over_its_own_results(tmp_path, target, kind):
    """The reference recomputes the whole prefix for every token, without a cache or a mask."""
    version = 1 if kind == "eagle1" else 3
    recipe = EagleRecipe(
        loaded(target).model, VOCAB, version=version, layers=FUSED, post_norm=kind == "post-norm", num_steps=4
    )
    shaken(recipe.net)
    written, model = made(tmp_path / "head", recipe), loaded(target).model
    given = [Sample(s.ids[:14], s.answer[:14]) for s in samples(4)]
    batch = batch_of(given)
    lesson, length = teacher_of(recipe, target).lesson(batch), batch.tokens.shape[1]
    texts = batch.texts()
    checked = 0
    for step, said in enumerate(recipe.steps(lesson, 4)):
        logits = recipe.logits(said.hidden, step)
        for flat, found in list(zip(batch.rows(step).tolist(), logits))[:: 2 + step]:
            row, at = divmod(flat, length)
            start = next(start for r, start, end in texts if r == row and start <= at < end)
            ids = batch.tokens[row, start : at + 1].tolist()
            text, guesses = ids[: len(ids) - step], ids[len(ids) - step :]
            expected = eagle_logits(written, model, text, guesses)
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-4 * float(expected.abs().max()))
            checked += 1
    assert checked > 20


def test_eagle_1_also_learns_the_feature_itself(target):
    recipe = EagleRecipe(loaded(target).model, None, version=1, noise=0.1)
    batch = batch_of(samples(4))
    lesson = teacher_of(recipe, target).lesson(batch)
    plain, again = (next(recipe.steps(lesson, 1)) for _ in range(2))
    noisy, other = (next(recipe.steps(lesson, 1, seed=seed)) for seed in (1, 2))
    assert torch.equal(plain.hidden, again.hidden) and not torch.equal(noisy.hidden, other.hidden)
    assert torch.equal(noisy.hidden, next(recipe.steps(lesson, 1, seed=1)).hidden)
    wanted = lesson.states[batch.rows()]
    torch.testing.assert_close(
        plain.extra, torch.nn.functional.smooth_l1_loss(plain.hidden, wanted, reduction="none").mean(-1)
    )
    assert not recipe.net.embed_tokens.weight.requires_grad


def test_low_memory_gives_the_same_gradient(target):
    gradients = []
    for low_memory in (False, True):
        recipe = EagleRecipe(loaded(target).model, VOCAB, layers=FUSED, low_memory=low_memory)
        lesson = teacher_of(recipe, target).lesson(batch_of(samples(4)))
        sum(step.hidden.sum() for step in recipe.steps(lesson, 3)).backward()
        gradients.append({name: p.grad for name, p in recipe.net.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


@pytest.mark.parametrize("shared", [False, True])
def test_medusa_heads_speak_of_the_tokens_they_draft(tmp_path, target, shared):
    recipe = MedusaRecipe(loaded(target).model, None, num_heads=3, shared_output=shared)
    shaken(recipe.net)
    config, tensors = made(tmp_path / "head", recipe)
    if shared:
        tensors |= {f"lm_heads.{head}.weight": tensors["lm_head.weight"] for head in range(3)}
    model = loaded(target).model
    batch = batch_of(samples(4))
    lesson, length = teacher_of(recipe, target).lesson(batch), batch.tokens.shape[1]
    for head, said in enumerate(recipe.steps(lesson, 3)):
        logits = recipe.logits(said.hidden, head)
        for flat, found in list(zip(batch.rows(head).tolist(), logits))[::5]:
            row, at = divmod(flat, length)
            start = next(start for r, start, end in batch.texts() if r == row and start <= at < end)
            text = batch.tokens[row, start : at + 1 - head].tolist()
            torch.testing.assert_close(found, medusa_logits((config, tensors), model, text, head), rtol=2e-4, atol=2e-4)


def test_new_medusa_heads_are_the_output_layer_and_can_learn(target):
    recipe = MedusaRecipe(loaded(target).model, VOCAB, num_heads=2)
    lesson = teacher_of(recipe, target).lesson(batch_of(samples(4)))
    said = next(recipe.steps(lesson, 1))
    logits = recipe.logits(said.hidden, 0)
    output = loaded(target).model.get_output_embeddings().weight[VOCAB]
    torch.testing.assert_close(logits, lesson.states[lesson.batch.rows() - 1] @ output.T, rtol=1e-4, atol=1e-4)
    logits.logsumexp(-1).sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for name, p in recipe.net.named_parameters() if "blocks.0" in name)


def test_a_draft_writes_answers_of_its_own_from_its_own_law(target):
    """1000 draws of one token against its law: a cell's standard error is below 0.016, so 0.1 is above six of them
    (false-alarm probability below 1e-8 for the five cells)."""
    recipe = DistillRecipe(loaded(target), VOCAB, layers=2)
    given = [Sample((40, 41, 42, 43, 44), (False,) * 4 + (True,))] * 1000
    found = recipe.rollout(given, 1)
    assert all(s.ids[:4] == (40, 41, 42, 43) and s.answer == given[0].answer for s in found)
    with torch.no_grad():
        law = recipe.net(torch.tensor([[40, 41, 42, 43]])).logits[0, -1].softmax(-1)
    drawn = torch.tensor([s.ids[4] for s in found])
    for place in law.topk(5).indices.tolist():
        assert float((drawn == VOCAB[place]).float().mean()) == pytest.approx(float(law[place]), abs=0.1)
    longer = samples(6)
    again, same = recipe.rollout(longer, 2), recipe.rollout(longer, 2)
    assert again == same != recipe.rollout(longer, 3)
    for before, after in zip(longer, again):
        first = before.answer.index(True)
        first = first if first >= 4 else len(before.ids) // 4
        assert after.ids[:first] == before.ids[:first] and len(after.ids) <= len(before.ids)
        assert set(after.ids[first:]) <= set(VOCAB.tolist()) and after.num_answer == len(after.ids) - first


def test_a_distilled_draft_reads_packed_texts_as_if_alone(target):
    recipe = DistillRecipe(loaded(target), VOCAB, layers=(0, 1, 3), shares_embedding=True)
    batch = batch_of(samples(5))
    lesson = teacher_of(recipe, target).lesson(batch)
    said = next(recipe.steps(lesson, 1))
    logits = recipe.logits(said.hidden, 0)
    length = batch.tokens.shape[1]
    for row, start, end in batch.texts():
        with torch.no_grad():
            alone = recipe.net(batch.tokens[row, start:end][None], use_cache=False).logits[0]
        rows = batch.rows()
        mine = (rows >= row * length + start) & (rows < row * length + end)
        torch.testing.assert_close(logits[mine], alone[rows[mine] - row * length - start], rtol=1e-4, atol=1e-4)
    trained = {name for name, p in recipe.net.named_parameters() if p.requires_grad}
    assert "model.embed_tokens.weight" not in trained and "lm_head.weight" in trained
    assert recipe.net.config.num_hidden_layers == 3
