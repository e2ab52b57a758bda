"""Loading model folders: what comes out, one clear line for everything that is wrong, and what cannot be rewound."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from draftproof.errors import DraftproofError, ModelError, OptionError
from draftproof.models import hf
from draftproof.models.hf import check_rewindable, layer_types, load_model, sliding_window
from tiny import TEXT_VOCAB, save_tiny, tiny_llama, tiny_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("source") / "model", tiny_llama(0, vocab_size=TEXT_VOCAB))


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source, tmp_path / "model")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder: Path | str, **options: Any) -> str:
    with pytest.raises(ModelError) as raised:
        load_model(folder, **options)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 500
    return message


def test_a_folder_loads_with_its_own_dtype_tokenizer_and_limits(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = load_model(str(folder))
    out, err = capfd.readouterr()
    assert out == "" and err == "", "no progress bars, no warnings"
    assert torch.equal(loaded.model.lm_head.weight.cpu(), tiny_llama(0, vocab_size=TEXT_VOCAB).lm_head.weight)
    assert loaded.model.dtype == torch.float32 and not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.tokenizer is not None and loaded.tokenizer.decode(loaded.tokenizer("Hé llo")["input_ids"]) == "Hé llo"
    assert "<|assistant|>" in loaded.tokenizer.chat_template
    assert loaded.eos_token_ids == (256,), "from the tokenizer; config and generation config name none"
    assert (loaded.max_length, loaded.vocab_size, loaded.name) == (256, TEXT_VOCAB, str(folder))


def test_end_of_text_ids_are_the_union_of_all_places(folder: Path) -> None:
    edit_config(folder, eos_token_id=7)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load_model(folder).eos_token_ids == (7, 9, 256)


def test_dtype_and_device_can_be_chosen(folder: Path) -> None:
    assert load_model(folder, dtype="bfloat16", device="cpu").model.dtype == torch.bfloat16
    assert load_model(folder, dtype=torch.float16, device="cpu").model.dtype == torch.float16
    for wrong in ({"dtype": "int8"}, {"dtype": "nonsense"}, {"device": "toaster"}):
        with pytest.raises(OptionError):
            load_model(folder, **wrong)  # type: ignore[arg-type]


def test_a_tokenizer_is_optional(tmp_path: Path) -> None:
    assert load_model(save_tiny(tmp_path / "m", tiny_llama(0), tokenizer=False)).tokenizer is None


def test_a_config_without_a_length_has_no_limit() -> None:
    assert hf.max_length(transformers.BloomConfig(hidden_size=64, n_layer=1, n_head=2)) == hf.NO_LIMIT


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty folder": (lambda f: (shutil.rmtree(f), f.mkdir()), "it is empty"),
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "broken config": (lambda f: (f / "config.json").write_text('{"model_type": "lla'), "not readable JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object"),
    "config of no known type": (lambda f: edit_config(f, model_type="no-such-type"), "no-such-type"),
    "impossible config": (lambda f: edit_config(f, hidden_size="many"), "hidden_size"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "weights cannot be loaded"),
    "adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "adapter"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer cannot be loaded"),
    "other shapes": (lambda f: edit_config(f, intermediate_size=96), "of shape"),
    "one layer missing": (lambda f: edit_config(f, num_hidden_layers=3), "model.layers.2"),
    "one layer too many": (lambda f: edit_config(f, num_hidden_layers=1), "model.layers.1"),
    "encoder-decoder": (lambda f: edit_config(f, model_type="t5"), "encoder-decoder"),
    "encoder": (lambda f: edit_config(f, model_type="bert"), "causal"),
    "vision": (lambda f: edit_config(f, model_type="vit"), "causal"),
    "missing tensor": (lambda f: edit_weights(f, lambda w: w.pop("model.norm.weight")), "model.norm.weight"),
    "ignored bias": (
        lambda f: edit_weights(f, lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)})),
        "q_proj.bias",
    ),
    "missing shard": (
        lambda f: (
            (f / "model.safetensors").unlink(),
            (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
            ),
        ),
        "model-00001-of-00002.safetensors",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_one_clear_line(folder: Path, damage: str) -> None:
    act, expected = DAMAGES[damage]
    act(folder)
    assert expected in refusal(folder)


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.99])
def test_cut_off_safetensors_are_refused(folder: Path, kept: float) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert "weights cannot be loaded" in refusal(folder)


def test_weights_of_parts_the_model_does_not_have_change_nothing(folder: Path) -> None:
    edit_weights(folder, lambda w: w.update({"mtp.layers.0.weight": torch.ones(2), "medusa.0.bias": torch.ones(2)}))
    load_model(folder)


def test_names_that_are_nothing_are_refused_with_what_was_expected(tmp_path: Path) -> None:
    for name in ("no-such-model", "./nothing", str(tmp_path / "absent"), str(tmp_path / "absent.gguf")):
        assert "expected a model folder" in refusal(name)
    file = tmp_path / "notes.txt"
    file.write_text("x")
    assert "expected a model folder or a .gguf file" in refusal(str(file))


def test_a_hub_name_without_a_connection_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("draftproof.models.sources.hub_reachable", lambda: False)
    with pytest.raises(DraftproofError) as raised:
        load_model("no-such-org/no-such-model")
    assert "hub" in str(raised.value) and "\n" not in str(raised.value)


SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 1}
FULL, SLIDING = "full_attention", "sliding_attention"
NAMED = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}

REWINDABLE: dict[str, tuple[str, dict[str, Any], list[str], int | None]] = {
    "llama": ("LlamaConfig", GROUPED, [FULL, FULL], None),
    "qwen2": ("Qwen2Config", GROUPED, [FULL, FULL], None),
    "qwen2 sliding": (
        "Qwen2Config",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        [FULL, SLIDING],
        8,
    ),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 16}, [FULL, FULL], None),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": 8}, [SLIDING, SLIDING], 8),
    "gemma2": ("Gemma2Config", {**GROUPED, "head_dim": 16, "sliding_window": 8}, [SLIDING, FULL], 8),
    "gemma3": (
        "Gemma3TextConfig",
        {**GROUPED, "head_dim": 16, "sliding_window": 8, "layer_types": [SLIDING, FULL]},
        [SLIDING, FULL],
        8,
    ),
    "phi3": ("Phi3Config", {**GROUPED, "pad_token_id": 0}, [FULL, FULL], None),
    "gpt2": ("GPT2Config", NAMED, [FULL, FULL], None),
    "gptneox": ("GPTNeoXConfig", SMALL, [FULL, FULL], None),
    "opt": (
        "OPTConfig",
        {"vocab_size": 64, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 32}
        | {"num_hidden_layers": 2, "num_attention_heads": 2},
        [FULL, FULL],
        None,
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba": ("MambaConfig", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}, "linear_attention"),
    "rwkv": ("RwkvConfig", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}, "recurrent state"),
    "jamba": (
        "JambaConfig",
        {**GROUPED, "attn_layer_offset": 1, "attn_layer_period": 2, "num_experts": 2, "mamba_dt_rank": 4},
        "linear_attention",
    ),
    "bamba": ("BambaConfig", {**GROUPED, **MAMBA, "attn_layer_indices": [1]}, "linear_attention"),
    "falcon-h1": ("FalconH1Config", {**GROUPED, **MAMBA, "mamba_d_ssm": 64}, "hybrid"),
    "lfm2": ("Lfm2Config", {**GROUPED, "layer_types": ["conv", FULL]}, "conv"),
    "bloom": ("BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 2}, "position"),
    "alibi": (
        "FalconConfig",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "alibi": True},
        "position",
    ),
    "gpt-neo": (
        "GPTNeoConfig",
        {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 2}
        | {"attention_types": [[["global", "local"], 1]]},
        "position",
    ),
}


@pytest.mark.parametrize("kind", REWINDABLE)
def test_plain_and_sliding_attention_can_be_rewound(kind: str) -> None:
    config_class, settings, types, window = REWINDABLE[kind]
    model = tiny_model(getattr(transformers, config_class)(**settings))
    check_rewindable(model)
    assert layer_types(model.config) == types
    assert sliding_window(model.config) == window


@pytest.mark.parametrize("kind", REFUSED)
def test_anything_else_is_refused_by_the_name_of_its_layers(kind: str) -> None:
    config_class, settings, expected = REFUSED[kind]
    if not hasattr(transformers, config_class):
        pytest.skip(f"this transformers has no {config_class}")
    model = tiny_model(getattr(transformers, config_class)(**settings))
    with pytest.raises(ModelError, match=expected) as raised:
        check_rewindable(model, "the drafter")
    assert "the drafter" in str(raised.value) and "\n" not in str(raised.value)
