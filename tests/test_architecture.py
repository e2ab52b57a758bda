"""The house keeps its shape: layers, siblings, forbidden imports, public names, small files, a complete map."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "draftproof"
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    ("errors", "params", "probs", "costs", "types", "interfaces", "sampling", "home", "whole", "kernels"),
    ("verify", "models", "nets", "engine"),
    ("drafters", "training"),
    ("", "api", "testing"),  # "" is the package itself, whose names come from api
    ("bench", "advisor", "audit", "serve"),
    ("cli",),
)
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
MAY_SEE_SIBLINGS = {"advisor": {"bench"}, "audit": {"bench"}, "serve": {"bench"}, "api": {""}, "": {"api"}}
BASE = set(LAYERS[0])  # the modules of layer 0 belong together
SHARED_BY_DRAFTERS = {
    "automaton",
    "calibrate",
    "chains",
    "context",
    "growth",
    "law",
    "offer",
    "revision",
    "trees",
}  # not drafters themselves


@dataclass(frozen=True)
class Import:
    """One import statement inside the package: who, where, and the absolute module it names."""

    file: Path
    line: int
    module: str

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def part_of(file: Path) -> str:
    """The part of the house a file belongs to: its sub-package, or the module itself at the top."""
    first = file.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(file: Path) -> Iterator[Import]:
    """Every import, at the top, inside functions and for type checking alike."""
    package = ["draftproof", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            if node.module or not node.level:
                yield Import(file, node.lineno, ".".join(module))
            else:  # `from . import name`: the names may be modules
                for alias in node.names:
                    yield Import(file, node.lineno, ".".join([*module, alias.name]))


def inner(statement: Import) -> str | None:
    """The part of our own house that is imported, or None; `from .. import Name` is the package itself."""
    parts = statement.module.split(".")
    if parts[0] != "draftproof":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYER else ""


ALL = [statement for file in FILES for statement in imports(file)]


def test_every_part_has_a_layer() -> None:
    assert {part_of(file) for file in FILES} <= set(LAYER)


def test_lower_layers_never_import_higher_ones_and_siblings_do_not_know_each_other() -> None:
    broken = []
    for statement in ALL:
        own, other = part_of(statement.file), inner(statement)
        if other is None or other == own or {own, other} <= BASE or other in MAY_SEE_SIBLINGS.get(own, set()):
            continue
        if LAYER[other] >= LAYER[own]:
            broken.append(f"{statement.where} imports {statement.module}")
    assert not broken


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("engine", {"transformers"}),
        ("verify", {"transformers", "random", "secrets", "numpy"}),
        ("drafters", {"transformers"}),
        ("errors", {"torch", "transformers"}),
        ("params", {"torch", "transformers"}),
    ],
)
def test_parts_do_without_what_they_must_not_know(part: str, forbidden: set[str]) -> None:
    used = [s for s in ALL if part_of(s.file) == part and s.module.split(".")[0] in forbidden]
    assert not [f"{s.where} imports {s.module}" for s in used]


def test_layer_0_stands_on_torch_and_the_standard_library() -> None:
    known = {"torch", "draftproof", *sys.stdlib_module_names}
    strange = [s for s in ALL if part_of(s.file) in BASE and s.module.split(".")[0] not in known]
    assert not [f"{s.where} imports {s.module}" for s in strange]


def test_verify_draws_nothing_but_from_its_source() -> None:
    """Anything of torch that draws would be chance outside the source the exact-law tests enumerate."""
    draws = re.compile(r"^(rand|randn|randint|randperm|rand_like|multinomial|bernoulli_|manual_seed|.*dropout.*)$")
    found = []
    for file in (PACKAGE / "verify").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if draws.match(name):
                found.append(f"{file.name}:{node.lineno} {name}")  # type: ignore[attr-defined]
    assert not found


def test_nothing_below_the_command_line_imports_training() -> None:
    users = [s for s in ALL if inner(s) == "training" and part_of(s.file) not in ("training", "cli")]
    assert not [s.where for s in users]


def test_drafters_do_not_import_one_another() -> None:
    """Cascades and the catalogue name others by strings, which are imported when used."""
    known = {f"draftproof.drafters.{name}" for name in SHARED_BY_DRAFTERS}
    found = [s for s in ALL if part_of(s.file) == "drafters" and s.module.startswith("draftproof.drafters.")]
    assert not [f"{s.where} imports {s.module}" for s in found if s.module not in known]


def test_the_public_names_are_these_and_come_lazily() -> None:
    code = (
        "import sys, draftproof as dp; assert 'torch' not in sys.modules; "
        "print(sorted(dp.__all__)); [getattr(dp, name) for name in dp.__all__]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == [
        "DraftproofError",
        "Engine",
        "GenerationResult",
        "SamplingParams",
        "StreamEvent",
        "__version__",
        "load",
    ]


def test_the_version_is_the_packages_own() -> None:
    from importlib.metadata import version

    import draftproof

    assert draftproof.__version__ == version("draftproof")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_files_are_small_and_say_what_they_are(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    num_lines = text.count("\n")
    assert num_lines <= 400, f"{num_lines} lines: split it by the noun it holds"
    if file.name == "__init__.py":
        assert num_lines <= 80, "an __init__ only names what is inside"
    elif text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module begins with what it is"


def test_no_file_is_a_drawer() -> None:
    drawers = {"utils", "util", "common", "helpers", "misc", "legacy", "v2"}
    assert not [file for file in FILES if drawers & set(file.with_suffix("").parts)]


def test_the_readme_lists_every_source_file_with_a_purpose() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = readme.split("## Files", 1)[1].split("\n## ", 1)[0]
    listed = set(re.findall(r"^ *([\w.]+\.py) {2,}\S", tree, flags=re.M))
    names = {file.name for file in FILES if file.name != "__init__.py"}
    assert names - listed == set(), "source files the map in README.md leaves out"
    assert listed - names - {"__init__.py", "make_figures.py"} == set(), "names in the map that no file has"


def test_tracked_files_name_no_path_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    private = re.compile(r"/(?:root|work|home/\w+|Users/\w+)/\w")
    found = []
    for name in tracked.stdout.splitlines():
        file = ROOT / name
        if file.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".json", "") and file.is_file():
            found += [name for line in file.read_text(encoding="utf-8").splitlines() if private.search(line)]
    assert not [name for name in found if name != Path(__file__).relative_to(ROOT).as_posix()]
