"""Drafters and ways of drafting to compare, over one loaded target; what is loaded once is not loaded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from .options import TargetOptions

if TYPE_CHECKING:
    from .. import Engine
    from ..bench.run import Arm

ADAPTIVE = "adaptive"


def settings(draft: str) -> dict[str, Any]:
    """How it drafts as arguments of `load`: "adaptive", a number of tokens, or a shape of trees.

    Raises:
        OptionError: none of these.
    """
    if draft == ADAPTIVE:
        return {"adaptive": True}
    if draft.isdecimal():
        return {"adaptive": False, "max_draft": int(draft)}
    from ..drafters.growth import TreeOption

    try:
        TreeOption.parse(draft)
    except OptionError:
        raise OptionError(f"--draft takes adaptive, a number of tokens or a shape of trees, not {draft!r}") from None
    return {"adaptive": False, "draft_tree": draft}


def load(model: TargetOptions, plain: Engine, names: Sequence[str], drafts: Sequence[str]) -> dict[Arm, Engine]:
    """An engine for every drafter and way of drafting; one way alone goes without saying so in the tables."""
    engines: dict[Arm, Engine] = {}
    for name in names:
        loaded: Engine | None = None
        for draft in drafts:
            changes = settings(draft)
            if loaded is None:
                engine = loaded = model.load_with(name, plain, **changes)
            elif "draft_tree" not in changes:
                engine = model.load_with(loaded.drafter, plain, **changes)
            elif hasattr(loaded.drafter, "shaped"):
                from ..drafters.growth import TreeOption

                engine = model.load_with(loaded.drafter.shaped(TreeOption.parse(draft)), plain, **changes)
            else:
                engine = model.load_with(name, plain, **changes)
            engines[name, draft] = engine
    return engines
