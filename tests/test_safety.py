"""Checkpoints cannot run code: pickled objects are never executed, and no code comes from a model folder unasked."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof.errors import DraftproofError, ModelError
from draftproof.models.hf import load_model
from tiny import save_tiny, tiny_llama

SOURCE = Path(__file__).resolve().parent.parent / "src" / "draftproof"


class Bomb:
    """Creates a marker file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without its weights."""
    folder = save_tiny(tmp_path / "model", tiny_llama(0), tokenizer=False)
    (folder / "model.safetensors").unlink()
    return folder


def tensors() -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in tiny_llama(0).state_dict().items()}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth"])
@pytest.mark.parametrize("allow_pickle", [False, True])
def test_an_object_in_pickle_weights_is_refused_and_never_runs(
    folder: Path, tmp_path: Path, name: str, allow_pickle: bool
) -> None:
    marker = tmp_path / "marker"
    torch.save({**tensors(), "bomb": Bomb(marker)}, folder / name)
    with pytest.raises(ModelError) as raised:
        load_model(folder, allow_pickle=allow_pickle)
    assert not marker.exists()
    assert "safetensors" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_plain_pickle_file_is_refused_and_never_runs(folder: Path, tmp_path: Path, allow_pickle: bool) -> None:
    marker = tmp_path / "marker"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(ModelError):
        load_model(folder, allow_pickle=allow_pickle)
    assert not marker.exists()


def test_the_bomb_works(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists(), "otherwise the tests above prove nothing"


def test_tensors_in_a_pickle_file_load_only_when_allowed(folder: Path) -> None:
    torch.save(tensors(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pickle weights \(pytorch_model.bin\).*--allow-pickle"):
        load_model(folder)
    loaded = load_model(folder, allow_pickle=True, device="cpu")
    assert torch.equal(loaded.model.lm_head.weight, tiny_llama(0).lm_head.weight)


def test_safetensors_are_used_where_both_are_there(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", tiny_llama(0), tokenizer=False)
    marker = tmp_path / "marker"
    torch.save({"bomb": Bomb(marker)}, folder / "pytorch_model.bin")
    for allow_pickle in (False, True):
        load_model(folder, allow_pickle=allow_pickle)
    assert not marker.exists()


def test_an_index_may_not_point_out_of_its_folder(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", tiny_llama(0), tokenizer=False)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors(), "../outside.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside.safetensors"):
        load_model(folder)


def test_code_in_a_model_folder_does_not_run_unless_allowed(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (folder / "own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="--trust-remote-code"):
        load_model(folder)
    assert not marker.exists()


def test_code_in_a_tokenizer_does_not_run_unless_allowed(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", tiny_llama(0, vocab_size=259))
    marker = tmp_path / "marker"
    (folder / "own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    try:
        load_model(folder)
    except DraftproofError as error:
        assert "--trust-remote-code" in str(error)
    assert not marker.exists()


def test_the_source_never_unpickles_files() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import) and any(a.name in ("pickle", "dill", "cloudpickle") for a in node.names):
                found.append(f"{path.name}:{node.lineno} imports pickle")
            if not isinstance(node, ast.Call):
                continue
            given = {k.arg: k.value for k in node.keywords}
            called = ast.unparse(node.func)
            for argument, wrong in (("weights_only", False), ("allow_pickle", True)):
                value = given.get(argument)
                if isinstance(value, ast.Constant) and value.value is wrong:
                    found.append(f"{path.name}:{node.lineno} {called}({argument}={wrong})")
            if called == "torch.load" and not (
                isinstance(given.get("weights_only"), ast.Constant) and given["weights_only"].value is True
            ):
                found.append(f"{path.name}:{node.lineno} torch.load without weights_only=True")
    assert not found
