"""Where this machine keeps what was fetched, converted or compiled. Importing this file does not import torch."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$DRAFTPROOF_HOME, else $XDG_CACHE_HOME/draftproof, else ~/.cache/draftproof."""
    if home := os.environ.get("DRAFTPROOF_HOME"):
        return Path(home).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "draftproof"
    return Path.home() / ".cache" / "draftproof"
