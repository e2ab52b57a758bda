"""The loop: what a step learns, what it does with batches that teach nothing, and where it stops."""

from __future__ import annotations

import errno
import json
import math

import pytest
import torch

from draftproof.errors import OptionError, TrainingError
from draftproof.training import loop as loop_module
from draftproof.training.batch import Packing, collate
from draftproof.training.corpus import Sample
from draftproof.training.distill import DistillRecipe
from draftproof.training.eagle import EagleRecipe
from draftproof.training.loop import Loop
from draftproof.training.losses import divergence
from draftproof.training.medusa import MedusaRecipe
from draftproof.training.settings import Settings
from training_runs import FUSED, loaded, samples, settings, teacher_of, tiny_target

VOCAB = torch.arange(30, 140)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("loop") / "target")


def masked(sample: Sample) -> Sample:
    return Sample(sample.ids, (False,) * len(sample.ids), sample.category, sample.key)


def new_loop(target, folder, given, recipe=None, **changes) -> Loop:
    recipe = recipe or MedusaRecipe(loaded(target).model, VOCAB, num_heads=2)
    return Loop(recipe, teacher_of(recipe, target), given, samples(6, seed=9), settings(**changes), folder, {})


def gradient(loop: Loop) -> dict[str, torch.Tensor]:
    """Of the loop's first step, before it is cut."""
    state = {"step": 0, "tokens": 0, "supervised": 0, "skipped": 0}
    kept: dict[str, torch.Tensor] = {}

    def keep(*_: object) -> None:
        trained = {n: p for n, p in loop.recipe.net.named_parameters() if p.requires_grad}
        kept.update({n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in trained.items()})

    loop._update = keep  # type: ignore[method-assign]
    loop._step(state, {"teacher": 0.0, "tokens": 0})
    return kept


