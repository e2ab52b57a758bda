"""What a drafter may know of the target and of the user's wishes when it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from .growth import Costs

if TYPE_CHECKING:
    from ..models.cached_lm import CachedLM


@dataclass(frozen=True)
class DraftContext:
    """Given to every drafter's constructor.

    Fields:
        target_name: as the user wrote it.
        vocab_size: V of the target, padding included.
        tokenizer: the target's, or None.
        eos_ids: the target's end-of-text ids.
        max_batch: at most this many sequences at a time.
        max_length: the target's context limit.
        draft_max_length: a limit for the drafter's own context, or None.
        draft_weights: weight format of a drafter that is a model.
        draft_layers: keep only so many of a draft model's layers, or None.
        draft_vocab: let a draft model propose only so many (frequent) tokens, or None.
        draft_confidence: a greedy chain stops once its product of draft probabilities falls below this; 0 is off.
        draft_tree: what shape to draft (`growth.TreeOption.parse`); None is a chain.
        draft_costs: what optimal trees weigh their size against, or None.
        cross_vocab: what to do about a draft model with another vocabulary (`models.bridge.MODES`).
        draft_corpus: texts as ids to count those tokens in; without any, low ids count as frequent.
        model_options: keyword arguments for `models.hf.load_model`.
        target: the loaded target, for drafters that read its hidden states or use its weights; or None.
    """

    target_name: str = "target"
    vocab_size: int = 0
    tokenizer: Any = None
    eos_ids: frozenset[int] = frozenset()
    max_batch: int = 8
    max_length: int = 1 << 30
    draft_max_length: int | None = None
    draft_weights: str = "auto"
    draft_layers: int | None = None
    draft_vocab: int | None = None
    draft_confidence: float = 0.0
    draft_tree: str | None = None
    draft_costs: Costs | None = None
    cross_vocab: str = "auto"
    draft_corpus: Sequence[Sequence[int]] = ()
    target: CachedLM | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def allow_pickle(self) -> bool:
        return bool(self.model_options.get("allow_pickle"))

    def loaded_target(self, name: str, argument: str) -> CachedLM:
        """The target, for a drafter of trained heads.

        Raises:
            OptionError: no folder was named, or there is no loaded target.
        """
        if not argument:
            raise OptionError(f"drafter {name!r} needs a folder with its weights, as in {name}:FOLDER")
        if self.target is None:
            raise OptionError(f"drafter {name!r} reads the target's hidden states: give it to load with a target")
        return self.target

    @staticmethod
    def refuse_argument(name: str, argument: str) -> None:
        if argument:
            raise OptionError(f"drafter {name!r} takes no argument, but was given {argument!r}")
