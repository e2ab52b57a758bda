"""The kernels are compiled once and kept; whatever is missing is one line, and torch's kernels do the work."""

from __future__ import annotations

import pytest
import torch

from draftproof.kernels import library
from draftproof.models.linear import maker

needed = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache folder, and nothing loaded yet."""
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path))
    library._loaded.cache_clear()
    yield tmp_path / "kernels"
    library._loaded.cache_clear()


@needed
def test_they_are_compiled_once_and_nothing_else_is_left(fresh, monkeypatch):
    assert library.reason() is None
    made = list(fresh.iterdir())
    assert len(made) == 1 and made[0].suffix == ".so"
    library._loaded.cache_clear()
    monkeypatch.setattr(library, "_run", lambda command: pytest.fail("compiled again"))
    assert library.reason() is None


@needed
@pytest.mark.parametrize("compiler", ["/nowhere/g++", "false"])
def test_without_a_working_compiler_the_reason_is_one_line_and_torch_does_the_work(fresh, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    reason = library.reason()
    assert reason.startswith("the kernels cannot be compiled or loaded: ") and "\n" not in reason
    assert list(fresh.iterdir()) == []
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        library.library()
    linear = maker("packed", torch.bfloat16, torch.device("cpu"))[1](torch.ones(32, 32).bfloat16(), None)
    assert torch.equal(linear(torch.ones(4, 32).bfloat16()), torch.full((4, 32), 32.0).bfloat16())


@needed
def test_an_unwritable_cache_costs_time_only(fresh, monkeypatch):
    fresh.parent.joinpath("kernels").write_text("a file where the folder should be")
    assert library.reason() is None


def test_they_can_be_turned_off(fresh, monkeypatch):
    monkeypatch.setenv("DRAFTPROOF_KERNELS", "0")
    assert library.reason() == "DRAFTPROOF_KERNELS=0 turns the kernels off"


def test_other_machines_are_told_what_is_missing(fresh, monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    assert library.reason() == "the kernels need Linux on x86-64, not Linux on aarch64"
