"""Draft heads on disk: both ways between layouts without losing a bit, and nothing loaded that is not understood."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import load_file

from draftproof.cli import main
from draftproof.errors import ModelError
from draftproof.nets.convert import convert, read_head
from draftproof.nets.eagle_files import read_eagle
from draftproof.nets.medusa_files import read_medusa
from heads import DRAFT_IDS, H, V, eagle1, eagle3, medusa, save

SPECULATORS = {
    "norm_before_residual": True,
    "norm_output": True,
    "fc_norm": True,
    "norm_before_fc": False,
    "target_hidden_size": H,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4],
}
ORIGINALS = {
    "eagle1": (lambda: eagle1(1), "original", None),
    "eagle1 with bias": (lambda: eagle1(1, layers=2, bias=True), "original", None),
    "eagle3": (lambda: eagle3("original", 2), "original", "speculators"),
    "eagle3, whole vocabulary": (lambda: eagle3("original", 3, reduced=False), "original", "speculators"),
    "eagle3 speculators": (lambda: eagle3("speculators", 4, embed=True, **SPECULATORS), "speculators", "original"),
    "eagle3 qwen3": (lambda: eagle3("speculators", 5, qwen3=True, **SPECULATORS), "speculators", "original"),
    "medusa": (lambda: medusa("original", 6), "original", "vllm"),
    "medusa, 2 blocks": (lambda: medusa("original", 7, blocks=2), "original", "vllm"),
    "medusa vllm": (lambda: medusa("vllm", 8), "vllm", "original"),
}


def stored(folder) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ORIGINALS)
def test_a_round_trip_keeps_every_bit_and_key(tmp_path, kind, dtype):
    make, layout, other = ORIGINALS[kind]
    config, tensors = make()
    tensors = {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
    source = save(tmp_path / "source", (config, tensors))
    convert(source, tmp_path / "copy", layout)
    assert same(stored(tmp_path / "copy"), tensors)
    assert json.loads((tmp_path / "copy" / "config.json").read_text()) == config
    if other is None:
        return
    convert(source, tmp_path / "other", other, target="some/model")
    assert len(stored(tmp_path / "other")) == len(tensors)
    convert(tmp_path / "other", tmp_path / "back", layout)
    assert same(stored(tmp_path / "back"), tensors)
    assert read_head(tmp_path / "other").config == read_head(source).config == read_head(tmp_path / "back").config
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_the_speculators_layout_has_the_names_of_its_table_and_states_its_norms(tmp_path):
    source = save(tmp_path / "source", eagle3("original", 1))
    convert(source, tmp_path / "out", "speculators", target="org/model")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tensors = stored(tmp_path / "out")
    expected = eagle3("speculators", 1)[1]
    assert {name: t.shape for name, t in tensors.items()} == {name: t.shape for name, t in expected.items()}
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert config["norm_before_residual"] is False and config["draft_vocab_size"] == len(DRAFT_IDS)
    assert config["architectures"] == ["Eagle3Speculator"] and config["speculators_model_type"] == "eagle3"
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert config["transformer_layer_config"]["vocab_size"] == V
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/model"


def changed(made, **tensors):
    """The checkpoint with some tensors replaced, or (None) left out."""
    config, given = made
    given = {**given, **tensors}
    return config, {name: t for name, t in given.items() if t is not None}


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


WRONG = {
    "unknown": (changed(eagle3("original"), **{"midlayer.extra.weight": zeros(3)}), r"unknown tensors .*extra\.weight"),
    "bias": (changed(eagle3("original"), **{"fc.bias": zeros(H)}), r"unknown tensors fc\.bias"),
    "missing": (changed(eagle3("original"), **{"norm.weight": None}), r"missing tensors norm\.weight"),
    "fc": (changed(eagle3("original"), **{"fc.weight": zeros(H, 3 * 32)}), r"fc\.weight must have .*\[64, 192\].*96"),
    "no d2t": (changed(eagle3("original"), d2t=None), "missing tensor d2t"),
    "d2t": (changed(eagle3("original"), d2t=torch.arange(len(DRAFT_IDS))), "t2d must be true"),
    "d2t size": (changed(eagle3("original"), d2t=torch.arange(3)), r"d2t must have shape \[40\], found \[3\]"),
    "t2d": (changed(eagle3("original"), t2d=torch.zeros(V, dtype=torch.bool)), "t2d must be true for exactly"),
    "ids, not offsets": (changed(eagle3("original"), d2t=torch.tensor(DRAFT_IDS)), "d2t must give"),
    "eagle1 missing": (changed(eagle1(bias=True), **{"fc.bias": None}), r"missing tensors fc\.bias"),
    "eagle1 norm": (changed(eagle1(), **{"layers.0.input_layernorm.weight": zeros(H)}), "unknown tensors layers.0.inp"),
    "eagle1 embed": (changed(eagle1(), **{"embed_tokens.weight": None}), r"missing tensors embed_tokens\.weight"),
    "act": (({**eagle3("original")[0], "hidden_act": "gelu"}, eagle3("original")[1]), "hidden_act must be silu"),
    "kind": (({**eagle3("original")[0], "model_type": "phi"}, eagle3("original")[1]), "type 'phi'"),
    "key": (({**eagle3("original")[0], "hidden_size": None}, eagle3("original")[1]), "key hidden_size must be"),
    "peagle": (
        ({**eagle3("speculators")[0], "speculators_model_type": "peagle"}, eagle3("speculators")[1]),
        "must be eagle3, not 'peagle'",
    ),
    "both norms": (eagle3("speculators", norm_before_fc=True, fc_norm=True), "exclude each other"),
    "layers": (eagle3("speculators", eagle_aux_hidden_state_layer_ids=[1, 1]), "names a layer twice"),
    "medusa unknown": (changed(medusa(), **{"0.7.weight": zeros(V, H)}), r"unknown tensors 0\.7\.weight"),
    "medusa missing": (changed(medusa(), **{"1.0.linear.bias": None}), r"missing tensors blocks\.1\.layers\.0\.bias"),
    "medusa shape": (changed(medusa(), **{"2.1.weight": zeros(V, 32)}), r"lm_heads\.2\.weight must have .*\[128, 64\]"),
    "no medusa": ((medusa()[0], {"x": zeros(1)}), "holds no Medusa heads"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_an_error_that_names_it(tmp_path, kind):
    made, message = WRONG[kind]
    folder = save(tmp_path / "head", made)
    with pytest.raises(ModelError, match=message) as raised:
        read_head(folder)
    assert "\n" not in str(raised.value)


def test_h24_fc_bias_is_kept_without_attention_biases(tmp_path):
    made = eagle1(bias=True)
    net = read_eagle(save(tmp_path / "head", made)).net()
    assert torch.equal(net.fc.bias, made[1]["fc.bias"])
    assert net.layers[0].self_attn.q_proj.bias is None


@pytest.mark.parametrize("stated", [1, 5, None])
def test_h24_medusa_heads_are_counted_from_the_tensors_and_a_wrong_count_is_said(tmp_path, caplog, stated):
    config, tensors = medusa("original", heads=3)
    config = {**config, "medusa_num_heads": stated} if stated else {"medusa_num_layers": 1}
    with caplog.at_level(logging.WARNING, "draftproof"):
        head = read_medusa(save(tmp_path / "head", (config, tensors)))
    assert head.config.num_heads == 3 and "the tensors hold 3" in caplog.text


def test_an_unstated_residual_norm_is_speculators_own_default_and_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "draftproof"):
        head = read_eagle(save(tmp_path / "head", eagle3("speculators")))
    assert head.config.norm_before_residual is False and "norm_before_residual" in caplog.text


def test_vllms_shared_output_layer_and_token_map(tmp_path):
    config, tensors = medusa("vllm", heads=3)
    shared = {name: t for name, t in tensors.items() if not name.startswith("lm_heads")}
    ids = torch.tensor(DRAFT_IDS)
    shared |= {"lm_head.weight": tensors["lm_heads.0.weight"][ids].clone(), "token_map": ids}
    config = {**config, "original_lm_head": True, "truncated_vocab_size": len(ids)}
    head = read_medusa(save(tmp_path / "head", (config, shared)))
    assert head.config.num_outputs == len(ids) and head.config.vocab_size == V
    states = torch.randn(2, H, generator=torch.Generator().manual_seed(0))
    for logits, block in zip(head.net()(states), head.net().blocks, strict=True):
        torch.testing.assert_close(logits, block(states) @ shared["lm_head.weight"].T)
    convert(tmp_path / "head", tmp_path / "copy", "vllm")
    assert same(stored(tmp_path / "copy"), shared)
    with pytest.raises(ModelError, match="no token map"):
        convert(tmp_path / "head", tmp_path / "original", "original")
    assert not (tmp_path / "original").exists()


class Bomb:
    """Creates a marker file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (type(self.marker).touch, (self.marker,))


