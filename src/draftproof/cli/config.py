"""`--config FILE`: options from a TOML file, as `advise` writes it; what is given on the command line wins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: str) -> dict[str, Any]:
    """The file's options under their Python names.

    Raises:
        OptionError: it cannot be read, or is no table of plain values.
    """
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--config cannot read {path!r}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"--config needs TOML, and {path!r} is none: {error}") from None
    options = {name.replace("-", "_"): value for name, value in found.items()}
    if tables := [name for name, value in options.items() if isinstance(value, dict)]:
        raise OptionError(f"--config takes options and values, and {path!r} has a table {tables[0]!r}")
    return options


def _apply(context: typer.Context, path: str | None) -> str | None:
    if path is None or context.resilient_parsing:
        return path
    options = read(path)
    known = {parameter.name for parameter in context.command.params} - {"config"}
    if unknown := [name for name in options if name not in known]:
        names = ", ".join(sorted(filter(None, known)))
        raise OptionError(f"{path}: {context.info_name} has no option {unknown[0]!r}; use one of {names}")
    context.default_map = {**(context.default_map or {}), **options}
    return path


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        callback=_apply,
        is_eager=True,
        help="Options from a file, as advise writes one; the command line wins.",
    ),
]
