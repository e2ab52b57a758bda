"""The kernels are compiled once and kept; whatever is missing is one line, and torch's kernels do the work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from draftproof.kernels import library
from draftproof.models.linear import maker

needed = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache folder, and nothing loaded yet."""
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path))
    monkeypatch.delenv("DRAFTPROOF_KERNELS", raising=False)
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


PRODUCTS = """
import hashlib, torch
from draftproof.models.native.product import NativeLinear
torch.manual_seed(0)
weight, x = torch.randn(100, 300).bfloat16(), torch.randn(11, 300).bfloat16()
for bits in (16, 8, 4):
    y = NativeLinear(bits, weight, tiled=False)(x.float())
    error = (y - x.float() @ weight.float().T).abs().max()
    print(hashlib.sha256(y.numpy().tobytes()).hexdigest() if bits < 16 else float(error))
"""


@needed
def test_every_set_of_instructions_gives_the_same_bits_for_rounded_weights():
    """Sums of integers are exact, and everything else is added up in one order."""

    def run(instructions):
        env = {k: v for k, v in os.environ.items() if k != "DRAFTPROOF_KERNELS"}
        env |= {"DRAFTPROOF_KERNELS": instructions} if instructions else {}
        done = subprocess.run([sys.executable, "-c", PRODUCTS], env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    best, plain = run(None), run("avx2")
    assert best[1:] == plain[1:]
    assert float(best[0]) < 1e-3 and float(plain[0]) < 1e-3


def test_they_can_be_turned_off(fresh, monkeypatch):
    monkeypatch.setenv("DRAFTPROOF_KERNELS", "0")
    assert library.reason() == "DRAFTPROOF_KERNELS=0 turns the kernels off"


@pytest.mark.parametrize(
    ("has", "chosen", "expected"),
    [
        (library._NEEDS, None, "avx2"),
        ((*library._NEEDS, *library._WIDE), None, "avx512"),
        ((*library._NEEDS, *library._WIDE[:-1]), None, "avx2"),
        ((*library._NEEDS, *library._WIDE, *library._TILES), None, "avx512 amx"),
        ((*library._NEEDS, *library._WIDE, *library._TILES), "avx512", "avx512"),
        ((*library._NEEDS, *library._WIDE, *library._TILES), "avx2", "avx2"),
    ],
)
def test_the_widest_instructions_that_the_cpu_has_are_used_unless_told_otherwise(monkeypatch, has, chosen, expected):
    monkeypatch.setattr(library, "_cpu_flags", lambda: set(has))
    if chosen:
        monkeypatch.setenv("DRAFTPROOF_KERNELS", chosen)
    library.instructions.cache_clear()
    assert library.instructions() == expected
    library.instructions.cache_clear()


def test_an_old_cpu_is_told_what_it_lacks(fresh, monkeypatch):
    monkeypatch.setattr(library, "_cpu_flags", lambda: {"avx", "sse4_2"})
    assert library.reason() == "the kernels need a CPU with avx2, fma"


def test_other_machines_are_told_what_is_missing(fresh, monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    assert library.reason() == "the kernels need Linux on x86-64, not Linux on aarch64"
