"""The command line: `draftproof generate | chat | bench | advise | observe | audit | train | convert | demo`.

The only place that parses arguments and prints. Importing it loads neither torch nor transformers, so `--help` is
instant; a sub-command imports what it needs when it runs. Exit status: 0, 1 for a failed check, 2 for bad input
(one line on standard error, no traceback), 130 after Ctrl-C.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

import typer

from ..errors import DraftproofError
from . import audit, train
from .app import COMMANDS, GROUPS, app

# Typer carries its own copy of Click since 0.27 and used Click's before; this is the base of either's input errors.
_BadUsage: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


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
