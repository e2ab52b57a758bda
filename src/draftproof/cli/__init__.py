"""The command line: `draftproof generate | chat | bench | advise | observe | audit | train | convert | demo`.

The only place that parses arguments and prints. Importing it loads neither torch nor transformers, so `--help` is
instant; a sub-command imports what it needs when it runs. Exit status: 0, 1 for a failed check, 2 for bad input
(one line on standard error, no traceback), 130 after Ctrl-C.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from ..errors import DraftproofError
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

# Typer carries its own copy of Click since 0.27 and used Click's before; this is the base of either's input errors.
_BadUsage: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        print(version("draftproof"))
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Idle threads of torch spin for milliseconds by default, which is many times slower where other work shares the
    # cores; sleeping at once costs 40 % on an idle machine. This many turns (some 20 us) is as fast as either.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    sys.path.append(os.getcwd())  # for package.module:Class of one's own; last, so that it shadows nothing
    try:
        status = app(args=list(arguments), prog_name="draftproof", standalone_mode=False)
    except DraftproofError as error:
        return _complain(str(error))
    except _BadUsage as error:
        known = {*COMMANDS, *GROUPS, *audit.COMMANDS, *train.COMMANDS}
        command = " ".join(["draftproof", *itertools.takewhile(known.__contains__, arguments[:2])])
        return _complain(f"{error.format_message().rstrip('.')}. See `{command} --help`.")  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    if status == 130:
        print(file=sys.stderr)
    return status if isinstance(status, int) else 0


def _complain(message: str) -> int:
    print("draftproof:", " ".join(message.split()), file=sys.stderr)
    return 2
