"""The records that travel between the parts; torch and the standard library only.

Letters for shapes: B rows, N nodes, Q queries, S cache slots, V vocabulary, W support width, F feature width,
A accepted. `tokens` always means ids of the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from .errors import DrafterError
from .params import SamplingParams
from .probs import Probs

if TYPE_CHECKING:
    from .interfaces import RandomSource

__all__ = [
    "EMPTY_DRAFT",
    "Draft",
    "DraftRequest",
    "Drawn",
    "FinishReason",
    "GenerationResult",
    "GenerationStats",
    "Piece",
    "Probs",
    "SamplingParams",
    "SequenceState",
    "StreamEvent",
    "TargetOutput",
    "TokenLogprob",
    "Verification",
]

Drawn = Literal["fixed", "independent", "without_replacement", "hybrid"]
FinishReason = Literal["stop", "length", "abort"]


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
            that node's law; "without_replacement" - siblings drawn one after another, earlier ones excluded; "hybrid" -
            the first child of each node drawn from that node's law with its siblings excluded, which were chosen
            without randomness.
        survival: the drafter's own estimate for each node that the text goes through it, never more than its parent's;
            empty where it does not say.

    Raises:
        ValueError: parents out of order, or drawn tokens without the law they were drawn from.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probs: Probs | None = None
    drawn: Drawn = "fixed"
    survival: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        object.__setattr__(self, "parents", tuple(self.parents))
        if isinstance(self.probs, Tensor):
            object.__setattr__(self, "probs", Probs.dense(self.probs))
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"a draft needs one parent per token, not {len(self.parents)} for {len(self.tokens)}")
        if self.survival and len(self.survival) != len(self.tokens):
            raise ValueError(f"survival needs a chance per token, not {len(self.survival)} for {len(self.tokens)}")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"the parent of node {node} must come before it (-1 = root), not {parent}")
        if self.drawn not in get_args(Drawn):
            raise ValueError(f"drawn must be one of {', '.join(get_args(Drawn))}, not {self.drawn!r}")
        if self.drawn != "fixed" and self.tokens:
            if self.probs is None:
                raise ValueError(f"tokens drawn {self.drawn!r} need the probs they were drawn from")
            if len(self.probs) < max(self.parents) + 2:
                rows = max(self.parents) + 2
                raise ValueError(f"probs must have a row for every parent: {rows}, not {len(self.probs)}")

    @staticmethod
    def chain(
        tokens: Sequence[int],
        probs: Probs | Tensor | None = None,
        drawn: Drawn = "fixed",
        survival: Sequence[float] = (),
    ) -> Draft:
        """Each token the only child of the one before it."""
        parents = tuple(range(-1, len(tokens) - 1))
        return Draft(tuple(tokens), parents, probs, drawn, tuple(survival))  # type: ignore[arg-type]

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
        max_paid: no more than this, where drafting takes passes of a model; None is max_nodes. For cascades, whose
            members draft for nothing or for pay.
        features: hidden states `[T, F]` of the target for positions from first_feature_pos on, or None. The engine
            gives those of all tokens but the last.
        taps: the target's layers whose input states lie side by side in a feature (their number: the last hidden
            state, normed); F is H for each.
        row: the sequence's row in the target's cache, which holds all but the last of tokens; None if it has none.
    """

    id: int
    tokens: Sequence[int]
    num_prompt: int
    params: SamplingParams
    generator: RandomSource
    max_nodes: int
    features: Tensor | None = None
    first_feature_pos: int = 0
    row: int | None = None
    taps: tuple[int, ...] = ()
    max_paid: int | None = None

    def states(self, layers: Sequence[int], first: int) -> Tensor:
        """The states of some layers, side by side, from position `first` on: `[T', len(layers) * H]`.

        Raises:
            DrafterError: the target did not record them.
        """
        if self.features is None or not set(layers) <= set(self.taps) or first < self.first_feature_pos:
            raise DrafterError(f"the target's states of layers {list(layers)} were not recorded from position {first}")
        states = self.features[first - self.first_feature_pos :]
        if tuple(layers) == self.taps:
            return states
        parts = states.chunk(len(self.taps), dim=-1)
        return torch.cat([parts[self.taps.index(layer)] for layer in layers], dim=-1)


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
    """Counts and times of one sequence; accepted_at and drafted_at count rounds by position. Prefill is in
    total_seconds and prefill_seconds only; the first token's time counts from queueing.
    """

    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
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
            "drafted_at": list(self.drafted_at),
            "draft_seconds": self.draft_seconds,
            "verify_seconds": self.verify_seconds,
            "prefill_seconds": self.prefill_seconds,
            "first_token_seconds": self.first_token_seconds,
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

    `finish_reason` and `stats` are set on the last event, which may carry text only (held back until then).
    """

    text: str
    token_ids: tuple[int, ...]
    num_accepted: int
    pieces: tuple[Piece, ...] = ()
    finish_reason: FinishReason | None = None
    stats: GenerationStats | None = None
    prompt_index: int = 0
    index: int = 0
