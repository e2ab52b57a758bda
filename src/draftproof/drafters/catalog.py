"""Drafters by name: a literal table, a dotted path to your own class, or an installed entry point.

none   ngram   ngram:2-5   suffix   model:FOLDER   medusa:FOLDER   eagle:FOLDER   self:LAYERS
your.package:YourDrafter   a,b (a cascade)
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

from ..errors import OptionError
from ..interfaces import Drafter
from .context import DraftContext

ENTRY_POINTS = "draftproof.drafters"

CASCADE = "draftproof.drafters.cascade:build"
TABLE = {
    "none": "draftproof.drafters.none:build",
    "ngram": "draftproof.drafters.ngram:build",
    "suffix": "draftproof.drafters.suffix:build",
    "model": "draftproof.drafters.draft_model:build",
    "medusa": "draftproof.drafters.medusa:build",
    "eagle": "draftproof.drafters.eagle:build",
    "self": "draftproof.drafters.early_exit:build",
}


def build(spec: str, context: DraftContext) -> Drafter:
    """The drafter a specification names: `name`, `name:argument`, `package.module:Class`, or several with commas.

    Builders from the table and from entry points are called with (argument, context); a class named by a dotted
    path is called with the context alone. Drafters with commas between them are the members of a cascade.

    Raises:
        OptionError: nothing of that name, or an argument it does not take.
    """
    check(spec)
    if "," in spec:
        return _builder(CASCADE)([build(part, context) for part in spec.split(",")], context)
    name, _, argument = spec.partition(":")
    if name in TABLE:
        return _builder(TABLE[name])(argument, context)
    if point := _entry_point(name):
        return checked(point.load()(argument, context), spec)
    made = _load(name, argument)
    try:
        return checked(made(context), spec)
    except TypeError as error:
        raise OptionError(f"drafter {spec} must be made from one DraftContext, and could not be: {error}") from error


def check(spec: str) -> None:
    """Refuse a specification that names nothing, without loading anything.

    Raises:
        OptionError: nothing of that name.
    """
    if "," in spec:
        for part in spec.split(","):
            check(part)
        return
    name, _, argument = spec.partition(":")
    if name in TABLE or _entry_point(name) or (argument and ("." in name or importlib.util.find_spec(name))):
        return
    raise OptionError(
        f"unknown drafter {spec!r}: use {', '.join(TABLE)} (model:FOLDER, self:LAYERS), package.module:Class "
        "for your own, or several with commas"
    )


def _builder(path: str) -> Callable[..., Drafter]:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def _entry_point(name: str) -> Any:
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return next((point for point in points if point.name == name), None)


def _load(module: str, attribute: str) -> Callable[[DraftContext], Any]:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise OptionError(f"drafter {module}:{attribute} cannot be imported: {error}") from error
    except AttributeError:
        raise OptionError(f"drafter {module}:{attribute}: the module has no {attribute!r}") from None
    if not callable(found):
        raise OptionError(f"drafter {module}:{attribute} must be a class or function, not {type(found).__name__}")
    return found


def checked(drafter: Any, spec: str) -> Drafter:
    """The drafter, if it has what a drafter needs."""
    missing = [part for part in ("propose", "release") if not callable(getattr(drafter, part, None))]
    if missing:
        raise OptionError(f"drafter {spec} must have methods propose and release; {missing[0]} is missing")
    if not isinstance(getattr(drafter, "name", None), str):
        drafter.name = spec
    return drafter
