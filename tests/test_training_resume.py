"""Runs that are killed go on to the same bits: data, capture and training, with SIGKILL at random instants.

The work is forked from this process, which has everything imported, so that a run lasts about a second and the kills
fall into every part of it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from safetensors.torch import load_file

import draftproof as dp
from draftproof.errors import TrainingError
from draftproof.training.capture import Capture
from draftproof.training.corpus import Corpus, CorpusFolder
from draftproof.training.data import Answered, Answering, PublicText, SelfWritten
from draftproof.training.identity import identify
from draftproof.training.making import Excluded, make
from draftproof.training.run import clean, train
from training_runs import FUSED, loaded, plan, samples, settings, teacher_of, tiny_target, write_corpus

KILLS = 10
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """A forked child must not wait for threads that only its parent has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("resume") / "target")


@pytest.fixture(scope="module")
def data(tmp_path_factory, target):
    return write_corpus(tmp_path_factory.mktemp("resume") / "data", target)


def quietly(work: Callable[[], Any]) -> None:
    """In a child, which is no part of what its parent has run."""
    PartialState._reset_state()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    work()


def run(work: Callable[[], Any], seconds: float | None = None) -> bool:
    """The work in a child; whether it came to its end before it was killed."""
    child = FORK.Process(target=quietly, args=(work,))
    child.start()
    child.join(seconds)
    if child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode == 0


def killed_and_resumed(work: Callable[[Path], Any], folder: Path, seed: int) -> list[Path]:
    """Folders that reached their end through kills, ten of them in all; kills come anywhere in a whole run's time."""
    began = time.perf_counter()
    assert run(lambda: work(folder / "whole"))
    whole = time.perf_counter() - began
    chance = random.Random(seed)
    folders, kills = [folder / "killed-0"], 0
    while kills < KILLS:
        if run(lambda: work(folders[-1]), chance.uniform(0.02, 0.9) * whole):
            folders.append(folder / f"killed-{len(folders)}")
        else:
            kills += 1
    assert run(lambda: work(folders[-1]))
    return folders


def content(folder: Path, pattern: str) -> dict[str, dict[str, torch.Tensor]]:
    return {str(path.relative_to(folder)): load_file(path) for path in sorted(folder.rglob(pattern))}


def assert_same(one: Path, other: Path, pattern: str) -> None:
    a, b = content(one, pattern), content(other, pattern)
    assert a.keys() == b.keys() and a
    for name in a:
        assert a[name].keys() == b[name].keys()
        assert all(torch.equal(a[name][key], b[name][key]) for key in a[name]), name
    assert not [path for path in other.rglob("*") if path.name.endswith(".partial")]


@pytest.mark.parametrize("kind", ["eagle", "medusa", "distill", "on-policy"])
def test_a_training_run_killed_anywhere_ends_in_the_same_bits(tmp_path, target, data, kind):
    def work(folder: Path) -> None:
        if kind == "on-policy":
            train(plan("distill", target, data), settings(max_steps=14, on_policy=0.5), folder)
        else:
            train(plan(kind, target, data), settings(epochs=2), folder)

    for folder in killed_and_resumed(work, tmp_path, seed=len(kind)):
        assert_same(tmp_path / "whole", folder, "*.safetensors")
        logs = [json.loads((path / "log.json").read_text())["rows"] for path in (tmp_path / "whole", folder)]
        for log in logs:
            for row in log:
                row.pop("seconds", None)
        assert logs[0] == logs[1]
        manifests = [json.loads((path / "manifest.json").read_text()) for path in (tmp_path / "whole", folder)]
        assert manifests[0]["measured"] == manifests[1]["measured"]


def test_a_run_killed_as_it_had_saved_its_last_step_says_all_of_it(tmp_path, target, data):
    folder = tmp_path / "run"
    train(plan("medusa", target, data), settings(max_steps=9), folder)
    log, best = folder / "log.json", next(folder.glob("best-*"))
    whole = log.read_text()
    log.write_text('{"rows": []}')
    (folder / "best-00000000").mkdir(exist_ok=True)
    (folder / "manifest.json").unlink()
    train(plan("medusa", target, data), settings(max_steps=9), folder)
    assert log.read_text() == whole and list(folder.glob("best-*")) == [best]


def test_a_capture_killed_anywhere_is_the_same_and_so_is_what_learns_from_it(tmp_path, target, monkeypatch):
    monkeypatch.setattr("draftproof.training.capture._SHARD", 8)
    given = write_corpus(tmp_path / "data", target, samples(48, seed=2))

    def work(folder: Path) -> None:
        plain = plan("eagle", target, given, cache=folder.with_name(f"{folder.name}-cache"), cache_top=16)
        train(plain, settings(epochs=2, max_steps=12), folder)

    for folder in killed_and_resumed(work, tmp_path, seed=4):
        assert_same(tmp_path / "whole", folder, "*.safetensors")
        assert_same(tmp_path / "whole-cache", folder.with_name(f"{folder.name}-cache"), "shard-*.safetensors")