@pytest.mark.parametrize("loss", ["kl", "lk", "tv"])
@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle1"])
def test_a_steps_gradient_is_that_of_the_whole_loss_written_out(tmp_path, target, kind, loss):
    """The loop takes it a few rows at a time; here everything is one expression."""

    def recipe():
        if kind == "medusa":
            return MedusaRecipe(loaded(target).model, VOCAB, num_heads=3, shared_output=False)
        return EagleRecipe(loaded(target).model, VOCAB, version=1 if kind == "eagle1" else 3, layers=FUSED, noise=0.0)

    given = samples(20)
    loop = new_loop(target, tmp_path, given, recipe(), loss=loss, accumulate=3, clip=1e9)
    found = gradient(loop)
    own, teacher, law_loss = recipe(), teacher_of(recipe(), target), divergence(loss)
    packing = Packing(given, 48, 2, seed=0, epoch=0)
    batches = [packing[number] for number in range(3)]
    count = sum(len(batch.rows()) for batch in batches)
    total = torch.zeros(())
    for batch in batches:
        lesson = teacher.lesson(batch)
        for step, said in enumerate(own.steps(lesson, len(own.weights))):
            law = lesson.law_at(batch.rows(step))
            losses = own.ce_weight * law_loss(*law.pair(own.logits(said.hidden, step)))
            losses = losses if said.extra is None else losses + said.extra
            total = total + own.weights[step] * losses.sum() / (count * sum(own.weights))
    total.backward()
    for name, parameter in own.net.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_batches_may_be_cut_anyhow(tmp_path, target, monkeypatch):
    """H25: the mean is over supervised tokens, so four small batches are one large one."""
    given = samples(12)
    one = gradient(new_loop(target, tmp_path / "a", given, rows=8, clip=1e9))
    monkeypatch.setattr(loop_module, "_ROWS", 7)
    many = gradient(new_loop(target, tmp_path / "b", given, rows=1, accumulate=8, clip=1e9))
    for name in one:
        torch.testing.assert_close(one[name], many[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_batch_without_supervised_tokens_changes_nothing(tmp_path, target, precision):
    """H25: texts without an answer, an ordinary batch, the same again."""
    given = samples(4)
    loop = new_loop(target, tmp_path, given, precision=precision, weight_decay=0.1)
    blank, normal = (collate([[s]], 48) for s in (masked(given[0]), given[1]))
    batches = {0: (blank, [given[0]]), 1: (normal, [given[1]]), 2: (blank, [given[0]])}
    loop._batch = batches.__getitem__  # type: ignore[method-assign]
    loop._ends = [3]
    state = {"step": 0, "tokens": 0, "supervised": 0, "skipped": 0, "bad": 0, "loss": None, "lowest": None}
    weights = [[p.detach().clone() for p in loop.recipe.net.parameters()]]
    rows = []
    for _ in range(3):
        rows.append(loop._step(state, {"teacher": 0.0, "tokens": 0}))
        weights.append([p.detach().clone() for p in loop.recipe.net.parameters()])
    assert [row["skipped"] for row in rows] == [1, 1, 2]
    assert rows[0]["loss"] == rows[2]["loss"] == 0 and math.isfinite(rows[1]["loss"]) and rows[1]["loss"] > 0
    same = [all(map(torch.equal, weights[i], weights[i + 1])) for i in range(3)]
    assert same == [True, False, True]
    assert all(bool(weight.isfinite().all()) for weight in weights[-1])


def test_a_text_cut_before_its_answer_is_left_out(tmp_path, target):
    from draftproof.training.corpus import Corpus

    given = [*samples(10), Sample((7,) * 60, (False,) * 50 + (True,) * 10)]
    training, held_out = Corpus(tuple(given), {}, "").split(2, 48)
    assert len(training) + len(held_out) == 10 and all(s.num_answer for s in [*training, *held_out])
    with pytest.raises(TrainingError, match="none of the 1 texts has an answer within 48 tokens: raise --length"):
        Corpus((given[-1],), {}, "").split(0, 48)


def test_training_raises_acceptance_and_is_written_down(tmp_path, target):
    seen = []
    recipe = DistillRecipe(loaded(target), VOCAB, layers=2)
    given = samples(60)
    loop = Loop(
        recipe, teacher_of(recipe, target), given, samples(6, seed=9), settings(epochs=6, loss="kl"), tmp_path,
        {"target": "tiny"}, seen.append,
    )  # fmt: skip
    finished = loop.run()
    log = json.loads((tmp_path / "log.json").read_text())["rows"]
    measures = [row for row in log if "greedy_length" in row]
    assert measures[0]["step"] == 0 and measures[-1]["step"] == finished.steps == loop.num_steps
    assert measures[-1]["held_out_loss"] < 0.9 * measures[0]["held_out_loss"]
    assert max(row["greedy_length"] for row in measures) > measures[0]["greedy_length"] + 0.02
    best = max(measures, key=lambda row: row["greedy_length"])
    assert finished.best.name == f"best-{best['step']:08d}" and (finished.best / "config.json").exists()
    assert {path.name for path in tmp_path.glob("best-*")} == {finished.best.name}
    steps = [row for row in log if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, loop.num_steps + 1))
    assert (tmp_path / "log.csv").read_text().count("\n") == len(log) + 1
    assert steps[-1]["tokens"] == 6 * sum(len(s.ids) for s in given)
    assert seen[-1].measured is not None and any(where.tokens_per_second > 0 for where in seen)


def test_it_stops_when_measures_no_longer_improve(tmp_path, target):
    finished = new_loop(target, tmp_path, samples(), epochs=30, lr=1e-9, eval_every=2, patience=3).run()
    assert finished.steps == 6 and finished.reason == "no better measure in 3"


def test_gradients_that_are_not_finite_are_left_out_and_end_the_run_when_they_pile_up(tmp_path, target, monkeypatch):
    loop = new_loop(target, tmp_path, samples(), epochs=5, save_every=1)
    learn, calls = loop._learn, []

    def faulty(number, *rest):
        loss = learn(number, *rest)
        calls.append(number)
        if number in (2, 5, 6, 7):
            next(p for p in loop.recipe.net.parameters() if p.grad is not None).grad[0] = math.nan
        return loss

    monkeypatch.setattr(loop, "_learn", faulty)
    with pytest.raises(TrainingError, match=r"stopped at step 8: no finite gradient.*last good checkpoint.*lower --lr"):
        loop.run()
    assert calls == list(range(8))
    again = new_loop(target, tmp_path, samples(), epochs=5)
    state = again._checkpoints.load(again.recipe.net, again.optimizer)
    assert state is not None and state["step"] == 7 and state["skipped"] == 3
    assert all(bool(p.isfinite().all()) for p in again.recipe.net.parameters())


def test_a_loss_that_explodes_ends_the_run(tmp_path, target):
    loop = new_loop(target, tmp_path, samples(60), epochs=20, lr=30.0, warmup=0.0, clip=1e9, loss="kl", eval_every=1000)
    with pytest.raises(TrainingError, match=r"stopped at step \d+: (the loss rose to|no finite gradient)"):
        loop.run()
    assert list((tmp_path / "checkpoints").glob("step-*")) and list(tmp_path.glob("best-*"))


def test_a_full_disk_is_one_line_and_what_was_whole_stays(tmp_path, target, monkeypatch):
    loop = new_loop(target, tmp_path, samples(), epochs=5, save_every=2, eval_every=1000)
    import safetensors.torch

    save, calls = safetensors.torch.save_file, []

    def full(tensors, path, *rest):
        calls.append(path)
        if len(calls) > 4:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(tensors, path, *rest)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(TrainingError, match="no space left to write .*step-.*run the same command"):
        loop.run()
    monkeypatch.undo()
    assert not list((tmp_path / "checkpoints").glob("*.partial"))
    new_loop(target, tmp_path, samples(), epochs=5, save_every=2, eval_every=1000).run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 2}, "length must be a whole number of at least 4, not 2"),
        ({"lr": 0.0}, "lr must be a number above 0"),
        ({"warmup": 1.5}, "warmup must be a share from 0 to 1"),
        ({"loss": "l2"}, "unknown loss 'l2': use kl, rkl"),
        ({"precision": "fp8"}, "precision must be auto, bf16 or fp32"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
    ],
)
def test_settings_without_meaning_are_refused(changes, message):
    with pytest.raises(OptionError, match=message):
        Settings(**changes)
