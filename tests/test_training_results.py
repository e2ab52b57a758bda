"""What a run leaves: a folder that drafts, says what it is, and goes to other engines."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import draftproof as dp
from draftproof.cli import main
from draftproof.errors import ModelError, OptionError, TrainingError, VocabularyError
from draftproof.models.slim import is_slim, read_slim
from draftproof.nets.convert import read_head
from draftproof.nets.eagle_files import read_eagle
from draftproof.nets.medusa_files import read_medusa
from draftproof.training.distill import DistillRecipe
from draftproof.training.eagle import EagleRecipe
from draftproof.training.log import plot
from draftproof.training.medusa import MedusaRecipe
from draftproof.training.run import train
from training_runs import (
    FUSED,
    answers,
    batch_of,
    loaded,
    plan,
    rounded,
    samples,
    settings,
    teacher_of,
    tiny_target,
    write_corpus,
)

GREEDY = dp.SamplingParams(temperature=0, max_new_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("results") / "target")


@pytest.fixture(scope="module")
def data(tmp_path_factory, target):
    return write_corpus(tmp_path_factory.mktemp("results") / "data", target, answers(target, 0.0, 60, 30))


def texts(target, drafter, **options):
    fixed = {"dtype": "float32", "max_draft": 3, "draft_weights": "dense", "adaptive": False}
    engine = dp.load(str(target), drafter, **fixed, **options)
    results = engine.generate([list(s.ids[:6]) for s in samples(6, seed=8)], GREEDY)
    return [r.token_ids for r in results], sum(r.stats.num_accepted for r in results), engine


@pytest.fixture(scope="module")
def plain(target):
    return texts(target, "none")[0]


@pytest.mark.parametrize("kind", ["eagle", "eagle1", "medusa", "distill", "distill int8"])
def test_a_run_leaves_a_drafter_with_its_papers(tmp_path, target, data, plain, kind):
    changes = {
        "eagle1": {"options": {"version": 1}, "draft_vocab": None},
        "distill int8": {"options": {"layers": (0, 1, 3), "weights_format": "int8"}},
    }.get(kind, {})
    name = kind.removesuffix("1").removesuffix(" int8")
    result = train(plan(name, target, data, **changes), settings(epochs=3, lr=1e-2), tmp_path / "out")
    folder, manifest = tmp_path / "out", json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest == json.loads(json.dumps(result.manifest))
    spec = f"{manifest['drafter']}:{folder}"
    found, accepted, _ = texts(target, spec)
    assert found == plain and accepted > 0
    card = (folder / "README.md").read_text()
    assert f"--drafter {manifest['drafter']}:out" in card and "acceptance length" in card and "seed 0" in card
    assert f"{manifest['measured']['greedy']['acceptance_length']:.2f}" in card
    assert (folder / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    header = (folder / "log.csv").read_text().splitlines()[0]
    assert header.startswith("step,tokens,supervised,seconds,loss,lr,grad_norm")
    assert manifest["trained_weights"] > 0 and manifest["supervised"] > 0 and manifest["target"]["weights"]
    assert manifest["measured"]["greedy"]["conditional"] and manifest["before"]["greedy_length"] >= 1


def test_medusa_heads_come_with_the_tree_their_accuracies_ask_for(tmp_path, target, data, plain):
    options = {"num_heads": 3, "num_nodes": 10}
    train(plan("medusa", target, data, options=options), settings(epochs=2), tmp_path / "tree")
    choices = read_head(tmp_path / "tree").choices
    assert len(choices) == 10 and choices[0] == (0,) and max(map(len, choices)) <= 3
    train(plan("medusa", target, data, options={**options, "num_nodes": 0}), settings(epochs=2), tmp_path / "chain")
    assert read_head(tmp_path / "chain").choices == []
    assert texts(target, f"medusa:{tmp_path / 'tree'}")[0] == plain == texts(target, f"medusa:{tmp_path / 'chain'}")[0]


def test_heads_go_to_other_layouts_and_draft_the_same_there(tmp_path, target, data):
    train(plan("eagle", target, data), settings(epochs=1), tmp_path / "eagle")
    config = json.loads((tmp_path / "eagle" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["draft_vocab_size"] == 64
    assert config["eagle_aux_hidden_state_layer_ids"] == list(FUSED) and config["norm_before_residual"] is False
    tensors = load_file(tmp_path / "eagle" / "model.safetensors")
    ids = torch.arange(64) + tensors["d2t"]
    assert torch.equal(tensors["t2d"].nonzero().flatten(), ids) and tensors["lm_head.weight"].dtype == torch.bfloat16
    assert main(["convert", str(tmp_path / "eagle"), str(tmp_path / "original"), "--to", "original"]) == 0
    assert "midlayer.hidden_norm.weight" in load_file(tmp_path / "original" / "model.safetensors")
    accepted = [texts(target, f"eagle:{tmp_path / name}")[1] for name in ("eagle", "original")]
    assert accepted[0] == accepted[1]


@pytest.mark.parametrize("store", ["bf16", "int8"])
def test_a_slim_draft_says_what_the_trained_model_says(tmp_path, target, store):
    vocab = torch.arange(30, 140)
    recipe = DistillRecipe(loaded(target), vocab, layers=2, shares_embedding=True, weights_format=store)
    rounded(recipe.net)
    recipe.write(tmp_path / "draft", {})
    table = loaded(target).model.get_input_embeddings().weight
    model, ids = read_slim(tmp_path / "draft", table)
    assert ids.tolist() == vocab.tolist() and model.dtype == torch.bfloat16 and is_slim(tmp_path / "draft")
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    assert not any("embed_tokens" in name for name in stored)
    text = torch.tensor([samples(1)[0].ids])
    with torch.no_grad():
        found, own = model.float()(text).logits, recipe.net(text).logits
    assert found.shape == own.shape == (1, len(samples(1)[0].ids), len(vocab))
    scale = float(own.std())
    assert float((found - own).abs().max()) < (0.02 if store == "bf16" else 0.4) * scale
    if store == "int8":
        layers = {name: t for name, t in stored.items() if t.dtype == torch.int8}
        assert "lm_head.weight" in layers and all(f"{name}.scale" in stored for name in layers)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_h24_a_head_of_ours_proposes_the_same_after_it_was_saved(tmp_path, target, kind):
    vocab = torch.arange(30, 140)
    if kind == "eagle":
        recipe = EagleRecipe(loaded(target).model, vocab, layers=FUSED, num_steps=3)
    else:
        recipe = MedusaRecipe(loaded(target).model, vocab, num_heads=3)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in recipe.net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance) * 0.1)
    rounded(recipe.net)
    lesson = teacher_of(recipe, target).lesson(batch_of(samples(6)))

    def proposals():
        with torch.no_grad():
            return [recipe.logits(said.hidden, step) for step, said in enumerate(recipe.steps(lesson, 3))]

    before = proposals()
    recipe.write(tmp_path / "head", {})
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == ["config.json", "model.safetensors"]
    found = read_eagle(tmp_path / "head") if kind == "eagle" else read_medusa(tmp_path / "head")
    assert torch.equal(found.target_ids(), vocab)
    with torch.no_grad():
        for parameter in recipe.net.parameters():
            parameter.zero_()
    recipe.net.load_state_dict(found.net().float().state_dict(), strict=False)
    after = proposals()
    assert len(before) == 3 and all(torch.equal(a, b) and a.std() > 0.1 for a, b in zip(after, before))


def test_a_slim_draft_of_another_target_is_refused(tmp_path, target):
    recipe = DistillRecipe(loaded(target), torch.arange(30, 140), layers=2, shares_embedding=True)
    recipe.write(tmp_path / "draft", {})
    other = tiny_target(tmp_path / "other", hidden_size=32)
    with pytest.raises(VocabularyError, match=r"takes embeddings of shape \[259, 64\] from its target.*\[259, 32\]"):
        texts(other, f"model:{tmp_path / 'draft'}")
    with pytest.raises(ModelError, match="takes its embeddings from its target"):
        read_slim(tmp_path / "draft", None)
    with pytest.raises(OptionError, match="has its own vocabulary and layers"):
        texts(target, f"model:{tmp_path / 'draft'}", draft_vocab=10)
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    (tmp_path / "draft" / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(ModelError, match=r"tensor .*mlp.* must have shape \[64, 64\], found \[64, 128\]"):
        texts(target, f"model:{tmp_path / 'draft'}")


def test_a_distilled_draft_becomes_an_ordinary_model(tmp_path, target, capsys):
    vocab = torch.arange(30, 140)
    recipe = DistillRecipe(loaded(target), vocab, layers=2, shares_embedding=True)
    rounded(recipe.net)
    recipe.write(tmp_path / "draft", {})
    call = ["convert", str(tmp_path / "draft"), str(tmp_path / "plain"), "--to", "hf"]
    assert main(call) == 2 and "needs --target" in capsys.readouterr().err
    assert main([*call, "--target", str(target)]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    text = torch.tensor([samples(1)[0].ids])
    with torch.no_grad():
        whole, own = model(text).logits, recipe.net(text).logits
    torch.testing.assert_close(whole[..., vocab], own, rtol=2e-2, atol=2e-2)
    others = torch.ones(259, dtype=torch.bool)
    others[vocab] = False
    assert not whole[..., others].any()
    assert texts(target, f"model:{tmp_path / 'plain'}")[1] > 0


def test_another_models_draft_keeps_its_own_embeddings(tmp_path, target, data, plain):
    small = tiny_target(tmp_path / "small", seed=5, hidden_size=32)
    result = train(plan("distill", target, data, draft=str(small)), settings(epochs=1), tmp_path / "out")
    assert "model.embed_tokens.weight" in load_file(tmp_path / "out" / "model.safetensors")
    assert (tmp_path / "out" / "tokenizer.json").exists() and result.manifest["drafter"] == "model"
    assert texts(target, f"model:{tmp_path / 'out'}")[0] == plain


def test_targets_and_options_without_a_head_are_refused(target):
    model = loaded(target).model
    for options, said in (
        ({"layers": (0, 2, 9)}, "fused layers must ascend from 0 to 3"),
        ({"layers": (2, 1)}, "fused layers must ascend"),
        ({"version": 2}, "version must be 1 or 3"),
    ):
        with pytest.raises(OptionError, match=said):
            EagleRecipe(model, None, **options)
    with pytest.raises(OptionError, match="the layers to keep must ascend from 0 to"):
        DistillRecipe(loaded(target), None, layers=(1, 0))


def test_a_curve_needs_no_more_than_the_log(tmp_path):
    rows = [
        {"step": 0, "tokens": 0, "greedy_length": 1.1, "sampled_length": 1.2, "held_out_loss": 1.0, "greedy_1": 0.1}
    ]
    rows += [{"step": i, "tokens": 100 * i, "loss": 1 / i} for i in range(1, 5)]
    assert plot(rows, tmp_path / "curve.png", "title") and (tmp_path / "curve.png").stat().st_size > 1000


def test_the_command_line_trains_and_says_how_to_use_it(tmp_path, target, data, capsys):
    call = ["train", "eagle", str(tmp_path / "out"), "-t", str(target), "--data", str(data), "--dtype", "float32"]
    call += ["--length", "48", "--rows", "2", "--held-out", "6", "--draft-vocab", "64", "--clean"]
    call += [
        "--fuse",
        "0,2,3",
        "--unroll",
        "2",
        "--max-steps",
        "4",
        "--post-norm",
        "--json",
        str(tmp_path / "doc.json"),
    ]
    assert main(call) == 0
    out = capsys.readouterr()
    assert f"--drafter eagle:{tmp_path / 'out'}" in out.out
    assert "supervised; 6 held out" in out.err and "draft tokens" in out.err and "tokens/s" in out.err
    manifest = json.loads((tmp_path / "doc.json").read_text())["manifest"]
    assert manifest["begun_with"]["options"]["post_norm"] is True and manifest["steps"] == 4
    assert not list((tmp_path / "out").glob("best-*")) and not (tmp_path / "out" / "checkpoints").exists()
    assert main(call) == 2 and "holds a finished drafter" in capsys.readouterr().err
    assert texts(target, f"eagle:{tmp_path / 'out'}")[0] == texts(target, "none")[0]


@pytest.mark.parametrize("kind", ["eagle", "medusa", "distill"])
def test_a_drafter_can_be_gone_on_from(tmp_path, target, data, kind):
    """Also with texts whose most frequent tokens are others: its output rows stay those of its own tokens."""
    first, second, others = tmp_path / "first", tmp_path / "second", tmp_path / "others"
    train(plan(kind, target, data), settings(max_steps=6, eval_every=6), first)
    write_corpus(others, target, samples(seed=9))
    fresh, same = (
        train(plan(kind, target, where, start_from=first, draft_vocab=None), settings(max_steps=2), second / where.name)
        for where in (others, data)
    )
    begun = [result.manifest["begun_with"]["draft_vocab"] for result in (fresh, same)]
    assert begun[0] == begun[1] and begun[0][0] == 64
    log = json.loads((first / "log.json").read_text())["rows"]
    best = min((row for row in log if "greedy_length" in row), key=lambda row: -row["greedy_length"])
    assert same.manifest["before"]["held_out_loss"] == pytest.approx(best["held_out_loss"], rel=0.02)  # bfloat16
    with pytest.raises(TrainingError, match="holds no drafter to start from"):
        train(plan(kind, target, data, start_from=tmp_path / "none"), settings(max_steps=1), tmp_path / "third")
    with pytest.raises(OptionError, match="drafts 64 tokens: leave --draft-vocab out"):
        train(plan(kind, target, data, start_from=first, draft_vocab=65), settings(max_steps=1), tmp_path / "third")


def test_a_drafter_of_another_make_is_not_gone_on_from(tmp_path, target, data):
    first = tmp_path / "first"
    train(plan("eagle", target, data), settings(max_steps=1), first)
    normed = plan("eagle", target, data, start_from=first, draft_vocab=None)
    normed = replace(normed, options={**normed.options, "post_norm": True})
    with pytest.raises(TrainingError, match=r"has norm_output = False, this run True: give the same"):
        train(normed, settings(max_steps=1), tmp_path / "second")
    train(plan("medusa", target, data), settings(max_steps=1), tmp_path / "heads")
    more = plan("medusa", target, data, start_from=tmp_path / "heads", draft_vocab=None)
    with pytest.raises(TrainingError, match=r"holds another network: blocks.3.*no such tensor there"):
        train(replace(more, options={"num_heads": 4}), settings(max_steps=1), tmp_path / "third")
    with pytest.raises(ModelError):
        train(plan("eagle", target, data, start_from=tmp_path / "heads"), settings(max_steps=1), tmp_path / "third")