def test_making_data_killed_anywhere_gives_the_same_texts(tmp_path, target):
    engine = dp.load(str(target), dtype="float32", max_batch=8)
    (tmp_path / "text").mkdir()
    for number in range(12):
        (tmp_path / "text" / f"{number}.txt").write_text(f"Some public text, number {number}. " * 20)
    answering = Answering((0.0, 1.0), max_new_tokens=12, max_length=80, unit=8, seed=3)
    prompts = [("told", [], [f"Say {number}", "More"]) for number in range(24)]
    identity = identify(str(target), engine.codec.tokenizer).to_dict()

    def work(folder: Path) -> None:
        sources = [
            SelfWritten(engine, answering, 32, {"free": ("",), "who": ("who", "when")}),
            Answered(engine, answering, prompts),
            PublicText(engine.codec, tmp_path / "text", max_tokens=None, length=64, files=4),
        ]
        manifest = {"identity": identity, "settings": {source.name: source.settings for source in sources}}
        make(CorpusFolder(folder, manifest), sources, Excluded(()))

    for folder in killed_and_resumed(work, tmp_path / "made", seed=5):
        assert_same(tmp_path / "made" / "whole", folder, "*.safetensors")
        one, other = (Corpus.read([path]) for path in (tmp_path / "made" / "whole", folder))
        assert one == other and len(one.samples) > 60
        paths = (tmp_path / "made" / "whole" / "manifest.json", folder / "manifest.json")
        counts = [json.loads(path.read_text())["counts"] for path in paths]
        assert counts[0] == counts[1]


def test_what_is_captured_teaches_what_the_teacher_teaches(tmp_path, target, data):
    """With every token listed the stored lessons are the teacher's up to half precision."""
    corpus = Corpus.read([data])
    given = list(corpus.samples)
    from draftproof.training.batch import Packing
    from draftproof.training.eagle import EagleRecipe

    vocab = torch.arange(30, 140)
    recipe = EagleRecipe(loaded(target).model, vocab, layers=FUSED)
    teacher = teacher_of(recipe, target)
    who = identify(str(target), loaded(target).tokenizer)
    capture = Capture(tmp_path, teacher, given, who, corpus.digest, length=48, k=110)
    stated, seen = capture.num_bytes, []
    capture.fill(lambda done, total: seen.append((done, total)))
    written = sum(path.stat().st_size for path in capture.folder.glob("shard-*"))
    assert written == pytest.approx(stated, rel=0.1) and seen[-1][0] == seen[-1][1] and capture.num_missing == 0
    packing = Packing(given, 48, 2, seed=1, epoch=0)
    for number in range(len(packing)):
        batch, members = packing[number], [given[i] for i in packing.members(number)]
        own, stored = teacher.lesson(batch), capture.lesson(batch, members)
        torch.testing.assert_close(stored.states, own.states, rtol=1e-4, atol=1e-4)
        dense = torch.zeros(len(own.law), 110).scatter(1, stored.law.ids, stored.law.p)
        torch.testing.assert_close(dense, own.law.p, rtol=2e-3, atol=2e-4)
        assert stored.law.best.tolist() == own.law.best.tolist()
        assert stored.law.said.tolist() == own.law.said.tolist()


def test_a_run_goes_on_only_with_what_it_was_begun_with(tmp_path, target, data):
    folder = tmp_path / "run"
    train(plan("medusa", target, data), settings(max_steps=3), folder)
    with pytest.raises(TrainingError, match=r"holds a run with lr = 0.003, now 0.1: give the same"):
        train(plan("medusa", target, data), settings(max_steps=3, lr=0.1), folder)
    with pytest.raises(TrainingError, match=r"holds a run with kind = 'medusa', now 'eagle'"):
        train(plan("eagle", target, data), settings(max_steps=3), folder)
    again = train(plan("medusa", target, data), settings(max_steps=3, save_every=50, log_every=2), folder)
    assert again.manifest["steps"] == 3
    clean(folder)
    with pytest.raises(TrainingError, match="holds a finished drafter: choose another folder"):
        train(plan("medusa", target, data), settings(max_steps=3), folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match="holds no training run: choose a new folder"):
        train(plan("medusa", target, data), settings(max_steps=3), tmp_path / "other")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_two_processes_learn_what_one_learns(tmp_path, target, data):
    """Each takes every other batch of a step; their sums differ from one's by rounding only."""

    def work(folder: Path, rank: int | None = None, port: int = 0) -> None:
        if rank is not None:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port), ACCELERATE_USE_CPU="true",
            )  # fmt: skip
        train(plan("medusa", target, data), settings(max_steps=4, accumulate=2, eval_every=4), folder)

    port = free_port()
    assert run(lambda: work(tmp_path / "one"))
    works = [lambda rank=rank: work(tmp_path / "two", rank, port) for rank in (0, 1)]
    children = [FORK.Process(target=quietly, args=(own,)) for own in works]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    one, two = (load_file(sorted((tmp_path / n / "checkpoints").glob("*.safetensors"))[-1]) for n in ("one", "two"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)


def test_what_was_killed_as_it_began_left_nothing_in_the_way(tmp_path, target, data):
    """Before its manifest has its name, a folder holds a part of it at most."""
    for name, work in (
        ("data", lambda folder: write_corpus(folder, target)),
        ("run", lambda folder: train(plan("medusa", target, data), settings(max_steps=1), folder)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / ".manifest.json.4711.partial").write_text('{"ident')
        work(folder)
        assert not list(folder.glob(".*"))
