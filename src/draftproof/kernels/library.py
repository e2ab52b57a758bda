"""The kernels (`*.cpp`): compiled once on the user's machine, loaded where the CPU has what they need.

They need Linux on x86-64, AVX2 with FMA, and a C++ compiler (`$CXX`, g++ or c++) the first time; the result is kept in
the cache folder by a hash of source, compiler and flags. Without any of these `reason()` says so in a line and
everything runs on torch's own kernels. AVX-512 with VNNI and BF16 is used where there is all of it, and so is a matrix
unit (AMX). `DRAFTPROOF_KERNELS=0` turns the kernels off, `avx2` AVX-512, `avx512` only the matrix unit.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..home import cache_dir

_HERE = Path(__file__).parent
_SOURCES = tuple(_HERE / f"{name}.cpp" for name in ("pack", "product", "attention", "nucleus"))
_NEEDS = ("avx2", "fma")
_WIDE = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16")
_TILES = {"amx_tile", "amx_bf16", "amx_int8"}
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp")
_log = logging.getLogger("draftproof")


def reason() -> str | None:
    """None if the kernels can be used, otherwise why not, in one line."""
    return _loaded()[1]


def library() -> ctypes.CDLL:
    """The kernels.

    Raises:
        RuntimeError: they cannot be used (`reason`).
    """
    found, why = _loaded()
    if found is None:
        raise RuntimeError(why)
    return found


@functools.cache
def instructions() -> str:
    """What the kernels are made for: "avx2", "avx512", or "avx512 amx"."""
    flags, chosen = _cpu_flags(), os.environ.get("DRAFTPROOF_KERNELS")
    if chosen == "avx2" or not flags.issuperset(_WIDE):
        return "avx2"
    return "avx512" if chosen == "avx512" or not flags.issuperset(_TILES) else "avx512 amx"


@functools.cache
def has_tiles() -> bool:
    """Whether the CPU has a matrix unit (AMX, with bfloat16 and 8-bit integers) that the system lets us use."""
    return instructions() == "avx512 amx" and bool(library().draftproof_tiles())


@functools.cache
def _loaded() -> tuple[ctypes.CDLL | None, str | None]:
    if os.environ.get("DRAFTPROOF_KERNELS") == "0":
        return None, "DRAFTPROOF_KERNELS=0 turns the kernels off"
    if missing := _missing():
        return None, missing
    try:
        library = ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError, UnicodeError) as error:
        return None, f"the kernels cannot be compiled or loaded: {str(error).splitlines()[0]}"
    pointer, integer, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.draftproof_pack.argtypes = [pointer, number, number, *[integer] * 3, *[pointer] * 3]
    library.draftproof_product.argtypes = [pointer, pointer, integer, number, pointer, pointer]
    library.draftproof_attend.argtypes = [pointer, pointer, integer, *[pointer] * 7, integer, pointer, pointer]
    library.draftproof_nucleus.argtypes = [pointer, pointer, integer, integer, *[pointer] * 3, integer]
    library.draftproof_tiles.restype = number
    for name in ("pack", "product", "attend", "nucleus"):
        getattr(library, f"draftproof_{name}").restype = None
    return library, None


def _missing() -> str | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the kernels need Linux on x86-64, not {platform.system()} on {platform.machine()}"
    flags = _cpu_flags()
    if absent := [flag for flag in _NEEDS if flag not in flags]:
        return f"the kernels need a CPU with {', '.join(absent)}"
    return None


def _cpu_flags() -> set[str]:
    return set(Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\nflags")[2].partition("\n")[0].split())


def _compiled() -> Path:
    """The shared library, compiled if this source, compiler and OpenMP were never seen together.

    It must use the OpenMP that torch has loaded: a second pool of threads would fight over the cores.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or "g++"]
    openmp = _openmp()
    content = [path.read_bytes() for path in (*_SOURCES, *sorted(_HERE.glob("*.h")))]
    wide = () if instructions() == "avx2" else _WIDE
    flags = [*_FLAGS, *(f"-m{flag.replace('_', '')}" for flag in (*_NEEDS, *wide))]
    key = hashlib.sha256(repr((content, compiler, flags, openmp)).encode()).hexdigest()[:16]
    folder = cache_dir() / "kernels"
    library = folder / f"draftproof-{key}.so"
    if library.exists():
        return library
    _log.info("compiling the kernels once (a few seconds)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(dir=folder)
    except OSError:  # an unwritable cache costs these seconds at every start
        scratch = tempfile.mkdtemp()
        library = Path(scratch) / library.name
    objects = [Path(scratch) / f"{path.stem}.o" for path in _SOURCES]
    binary = Path(scratch) / "kernels.so"
    try:
        for path, made in zip(_SOURCES, objects):
            _run([*compiler, *flags, "-c", str(path), "-o", str(made)])
        _run([*compiler, "-shared", *map(str, objects), openmp or "-fopenmp", "-o", str(binary)])
        os.replace(binary, library)
    finally:
        if library.parent != Path(scratch):
            shutil.rmtree(scratch, ignore_errors=True)
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise OSError((lines or [f"{command[0]} ended with {done.returncode}"])[0])


def _openmp() -> str | None:
    """The file of the GNU OpenMP runtime that this process has loaded, or None."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if "libgomp" in line:
            return line[line.index("/") :]
    return None
