"""Lossless speculative decoding for PyTorch and Hugging Face language models.

import draftproof as dp
engine = dp.load("smollm2-135m", drafter="ngram")
print(engine.generate("Once upon a time", dp.SamplingParams(temperature=0))[0].text)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Engine as Engine
    from .api import load as load
    from .errors import DraftproofError as DraftproofError
    from .types import GenerationResult as GenerationResult
    from .types import SamplingParams as SamplingParams
    from .types import StreamEvent as StreamEvent

__version__ = "0.1.0"

_HOMES = {
    "DraftproofError": "errors",
    "Engine": "api",
    "GenerationResult": "types",
    "SamplingParams": "types",
    "StreamEvent": "types",
    "load": "api",
}
__all__ = ["DraftproofError", "Engine", "GenerationResult", "SamplingParams", "StreamEvent", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Names are imported when first used, so that `import draftproof` is quick."""
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
