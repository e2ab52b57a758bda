"""`draftproof audit law | sample | model | texts | server`: is it really lossless?

Exit status 0 only for the verdict lossless; 1 for not lossless and for undecided.
"""

from __future__ import annotations

from collections.abc import Callable

from . import law, model, sample, server, texts

COMMANDS: dict[str, Callable[..., None]] = {
    "law": law.law,
    "sample": sample.sample,
    "model": model.model,
    "texts": texts.texts,
    "server": server.server,
}
