"""Documents a command leaves, JSON for machines and pages for people: complete, or not there at all."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..whole import write_file


class Document:
    """Where `--json` (or another option) points: a file, `-` (the last line of standard output), or nowhere.

    Made before the work starts, so a path that cannot be written fails at once.

    Raises:
        OptionError: the folder does not exist, or the file cannot be written there.
    """

    def __init__(self, path: str | None, option: str = "--json"):
        self.path, self._option = path, option
        if path is None or path == "-":
            return
        if not path or Path(path).is_dir():
            raise OptionError(f"{option} needs the path of a file, or - for standard output, not {path!r}")
        self._final = Path(path).resolve()
        if self._is_special:
            return
        folder = self._final.parent
        if not folder.is_dir():
            raise OptionError(
                f"{option} needs a file in a folder that exists, not {path!r}: make {str(folder)!r} first"
            )
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise OptionError(f"{option} cannot write to {str(folder)!r}: {error.strerror or error}") from None

    def __bool__(self) -> bool:
        return self.path is not None

    @property
    def _is_special(self) -> bool:
        """A pipe or a device: written to, never replaced."""
        return self._final.exists() and not self._final.is_file()

    def write(self, content: dict[str, Any]) -> None:
        """As one line of JSON."""
        self.write_text(json.dumps(content, ensure_ascii=False))

    def write_text(self, text: str) -> None:
        """Written under a temporary name and renamed, so nothing half-written has the final name."""
        if self.path is None:
            return
        if self.path == "-":
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            return
        try:
            if self._is_special:
                self._final.write_text(text + "\n", encoding="utf-8")
            else:
                write_file(self._final, lambda partial: partial.write_text(text + "\n", encoding="utf-8"))
        except OSError as error:
            raise OptionError(f"{self._option} cannot write {self.path!r}: {error.strerror or error}") from None