@pytest.mark.parametrize(
    ("make", "name"), [(medusa, "medusa_lm_head.pt"), (lambda: eagle3("original"), "pytorch_model.bin")]
)
def test_h29_pickle_files_need_permission_and_hold_tensors_only(tmp_path, make, name):
    config, tensors = make()
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / name)
    with pytest.raises(ModelError, match="--allow-pickle"):
        read_head(folder)
    head = read_head(folder, allow_pickle=True)
    assert len(head.tensors) == len(tensors)
    marker = tmp_path / "marker"
    torch.save({**tensors, "bomb": Bomb(marker)}, folder / name)
    for allow_pickle in (False, True):
        with pytest.raises(ModelError, match="safetensors"):
            read_head(folder, allow_pickle=allow_pickle)
    assert not marker.exists()


def test_the_command_writes_a_folder_once_and_complains_in_one_line(tmp_path, capsys):
    source = save(tmp_path / "source", eagle3("original"))
    command = ["convert", str(source), str(tmp_path / "out"), "--to", "speculators", "--target", "org/model"]
    assert main(command) == 0
    assert "layout speculators" in capsys.readouterr().out
    for arguments, message in (
        (command, "is there already"),
        ([*command[:2], str(tmp_path / "new"), "--to", "gguf"], "unknown layout 'gguf'"),
        ([*command[:2], str(tmp_path / "new"), "--to", "vllm"], "for an EAGLE head"),
        (["convert", str(tmp_path), str(tmp_path / "new"), "--to", "original"], "expected a folder with config.json"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()
