"""A small language model drafts a chain or a tree: its most likely tokens at temperature 0, otherwise tokens sampled
from its own processed law q, siblings without replacement.

q is what `sampling.probs` makes of the drafter's logits at the sequence's own settings, and exactly what the tokens
were drawn from, so verification is exact whatever the model is worth. The model's cache is brought to the
sequence's text by prefix comparison each round: nothing has to tell it what was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .. import sampling
from ..models.bridge import Bridge
from ..models.cached_lm import CachedLM
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs, SamplingParams
from . import growth
from .chains import Chains
from .context import DraftContext


@dataclass
class _Growth:
    """A sequence's tree while it grows.

    Fields:
        fed: the nodes that were fed to the draft model, in that order.
        laws: q at the root (-1) and at every node that was expanded, one row each.
    """

    request: DraftRequest
    plan: growth.Plan
    tree: growth.Growing = field(default_factory=growth.Growing)
    fed: list[int] = field(default_factory=list)
    laws: dict[int, Probs] = field(default_factory=dict)


@dataclass(frozen=True)
class _Grown:
    """A sequence's last tree: how long its text was, the draft, and the fed nodes' own ids and parents."""

    num_tokens: int
    draft: Draft
    tokens: list[int]
    parents: list[int]


class ModelDrafter:
    """Chains or trees from a language model over (nearly) the target's vocabulary.

    Args:
        lm: the draft model, with a row for each sequence of the batch.
        vocab_size: V of the target; q has this width.
        common: only ids below this are proposed (`models.vocab.common_vocabulary`).
        kept: the token each logit belongs to, ascending, where the output layer was reduced
            (`models.shrink.keep_outputs`); q is zero elsewhere.
        eos_ids, confidence: when a chain ends, see `chains.Chains`.
        name: as the user wrote it.
        tree: the kind of tree to draft, or None for chains.
        costs: let optimal trees have only as many nodes and layers as pay.
        bridge: to a draft model with another tokenizer. Its logits are those of the shared tokens, which `kept`
            names in the target's ids - unless `by_string`: then chains of its own most likely tokens are proposed
            as the text they are, point masses at any temperature.
    """

    def __init__(
        self,
        lm: CachedLM,
        vocab_size: int,
        common: int,
        eos_ids: frozenset[int] = frozenset(),
        name: str = "model",
        kept: list[int] | None = None,
        confidence: float = 0.0,
        tree: growth.TreeOption | None = None,
        costs: growth.Costs | None = None,
        bridge: Bridge | None = None,
        by_string: bool = False,
    ):
        self.name = name
        self.lm = lm
        self._vocab_size = vocab_size
        self._common = common
        self._eos_ids = eos_ids
        self._confidence = confidence
        self._kept = None if kept is None else torch.tensor(kept)
        self._tree = tree
        self._costs = costs
        self._bridge, self._by_string = bridge, by_string
        self._contexts: dict[int, Sequence[int]] = {}  # this round's texts in the draft model's ids
        self._rows: dict[int, int] = {}
        self._grown: dict[int, _Grown] = {}
        self._acceptance: dict[int, growth.RankAcceptance] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """All requests together: one pass of the draft model per position, or per layer of the trees.

        A sequence longer than the draft model's window gets an empty draft.
        """
        self._contexts = {r.id: self._own_text(r) for r in requests if r.max_nodes > 0}
        if self._tree is None:
            return self._chains(requests)
        return self._trees(requests, self._tree)

    def release(self, sequence_id: int) -> None:
        self._grown.pop(sequence_id, None)
        self._acceptance.pop(sequence_id, None)
        row = self._rows.pop(sequence_id, None)
        if row is not None:
            self.lm.free(row)

    def _chains(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        chains = Chains(
            requests,
            self._eos_ids,
            self._confidence,
            self.lm.max_length,
            lengths={r.id: len(self._contexts[r.id]) for r in requests if r.id in self._contexts},
            fixed=self._by_string,
        )
        feeds = [self._unfed(request) for request in chains.active]
        while chains.active:
            logits = self.lm.extend([self._rows[r.id] for r in chains.active], feeds)
            chains.grow(logits, self._next_law)
            feeds = [[self._own(chains.drawn(request)[-1])] for request in chains.active]
        drafts = chains.drafts()
        return [self._said(r, draft) for r, draft in zip(requests, drafts)] if self._by_string else drafts

    def _next_law(self, logits: Tensor, request: DraftRequest, drawn: Sequence[int]) -> Probs:
        if self._by_string:
            return Probs.one_hot(sampling.highest(logits)[1], logits.shape[-1])
        return self._law(logits, request, [drawn])

    def _said(self, request: DraftRequest, draft: Draft) -> Draft:
        """A chain of the draft model's own ids as the target's tokens of the same text."""
        if self._bridge is None or not draft.num_nodes:
            return draft
        said = self._bridge.to_target(request.tokens, self._contexts[request.id], list(draft.tokens))
        return Draft.chain(said[: request.max_nodes])

    def _trees(self, requests: Sequence[DraftRequest], option: growth.TreeOption) -> list[Draft]:
        """Layer by layer: each plan names the nodes to expand, one pass feeds them all, each gets its children."""
        growing = [self._start(request, option) for request in requests if self._fits(request)]
        active = [(g, expanded) for g in growing if (expanded := g.plan.expand(g.tree))]
        feeds = [self._unfed(g.request) for g, _ in active]
        while active:
            rows = [self._rows[g.request.id] for g, _ in active]
            logits = self._branch(rows, active) if not feeds else self.lm.extend(rows, feeds).split(1)
            feeds = []
            for (g, expanded), own in zip(active, logits):
                self._add_layer(g, expanded, own)
            active = [(g, expanded) for g, _ in active if (expanded := self._wanted(g))]
        drafts = {g.request.id: self._finish(g) for g in growing}
        return [drafts.get(request.id, EMPTY_DRAFT) for request in requests]

    def _start(self, request: DraftRequest, option: growth.TreeOption) -> _Growth:
        """What came of the sequence's last tree, and the plan for its next."""
        known = self._acceptance.setdefault(request.id, growth.RankAcceptance())
        if last := self._grown.pop(request.id, None):
            emitted = request.tokens[last.num_tokens :]
            known.observe(last.draft.tokens, last.draft.parents, emitted)
            self._settle(request, last)
        plan = growth.plan(
            option,
            request.max_nodes,
            drawn=not request.params.greedy,
            acceptance=known,
            costs=self._costs,
            confidence=self._confidence,
        )
        return _Growth(request, plan)

    def _settle(self, request: DraftRequest, last: _Grown) -> None:
        """Keep the nodes of the last tree that the text went through, so that they need not be fed again."""
        row, context = self._rows[request.id], self._contexts[request.id]
        held = len(self.lm.held(row))
        if list(context[:held]) != list(self.lm.held(row)):
            return
        path: list[int] = []
        for token in context[held:-1]:
            above = path[-1] if path else -1
            below = [i for i, parent in enumerate(last.parents) if parent == above and last.tokens[i] == token]
            if not below:
                break
            path.append(below[0])
        self.lm.settle(row, path, [last.tokens[i] for i in path])

    def _wanted(self, g: _Growth) -> dict[int, int]:
        """What the plan expands next, without nodes that end the text or reach beyond the draft model's window."""
        if len(self._contexts[g.request.id]) + len(g.tree.layers) - 1 > self.lm.max_length:
            return {}
        expanded = g.plan.expand(g.tree)
        return {node: num for node, num in expanded.items() if g.tree.tokens[node] not in self._eos_ids}

    def _branch(self, rows: Sequence[int], active: Sequence[tuple[_Growth, dict[int, int]]]) -> list[Tensor]:
        """Feed the nodes to expand; their logits `[n, V']` row by row."""
        done = [len(g.fed) for g, _ in active]
        for g, expanded in active:
            g.fed.extend(expanded)
        trees = [self._fed(g) for g, _ in active]
        return self.lm.branch(rows, [tokens for tokens, _ in trees], [parents for _, parents in trees], done)

    def _fed(self, g: _Growth) -> tuple[list[int], list[int]]:
        """The draft model's ids and the parents of the nodes that were fed, numbered in feeding order."""
        place = {-1: -1, **{node: i for i, node in enumerate(g.fed)}}
        return [self._own(g.tree.tokens[n]) for n in g.fed], [place[g.tree.parents[n]] for n in g.fed]

    def _add_layer(self, g: _Growth, expanded: dict[int, int], logits: Tensor) -> None:
        """Children of each expanded node from its logits `[n, V']`: the most likely, or drawn without replacement."""
        params, children = g.request.params, {}
        if params.greedy:
            params = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        law = self._law(logits, g.request, [g.tree.path(node) for node in expanded], params)
        for row, (node, num) in enumerate(expanded.items()):
            g.laws[node] = law.row(row)
            if g.request.params.greedy:
                children[node] = law.top(row, num)
                continue
            tokens = sampling.draw_distinct(law, row, num, g.request.generator, "draft")
            children[node] = list(zip(tokens, law.at(row, torch.tensor(tokens, device=logits.device)).tolist()))
        g.tree.add_layer(children)

    def _finish(self, g: _Growth) -> Draft:
        kept = g.plan.kept(g.tree)
        if not kept:
            return EMPTY_DRAFT
        tokens = tuple(g.tree.tokens[node] for node in kept)
        parents = growth.subtree(g.tree.parents, kept)
        if g.request.params.greedy:
            draft = Draft(tokens, parents)
        else:  # every node stays; the law of a node without children is never looked at
            rows = [g.laws.get(node, g.laws[-1]) for node in range(-1, max(parents) + 1)]
            draft = Draft(tokens, parents, Probs.stack(rows), "without_replacement")
        self._grown[g.request.id] = _Grown(len(g.request.tokens), draft, *self._fed(g))
        return draft

    def _own_text(self, request: DraftRequest) -> Sequence[int]:
        """The sequence's text in the draft model's ids; empty where it cannot be said."""
        return request.tokens if self._bridge is None else self._bridge.context(request.tokens)

    def _own(self, token: int) -> int:
        """The draft model's id of a token it drafted."""
        return token if self._bridge is None or self._by_string else self._bridge.to_draft(token)

    def _fits(self, request: DraftRequest) -> bool:
        """Whether anything can be drafted: there is room for it, and the draft model's window holds the text."""
        return request.max_nodes > 0 and 0 < len(self._contexts[request.id]) <= self.lm.max_length

    def _unfed(self, request: DraftRequest) -> Sequence[int]:
        """Bring the row to a prefix of the text; returns what is left to feed, at least the last token."""
        tokens = self._contexts[request.id]
        if request.id not in self._rows:
            self._rows[request.id] = self.lm.open(tokens[:-1])
        row = self._rows[request.id]
        self.lm.rewind(row, tokens[:-1])
        if len(tokens) - len(self.lm.held(row)) > request.max_nodes + 2:
            self.lm.prefill(row, tokens[:-1])
        return tokens[len(self.lm.held(row)) :]

    def _law(
        self,
        logits: Tensor,
        request: DraftRequest,
        paths: Sequence[Sequence[int]],
        params: SamplingParams | None = None,
    ) -> Probs:
        """q over the target's ids from the draft model's logits `[R, V']` after each path of drafted tokens; ids it
        may not propose have none.

        Args:
            params: instead of the request's own.
        """
        params = params or request.params
        logits = logits if self._kept is not None else self._spread(logits)
        if not params.needs_history:
            return sampling.reduced_probs(logits, self._kept, self._vocab_size, params)
        texts = [(*request.tokens, *path) for path in paths]
        return Probs.stack(
            [
                sampling.reduced_probs(row, self._kept, self._vocab_size, params, text, request.num_prompt)
                for row, text in zip(logits.split(1), texts)
            ]
        )

    def _spread(self, logits: Tensor) -> Tensor:
        """Logits `[R, V']` over the target's ids `[R, V]`; -inf for ids that are not shared."""
        if self._common == self._vocab_size == logits.shape[-1]:
            return logits
        if logits.shape[-1] < self._vocab_size:
            logits = torch.nn.functional.pad(logits, (0, self._vocab_size - logits.shape[-1]))
        logits = logits[:, : self._vocab_size].clone()
        logits[:, self._common :] = -torch.inf
        return logits


