"""What a user may ask of one generation: how tokens are chosen, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import OptionError


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop. The defaults are plain sampling from the model's own law.

    Args:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most likely tokens (ties at the border stay); 0 is off.
        top_p: keep the smallest set of most likely tokens whose mass reaches top_p (ties at its border stay); 1 is off.
        min_p: drop tokens less likely than min_p times the most likely; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output.
        presence_penalty, frequency_penalty: subtracted once, and per occurrence, for tokens of the output.
        logit_bias: added to the logits of the given token ids.
        banned_tokens: ids that never appear.
        max_new_tokens: exact budget of new tokens.
        stop: strings that end the text; the text ends before them.
        stop_token_ids: ids that end the text, besides the model's own end-of-text ids.
        ignore_eos: run through the model's own end-of-text ids.
        seed: same seed and settings, same tokens; None draws one from the system.
        logprobs: report the log-probability of each token and of this many most likely ones, from the target's
            logits before any processing; None is off.
        n: number of independent continuations of each prompt.

    Raises:
        OptionError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: tuple[int, ...] = ()
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "banned_tokens"):
            value = getattr(self, name)
            if isinstance(value, (str, int)):
                value = (value,)
            object.__setattr__(self, name, tuple(value or ()))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias or {}))
        for name, low, high in _FLOAT_RANGES:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
                raise OptionError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
        for name, lowest in _INT_RANGES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise OptionError(f"{name} must be a whole number of at least {lowest}, not {value!r}")
        for name, lowest in (("seed", 0), ("logprobs", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < lowest):
                raise OptionError(f"{name} must be None or a whole number of at least {lowest}, not {value!r}")
        if self.top_p <= 0:
            raise OptionError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        if self.repetition_penalty <= 0:
            raise OptionError(f"repetition_penalty must be above 0, not {self.repetition_penalty!r}")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise OptionError(f"stop must be non-empty strings, not {self.stop!r}")
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("banned_tokens", self.banned_tokens),
            ("logit_bias", tuple(self.logit_bias)),
        ):
            if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in ids):
                raise OptionError(f"{name} must name token ids (whole numbers from 0), not {ids!r}")
        for token, bias in self.logit_bias.items():
            if not isinstance(bias, (int, float)) or math.isnan(bias) or bias == math.inf:
                raise OptionError(f"logit_bias of token {token} must be a number below infinity, not {bias!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Whether the law depends on which tokens came before, beyond the model's own context."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


_FLOAT_RANGES = (
    ("temperature", 0.0, 1e6),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 1e6),
    ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
)
_INT_RANGES = (("top_k", 0), ("max_new_tokens", 1), ("n", 1))
