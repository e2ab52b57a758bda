"""Test doubles with a known law: targets without a network, scripted drafters, a toy tokenizer.

The targets keep the same contract as a real one and check it: every row holds the tokens it has been fed, lengths are
absolute, the root goes to the slot at the row's length, and a position at or above `max_length` is an error. So an
engine that mishandles its cache fails here with a sentence instead of a wrong text.

    target = TableTarget([[0.5, 0.5], [0.9, 0.1]])     # laws by last token
    drafter = WrongAt(target, 1)                        # the target's argmax, except at draft position 1
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .sampling import penalise
from .types import EMPTY_DRAFT, Draft, DraftRequest, Drawn, Probs, TargetOutput
from .verify.law import Prefix, PrefixLaw, row_of
from .verify.proposers import tree_of


@dataclass
class _Row:
    tokens: list[int] = field(default_factory=list)
    scored: tuple[int, Draft] | None = None  # root and draft of the last `score`, until `keep`
    busy: bool = False


class FnTarget:
    """A target whose logits are a pure function of the whole prefix.

    Args:
        logits: prefix (tuple of ids) -> `[V]`.
        vocab_size: V; None asks the function once, with the prefix (0,).
        max_length: positions at or above it are refused.
        max_rows: how many rows may be open at once; None is unlimited.
        feature_width: F of the features, or 0 for none. Column 0 holds the position, column 1 the token there.

    Counters: num_score_calls, num_prefill_calls, num_fed_tokens (prompt tokens not found in a row, roots and nodes).
    `scored` logs the rows, roots and drafts of every `score`.

    Raises:
        AssertionError: the caller broke the contract of `interfaces.Target`.
    """

    def __init__(
        self,
        logits: Callable[[Prefix], Tensor | Sequence[float]],
        vocab_size: int | None = None,
        *,
        max_length: int = 1 << 20,
        max_rows: int | None = None,
        feature_width: int = 0,
        dtype: torch.dtype = torch.float32,
    ):
        self._logits = logits
        self.dtype = dtype
        self.vocab_size = len(logits((0,))) if vocab_size is None else vocab_size
        self.max_length, self.max_rows, self.feature_width = max_length, max_rows, feature_width
        self.num_score_calls = self.num_prefill_calls = self.num_fed_tokens = 0
        self.scored: list[tuple[list[int], list[int], list[Draft]]] = []
        self._rows: list[_Row] = []

    def next_logits(self, prefix: Sequence[int]) -> Tensor:
        """`[V]` after `prefix`; the reference that a plain decoding loop would use."""
        return torch.as_tensor(self._logits(tuple(prefix))).to(self.dtype)

    def open(self, tokens: Sequence[int]) -> int:
        """The free row that shares the longest prefix with `tokens`, or a new one if none shares anything."""
        free = [row for row, state in enumerate(self._rows) if not state.busy]
        row = max(free, key=lambda i: _num_shared(self._rows[i].tokens, tokens), default=-1)
        if row < 0 or (not _num_shared(self._rows[row].tokens, tokens) and len(self._rows) != self.max_rows):
            assert len(self._rows) != self.max_rows, f"all {self.max_rows} rows are taken"
            self._rows.append(_Row())
            row = len(self._rows) - 1
        self._rows[row].busy = True
        return row

    @property
    def taps(self) -> tuple[int, ...]:
        """One layer, 0, where there are features."""
        return (0,) if self.feature_width else ()

    def features(self, row: int) -> Tensor | None:
        tokens = self._state(row).tokens
        return self._features(range(len(tokens)), tokens)

    def prefill(self, row: int, tokens: Sequence[int]) -> None:
        state = self._state(row)
        assert len(tokens) <= self.max_length, f"{len(tokens)} tokens do not fit max_length {self.max_length}"
        shared = _num_shared(state.tokens, tokens)
        state.tokens, state.scored = list(tokens), None
        self.num_prefill_calls += 1
        self.num_fed_tokens += len(tokens) - shared

    def score(self, rows: Sequence[int], roots: Sequence[int], drafts: Sequence[Draft]) -> list[TargetOutput]:
        assert len(rows) == len(roots) == len(drafts), "score needs one root and one draft per row"
        assert len(set(rows)) == len(rows), f"a row may be scored only once a call: {list(rows)}"
        self.num_score_calls += 1
        self.scored.append((list(rows), list(roots), list(drafts)))
        return [self._score(self._state(row), root, draft) for row, root, draft in zip(rows, roots, drafts)]

    def _score(self, state: _Row, root: int, draft: Draft) -> TargetOutput:
        slot = len(state.tokens)  # the root's position; a node's is `slot` + its depth
        positions = [slot, *(slot + depth for depth in draft.depths)]
        assert max(positions) < self.max_length, f"position {max(positions)} is not below {self.max_length}"
        tokens = [root, *draft.tokens]
        assert all(0 <= t < self.vocab_size for t in tokens), f"ids must be below {self.vocab_size}: {tokens}"
        state.scored = (root, draft)
        self.num_fed_tokens += len(tokens)
        paths = [[draft.tokens[i] for i in draft.path(node)] for node in range(-1, draft.num_nodes)]
        logits = torch.stack([self.next_logits([*state.tokens, root, *path]) for path in paths])
        return TargetOutput(logits, self._features(positions, tokens))

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        state = self._state(row)
        assert state.scored is not None, "keep without a score before it"
        root, draft = state.scored
        assert length == len(state.tokens) + 1, f"the root ends position {len(state.tokens) + 1}, not {length}"
        parents = [-1, *path[:-1]] if path else []
        assert [draft.parents[node] for node in path] == parents, f"{list(path)} is not a path of {draft.parents}"
        state.tokens += [root, *(draft.tokens[node] for node in path)]
        state.scored = None

    def free(self, row: int) -> None:
        state = self._state(row)
        state.busy, state.scored = False, None

    @property
    def num_busy(self) -> int:
        """Rows in use; 0 once everything has been given back."""
        return sum(state.busy for state in self._rows)

    def held(self, row: int) -> list[int]:
        """What a row holds (a freed row keeps its content until it is taken again)."""
        return list(self._rows[row].tokens)

    def _state(self, row: int) -> _Row:
        assert 0 <= row < len(self._rows) and self._rows[row].busy, f"row {row} is not open"
        return self._rows[row]

    def _features(self, positions: Sequence[int], tokens: Sequence[int]) -> Tensor | None:
        if not self.feature_width:
            return None
        features = torch.zeros(len(tokens), self.feature_width)
        features[:, 0] = torch.tensor(positions, dtype=torch.float32)
        features[:, 1:2] = torch.tensor(tokens, dtype=torch.float32)[:, None]
        return features


def _num_shared(held: Sequence[int], tokens: Sequence[int]) -> int:
    count = 0
    for a, b in zip(held, tokens):
        if a != b:
            break
        count += 1
    return count


class TableTarget(FnTarget):
    """A target with a known law; logits are log p, minus infinity where p is 0.

    Args:
        law: `[V]` for one law everywhere, `[V, V]` for a law by last token, or a function prefix -> `[V]`.
        options: as for `FnTarget`.
    """

    def __init__(self, law: PrefixLaw | Tensor | Sequence[float] | Sequence[Sequence[float]], **options: object):
        self.law = prefix_law(law)
        super().__init__(lambda prefix: row_of(self.law, prefix).to_dense(0).log(), **options)  # type: ignore[arg-type]


class ChainTarget(FnTarget):
    """Logits 10 for `following[last token]` and 0 elsewhere."""

    def __init__(self, following: Mapping[int, int] | Sequence[int], vocab_size: int, **options: object):
        def logits(prefix: Prefix) -> Tensor:
            row = torch.zeros(vocab_size)
            row[following[prefix[-1]]] = 10
            return row

        super().__init__(logits, vocab_size, **options)  # type: ignore[arg-type]


def prefix_law(law: PrefixLaw | Tensor | Sequence[float] | Sequence[Sequence[float]]) -> PrefixLaw:
    """A function of the prefix from `[V]` (one law), `[V, V]` (by last token) or a function, which stays as it is."""
    if callable(law):
        return law
    table = law if isinstance(law, Tensor) else torch.tensor(law, dtype=torch.float64)
    return (lambda prefix: table) if table.dim() == 1 else (lambda prefix: table[prefix[-1]])


class RandomTable:
    """A random law `[V]` in float64 for every prefix: the same for the same seed and prefix, on any machine.

    Args:
        zeros: the chance that a token has probability 0 (one token always keeps some).
    """

    def __init__(self, vocab_size: int, seed: int, zeros: float = 0.0):
        self.vocab_size, self.seed, self.zeros = vocab_size, seed, zeros
        self._known: dict[Prefix, Tensor] = {}

    def __call__(self, prefix: Prefix) -> Tensor:
        if prefix not in self._known:
            chance = random.Random(f"{self.seed}/{prefix}")
            weights = [chance.random() * (chance.random() >= self.zeros) for _ in range(self.vocab_size)]
            weights[chance.randrange(self.vocab_size)] += 0.1
            row = torch.tensor(weights, dtype=torch.float64)
            self._known[prefix] = row / row.sum()
        return self._known[prefix]


class _Scripted:
    """A drafter for one sequence at a time. `requests` logs snapshots of what was asked, `released` the ended ids."""

    name = "test"

    def __init__(self, num_tokens: int | None = None):
        """num_tokens: K, the longest draft; None drafts as many as allowed."""
        self.num_tokens = num_tokens
        self.requests: list[DraftRequest] = []
        self.released: list[int] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        snapshots = [replace(request, tokens=tuple(request.tokens)) for request in requests]
        self.requests += snapshots
        return [self._draft(request, self._budget(request)) for request in snapshots]

    def release(self, sequence_id: int) -> None:
        self.released.append(sequence_id)

    def _budget(self, request: DraftRequest) -> int:
        return request.max_nodes if self.num_tokens is None else min(request.max_nodes, self.num_tokens)

    def _draft(self, request: DraftRequest, budget: int) -> Draft:
        raise NotImplementedError


class SilentDrafter(_Scripted):
    """Never proposes anything."""

    def _draft(self, request: DraftRequest, budget: int) -> Draft:
        return EMPTY_DRAFT


class OracleDrafter(_Scripted):
    """Proposes what the target would choose greedily, with the request's penalties, bias and bans."""

    wrong: Callable[[int], bool] = staticmethod(lambda position: False)

    def __init__(self, target: FnTarget, num_tokens: int | None = None):
        super().__init__(num_tokens)
        self.target = target

    def _draft(self, request: DraftRequest, budget: int) -> Draft:
        right: list[int] = []
        for _ in range(budget):
            tokens = [*request.tokens, *right]
            logits = self.target.next_logits(tokens)[None]
            right.append(int(penalise(logits, request.params, tokens, request.num_prompt).argmax()))
        size = self.target.vocab_size
        return Draft.chain([(t + 1) % size if self.wrong(i) else t for i, t in enumerate(right)])


