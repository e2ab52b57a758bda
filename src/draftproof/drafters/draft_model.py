"""A small language model drafts a chain or a tree: its most likely tokens at temperature 0, otherwise tokens sampled
from its own processed law q, siblings without replacement.

q is what `sampling.probs` makes of the drafter's logits at the sequence's own settings, and exactly what the tokens
were drawn from, so verification is exact whatever the model is worth. The model's cache is brought to the
sequence's text by prefix comparison each round: nothing has to tell it what was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import sampling
from ..models.bridge import Bridge
from ..models.cached_lm import CachedLM
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs, SamplingParams
from . import growth
from .chains import Chains
from .context import DraftContext
from .law import law
from .trees import Growth, Trees


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
        self._trees = None if tree is None else Trees(tree, self._law, eos_ids, confidence, costs)
        self._bridge, self._by_string = bridge, by_string
        self._contexts: dict[int, Sequence[int]] = {}  # this round's texts in the draft model's ids
        self._rows: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """All requests together: one pass of the draft model per position, or per layer of the trees.

        A sequence longer than the draft model's window gets an empty draft.
        """
        self._contexts = {r.id: self._own_text(r) for r in requests if r.max_nodes > 0}
        return self._chains(requests) if self._trees is None else self._grown(requests, self._trees)

    def shaped(self, tree: growth.TreeOption | None, costs: growth.Costs | None = None) -> ModelDrafter:
        """Another drafter over the same loaded model, of trees or (None) of chains."""
        kept = None if self._kept is None else self._kept.tolist()
        same = (self._vocab_size, self._common, self._eos_ids, self.name, kept, self._confidence)
        return ModelDrafter(self.lm, *same, tree, costs, self._bridge, self._by_string)

    def release(self, sequence_id: int) -> None:
        if self._trees is not None:
            self._trees.release(sequence_id)
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

    def _grown(self, requests: Sequence[DraftRequest], trees: Trees) -> list[Draft]:
        growing = []
        for request in requests:
            if room := self._room(request):
                if last := trees.last(request):
                    self._settle(request, last)
                growing.append(trees.start(request, room))
        trees.grow(growing, self._begin, self._branch)
        drafts = {g.request.id: g.draft for g in growing}
        return [drafts.get(request.id, EMPTY_DRAFT) for request in requests]

    def _settle(self, request: DraftRequest, last: Growth) -> None:
        """Keep the nodes of the last tree that the text went through, so that they need not be fed again."""
        row, context = self._rows[request.id], self._contexts[request.id]
        held = len(self.lm.held(row))
        if list(context[:held]) != list(self.lm.held(row)):
            return
        tokens, parents = self._fed(last), last.fed_parents()
        path: list[int] = []
        for token in context[held:-1]:
            above = path[-1] if path else -1
            below = [i for i, parent in enumerate(parents) if parent == above and tokens[i] == token]
            if not below:
                break
            path.append(below[0])
        self.lm.settle(row, path, [tokens[i] for i in path])

    def _begin(self, growing: Sequence[Growth]) -> Tensor:
        """Feed what is new of each text; logits `[B, V']` after it."""
        feeds = [self._unfed(g.request) for g in growing]
        return self.lm.extend([self._rows[g.request.id] for g in growing], feeds)

    def _branch(self, growing: Sequence[Growth]) -> list[Tensor]:
        """Feed the nodes to expand; their logits `[n, V']` tree by tree."""
        rows = [self._rows[g.request.id] for g in growing]
        parents = [g.fed_parents() for g in growing]
        return self.lm.branch(rows, [self._fed(g) for g in growing], parents, [g.num_done for g in growing])

    def _fed(self, g: Growth) -> list[int]:
        """The draft model's ids of the nodes that were fed."""
        return [self._own(token) for token in g.fed_tokens()]

    def _own_text(self, request: DraftRequest) -> Sequence[int]:
        """The sequence's text in the draft model's ids; empty where it cannot be said."""
        return request.tokens if self._bridge is None else self._bridge.context(request.tokens)

    def _own(self, token: int) -> int:
        """The draft model's id of a token it drafted."""
        return token if self._bridge is None or self._by_string else self._bridge.to_draft(token)

    def _room(self, request: DraftRequest) -> int:
        """How deep a tree may be: 0 where nothing can be drafted or the draft model's window does not hold the text."""
        size = len(self._contexts.get(request.id, ()))
        return max(0, self.lm.max_length - size + 1) if size else 0

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
        logits = logits if self._kept is not None else self._spread(logits)
        return law(logits, self._kept, self._vocab_size, request, paths, params)

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
    from ..models import shrink, slim
    from ..models.bridge import find_bridge
    from ..models.forwards import make_forward
    from ..models.hf import load_model
    from ..models.linear import choose

    if not argument:
        raise OptionError("drafter 'model' needs a model, as in model:FOLDER")
    options, weights = dict(context.model_options), context.draft_weights
    if weights in ("auto", "int8", "int4"):
        options["dtype"] = None  # such products need no wider activations than the checkpoint's own
    kept = None
    if slim.is_slim(argument):
        embedding = None if context.target is None else context.target.forward.embedding
        loaded, kept = slim.load_slim(argument, embedding, context.tokenizer, context.target_name)
        if context.draft_vocab is not None or context.draft_layers is not None:
            raise OptionError(f"{argument} has its own vocabulary and layers: leave draft_vocab and draft_layers out")
    else:
        loaded = load_model(argument, **options)
    weights = choose(weights, loaded.model.dtype, loaded.model.device, ("int4", "int8"))
    num_outputs = loaded.vocab_size if kept is None else loaded.model.get_input_embeddings().num_embeddings
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
    if bridge is not None and (context.draft_vocab is not None or kept is not None):
        raise OptionError(f"draft_vocab needs a drafter with the target's own vocabulary, which {argument} has not")
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
