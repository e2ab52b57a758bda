"""What a user may ask of one generation: how tokens are chosen, and when to stop."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
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
        seed: same seed and settings, same tokens (whatever shares the batch, where passes are bit-exact: see
            `engine.config["bitwise"]`); None draws one from the system.
        logprobs: report the log-probability of each token and of this many most likely ones, from the target's
            logits before any processing; None is off.
        n: number of independent continuations of each prompt.
        caller: whose text this is; the drafter `suffix:shared` also guesses from earlier outputs of the same caller in
            the same engine. None shares with nobody.

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
    caller: str | None = None

    def __post_init__(self) -> None:
        for name, low, high in _FLOAT_RANGES:
            self._normalise(name, _number(getattr(self, name), low, high), f"a number from {low:g} to {high:g}")
        for name, lowest in _INT_RANGES:
            self._normalise(name, _whole(getattr(self, name), lowest), f"a whole number of at least {lowest}")
        for name in ("seed", "logprobs"):
            if getattr(self, name) is not None:
                self._normalise(name, _whole(getattr(self, name), 0), "None or a whole number of at least 0")
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) <= 0:
                raise OptionError(f"{name} must be above 0, not {getattr(self, name)!r}")
        if self.caller is not None and not (isinstance(self.caller, str) and self.caller):
            raise OptionError(f"caller must be None or a non-empty string, not {self.caller!r}")
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        texts = tuple(stop) if isinstance(stop, Iterable) else (None,)
        self._normalise(
            "stop", None if not all(t and isinstance(t, str) for t in texts) else texts, "non-empty strings"
        )
        for name in ("stop_token_ids", "banned_tokens"):
            self._normalise(name, _ids(getattr(self, name)), "token ids, whole numbers from 0")
        if not isinstance(self.logit_bias, Mapping) and self.logit_bias is not None:
            raise OptionError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r}")
        items = dict(self.logit_bias or {})
        ids = _ids(tuple(items))
        biases = [-math.inf if value == -math.inf else _number(value, -1e30, 1e30) for value in items.values()]
        valid = ids is not None and all(bias is not None for bias in biases)
        bias = dict(zip(ids or (), biases)) if valid else None
        self._normalise("logit_bias", bias, "a map from token ids to numbers of at most 1e30 in size, or -inf")

    def _normalise(self, name: str, value: object, expected: str) -> None:
        """Store a checked value in its plain form; None says that it was not as expected."""
        if value is None:
            raise OptionError(f"{name} must be {expected}, not {getattr(self, name)!r}")
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Whether the law depends on which tokens came before, beyond the model's own context."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _number(value: object, low: float, high: float) -> float | None:
    """A real number in the range as a float; None if it is none (numpy's numbers are, booleans are not)."""
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str):
        return None
    number = float(value)
    return number if low <= number <= high else None


def _whole(value: object, lowest: int) -> int | None:
    """A whole number of at least `lowest`; None if it is none."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    number = operator.index(value)
    return number if number >= lowest else None


def _ids(value: object) -> tuple[int, ...] | None:
    """Token ids as a tuple; one id alone is a tuple of one; None if something else is among them."""
    if value is None:
        return ()
    if isinstance(value, str) or not (isinstance(value, Iterable) or hasattr(value, "__index__")):
        return None
    ids = tuple(_whole(item, 0) for item in (value if isinstance(value, Iterable) else (value,)))
    return None if None in ids else ids  # type: ignore[return-value]


_FLOAT_RANGES = (
    ("temperature", 0.0, 1e6),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 1e6),
    ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
)
_INT_RANGES = (("top_k", 0), ("max_new_tokens", 1), ("n", 1))
