"""The records that travel between the parts; torch and the standard library only.

Letters for shapes: B rows, N nodes, Q queries, S cache slots, V vocabulary, W support width, F feature width,
A accepted. `tokens` always means ids of the target's vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from .errors import OptionError

if TYPE_CHECKING:
    from .interfaces import RandomSource

Drawn = Literal["fixed", "independent", "without_replacement"]
FinishReason = Literal["stop", "length", "abort"]


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


@dataclass(frozen=True)
class Probs:
    """R probability laws over the V ids of one vocabulary, dense or sparse.

    Fields:
        values: `[R, V]` dense or `[R, W]` sparse, float32 (float64 in the exact tests); rows sum to 1.
        ids: None (dense), or int64 `[R, W]`: the id of each value. Padding entries have value 0 and any id.
        vocab_size: V.
    """

    values: Tensor
    ids: Tensor | None
    vocab_size: int

    @staticmethod
    def dense(values: Tensor) -> Probs:
        """Wrap a `[R, V]` tensor."""
        return Probs(values, None, values.shape[-1])

    @staticmethod
    def one_hot(tokens: Tensor | Sequence[int], vocab_size: int) -> Probs:
        """R point masses; `tokens` has shape `[R]`."""
        ids = torch.as_tensor(tokens, dtype=torch.long).reshape(-1, 1)
        return Probs(torch.ones_like(ids, dtype=torch.float32), ids, vocab_size)

    @staticmethod
    def stack(parts: Sequence[Probs]) -> Probs:
        """Concatenate rows; sparse rows are padded to a common width, one dense part makes the whole dense."""
        if len(parts) == 1:
            return parts[0]
        if any(part.ids is None for part in parts):
            return Probs.dense(torch.cat([part.to_dense() for part in parts]))
        width = max(part.values.shape[1] for part in parts)

        def widen(tensor: Tensor) -> Tensor:
            return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]))

        ids = torch.cat([widen(part.ids) for part in parts if part.ids is not None])
        return Probs(torch.cat([widen(part.values) for part in parts]), ids, parts[0].vocab_size)

    def __len__(self) -> int:
        return self.values.shape[0]

    def prob(self, row: int, token: int) -> float:
        """The probability of one token."""
        if self.ids is None:
            return float(self.values[row, token])
        return float(self.values[row][self.ids[row] == token].sum())

    def at(self, row: int, ids: Tensor | None) -> Tensor:
        """The probabilities of the given distinct ids `[M]` (None: of all V ids), in their order."""
        values = self.values[row]
        if self.ids is None:
            return values if ids is None else values[ids]
        if ids is not None and ids.numel() * values.numel() <= 1 << 16:
            return ((ids[:, None] == self.ids[row]) * values).sum(-1)
        spread = self.to_dense(row)
        return spread if ids is None else spread[ids]

    def support(self, row: int) -> tuple[Tensor | None, Tensor]:
        """The ids (None: all V in order) that may have mass, and their probabilities."""
        return (None if self.ids is None else self.ids[row]), self.values[row]

    def to_dense(self, row: int | None = None) -> Tensor:
        """`[R, V]`, or `[V]` of one row."""
        if self.ids is None:
            return self.values if row is None else self.values[row]
        values, ids = (self.values, self.ids) if row is None else (self.values[row], self.ids[row])
        shape = (*values.shape[:-1], self.vocab_size)
        return values.new_zeros(shape).scatter_add_(-1, ids, values)


@dataclass(frozen=True)
class Draft:
    """A tree of guesses below the root (the last committed token).

    Fields:
        tokens: N ids.
        parents: N indices, parents[i] < i, -1 = the root.
        probs: the laws the tokens were drawn from: row 0 for the root's children, row i+1 for node i's children.
            Trailing rows of nodes without children may be left out. A tensor `[N+1, V]` is taken as dense.
            None for point masses.
        drawn: "fixed" - chosen without randomness (point masses); "independent" - each child of a node drawn from
            that node's law; "without_replacement" - siblings drawn one after another, earlier ones excluded.

    Raises:
        ValueError: parents out of order, or drawn tokens without the law they were drawn from.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probs: Probs | None = None
    drawn: Drawn = "fixed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        object.__setattr__(self, "parents", tuple(self.parents))
        if isinstance(self.probs, Tensor):
            object.__setattr__(self, "probs", Probs.dense(self.probs))
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"a draft needs one parent per token, not {len(self.parents)} for {len(self.tokens)}")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"the parent of node {node} must come before it (-1 = root), not {parent}")
        if self.drawn not in ("fixed", "independent", "without_replacement"):
            raise ValueError(f"drawn must be fixed, independent or without_replacement, not {self.drawn!r}")
        if self.drawn != "fixed" and self.tokens:
            if self.probs is None:
                raise ValueError(f"tokens drawn {self.drawn!r} need the probs they were drawn from")
            if len(self.probs) < max(self.parents) + 2:
                rows = max(self.parents) + 2
                raise ValueError(f"probs must have a row for every parent: {rows}, not {len(self.probs)}")

    @staticmethod
    def chain(tokens: Sequence[int], probs: Probs | Tensor | None = None, drawn: Drawn = "fixed") -> Draft:
        """Each token the only child of the one before it."""
        return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probs, drawn)  # type: ignore[arg-type]

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children in drafting order: entry 0 of the root, entry i+1 of node i."""
        children: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        return tuple(map(tuple, children))

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    @cached_property
    def ancestor_mask(self) -> Tensor:
        """bool `[N, N]`: entry (i, j) says that node j is node i or one of its ancestors."""
        mask = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask


EMPTY_DRAFT = Draft((), ())


@dataclass(frozen=True)
class DraftRequest:
    """What a drafter sees of one sequence.

    Fields:
        id: the sequence's id; the same in every round.
        tokens: prompt and output so far, never empty; read-only.
        num_prompt: how many of them are the prompt.
        params: the sequence's sampling parameters.
        generator: the source for the drafter's own draws.
        max_nodes: at most this many nodes may be proposed; may be 0.
        features: hidden states `[T, F]` of the target for positions from first_feature_pos on, or None.
    """

    id: int
    tokens: Sequence[int]
    num_prompt: int
    params: SamplingParams
    generator: RandomSource
    max_nodes: int
    features: Tensor | None = None
    first_feature_pos: int = 0


@dataclass(frozen=True)
class TargetOutput:
    """The target's view of one draft.

    Fields:
        logits: `[N+1, V]`; row 0 follows the root, row i+1 follows node i.
        features: `[N+1, F]` or None.
    """

    logits: Tensor
    features: Tensor | None = None


@dataclass(frozen=True)
class Verification:
    """What came of one draft: the accepted path (node indices, root to leaf) and one more token."""

    path: tuple[int, ...]
    next_token: int
    next_from: Literal["residual", "bonus"]
    num_drafted: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability under the target's unprocessed law, with the most likely alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class GenerationStats:
    """Counts and times of one sequence. Prefill is in total_seconds and prefill_seconds only."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    prefill_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, the residual or bonus token included; plain decoding has 1.0."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted; 0 where nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    def to_dict(self) -> dict[str, object]:
        return {
            "num_tokens": self.num_tokens,
            "num_rounds": self.num_rounds,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "accepted_at": list(self.accepted_at),
            "draft_seconds": self.draft_seconds,
            "verify_seconds": self.verify_seconds,
            "prefill_seconds": self.prefill_seconds,
            "total_seconds": self.total_seconds,
        }


@dataclass
class SequenceState:
    """One running sequence: the only mutable record, owned by the engine.

    While `row` is set, the target's row holds keys and values for exactly `len(tokens) - 1` positions.
    """

    id: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    generator: RandomSource
    row: int | None = None
    features: Tensor | None = None
    finish: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)

    @property
    def num_new(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True)
class GenerationResult:
    """A finished continuation. `prompt_index` and `index` (of the n continuations) say whose."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprob] | None
    stats: GenerationStats
    prompt_index: int = 0
    index: int = 0


@dataclass(frozen=True)
class Piece:
    """The text one token added, and whether the token was drafted and accepted."""

    text: str
    accepted: bool


@dataclass(frozen=True)
class StreamEvent:
    """What one round added to one sequence. The first `num_accepted` of `token_ids` were drafted.

    `finish_reason` is set on the last event; a final event may carry text only (held back until then).
    """

    text: str
    token_ids: tuple[int, ...]
    num_accepted: int
    pieces: tuple[Piece, ...] = ()
    finish_reason: FinishReason | None = None
    prompt_index: int = 0
    index: int = 0