def build(argument: str, context: DraftContext) -> ModelDrafter:
    """`model:ID`: a folder, a known or hub name, or a .gguf file.

    Raises:
        OptionError: no ID. ModelError: the model cannot be loaded. VocabularyError: another vocabulary.
    """
    import warnings

    from ..errors import OptionError
    from ..models import shrink
    from ..models.bridge import find_bridge
    from ..models.forwards import make_forward
    from ..models.hf import load_model
    from ..models.linear import available

    if not argument:
        raise OptionError("drafter 'model' needs a model, as in model:FOLDER")
    options, weights = dict(context.model_options), context.draft_weights
    if weights in ("auto", "int8", "int4"):
        options["dtype"] = None  # such products need no wider activations than the checkpoint's own
    loaded = load_model(argument, **options)
    if weights == "auto":
        found = (w for w in ("int4", "int8") if not available(w, loaded.model.dtype, loaded.model.device))
        weights = next(found, "auto")
    num_outputs = loaded.vocab_size
    common, bridge, by_string = find_bridge(
        context.tokenizer,
        loaded.tokenizer,
        context.vocab_size,
        num_outputs,
        context.target_name,
        argument,
        context.cross_vocab,
    )
    tree = growth.TreeOption.parse(context.draft_tree)
    if by_string and tree is not None:
        raise OptionError(f"{argument} drafts by matching strings, which makes chains: leave draft_tree out")
    if bridge is not None and context.draft_vocab is not None:
        raise OptionError(f"draft_vocab needs a drafter with the target's own vocabulary, which {argument} has not")
    kept = None
    if context.draft_layers is not None:
        shrink.keep_layers(loaded.model, context.draft_layers, argument)
    if bridge is not None and not by_string:
        kept = bridge.target_ids
        shrink.keep_outputs(loaded.model, bridge.draft_ids)
    if context.draft_vocab is not None:
        if not 1 <= context.draft_vocab <= common:
            raise OptionError(f"draft_vocab must be a whole number from 1 to {common}, not {context.draft_vocab!r}")
        kept = shrink.frequent_ids(context.draft_vocab, common, context.draft_corpus, context.eos_ids)
        shrink.keep_outputs(loaded.model, kept)
    forward = make_forward(loaded, weights=weights, bitwise=False)
    lm = CachedLM(forward, context.max_batch, context.draft_max_length)
    if lm.max_length < context.max_length:
        warnings.warn(
            f"the drafter {argument} sees {lm.max_length} positions, the target {context.max_length}: "
            f"longer texts go on without drafts",
            stacklevel=2,
        )
    return ModelDrafter(
        lm,
        context.vocab_size,
        common,
        frozenset(loaded.eos_token_ids) if by_string else context.eos_ids,
        f"model:{argument}",
        kept,
        context.draft_confidence,
        tree,
        context.draft_costs,
        bridge,
        by_string,
    )
