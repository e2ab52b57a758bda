"""The sub-commands as one Typer app."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from . import advise, audit, bench, chat, convert, demo, generate, observe, train
from .options import flat

app = typer.Typer(
    help="Lossless speculative decoding: the same text as plain decoding, sooner.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate.generate,
    "chat": chat.chat,
    "bench": bench.bench,
    "advise": advise.advise,
    "observe": observe.observe,
    "convert": convert.convert,
    "demo": demo.demo,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(flat(_command))

GROUPS = {"audit": ("Is it really lossless?", audit.COMMANDS), "train": ("Train a drafter for it.", train.COMMANDS)}
for _group, (_help, _commands) in GROUPS.items():
    _typer = typer.Typer(help=_help, no_args_is_help=True)
    for _name, _command in _commands.items():
        _typer.command(_name)(flat(_command))
    app.add_typer(_typer, name=_group)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        print(version("draftproof"))
    elif context.invoked_subcommand is None:
        print(context.get_help())