class WrongAt(OracleDrafter):
    """The oracle, except at one draft position (from 0), where it names the next id instead."""

    def __init__(self, target: FnTarget, position: int, num_tokens: int | None = None):
        super().__init__(target, num_tokens)
        self.wrong = lambda i: i == position


class AlwaysWrong(OracleDrafter):
    """Never what the target would choose."""

    wrong = staticmethod(lambda position: True)


class ScriptDrafter(_Scripted):
    """Proposes `rounds[i]` (tokens, or a whole `Draft`) in a sequence's round i, cut to its budget; then nothing."""

    def __init__(self, rounds: Sequence[Sequence[int] | Draft]):
        super().__init__()
        self.rounds = rounds
        self._round_of: dict[int, int] = {}

    def _draft(self, request: DraftRequest, budget: int) -> Draft:
        index = self._round_of.get(request.id, 0)
        self._round_of[request.id] = index + 1
        if index >= len(self.rounds):
            return EMPTY_DRAFT
        script = self.rounds[index]
        draft = script if isinstance(script, Draft) else Draft.chain(script)
        return Draft(draft.tokens[:budget], draft.parents[:budget], draft.probs, draft.drawn)


class LawDrafter(_Scripted):
    """Draws chains or trees from a law of its own and states it truly.

    Args:
        law: as for `TableTarget`.
        top: draw from the `top` most likely tokens only, and say so (sparse q); 0 is off.
        fixed: propose the most likely token instead of drawing, as a point mass.
        drawn: how siblings are drawn, as in `Draft`, if not independently.
        parents: the shape of a tree, cut to the budget; None drafts chains.
    """

    def __init__(
        self,
        law: PrefixLaw | Tensor | Sequence[float] | Sequence[Sequence[float]],
        num_tokens: int | None = None,
        *,
        top: int = 0,
        fixed: bool = False,
        drawn: Drawn = "independent",
        parents: Sequence[int] | None = None,
    ):
        super().__init__(num_tokens)
        self.law, self.top = prefix_law(law), top
        self.drawn: Drawn = "fixed" if fixed else drawn
        self.parents = parents

    def _draft(self, request: DraftRequest, budget: int) -> Draft:
        parents = range(-1, budget - 1) if self.parents is None else tuple(self.parents[:budget])
        return tree_of(self._row, parents, self.drawn)(tuple(request.tokens), request.generator)

    def _row(self, prefix: Prefix) -> Probs:
        row = row_of(self.law, prefix)
        if not self.top:
            return row
        values, ids = row.to_dense(0).topk(min(self.top, row.vocab_size))
        return Probs((values / values.sum())[None], ids[None], row.vocab_size)


class StatingDrafter(LawDrafter):
    """Says of every node how likely it is by its own law, drawn or not, as an adaptive budget asks."""

    def _draft(self, request: DraftRequest, budget: int) -> Draft:
        draft = super()._draft(request, budget)
        chances: list[float] = []
        for node, parent in enumerate(draft.parents):
            row = self._row((*request.tokens, *(draft.tokens[i] for i in draft.path(node)[:-1])))
            chances.append(row.prob(0, draft.tokens[node]) * (chances[parent] if parent >= 0 else 1.0))
        return replace(draft, survival=tuple(chances))


class ByteTokenizer:
    """One token per UTF-8 byte, and id 256 for the end of the text.

    Like Hugging Face's byte-level decoders, an incomplete character decodes to U+FFFD.
    """

    vocab_size = 257
    eos_token_id = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Ids beyond the bytes have no text."""
        return bytes(i for i in ids if i < 256).decode(errors="replace")
