"""EAGLE drafts chains and trees from the target's own hidden states, with a cache of its own (2401.15077, 2406.16858,
2503.01840).

Each round the pairs (feature at j, token j+1) of all committed tokens are read, those of earlier rounds from the cache;
the last of them gives the first guess. From there on the network's own results stand for the features still unknown.
Pairs written while guessing are read again with the target's features once their tokens are committed, so the cache
never depends on what was guessed, and nothing has to tell it what was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..errors import ModelError, VocabularyError
from ..models.cached_lm import common_prefix
from ..models.masks import Block
from ..models.slots import SlotStore
from ..nets.eagle import EagleNet
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs, SamplingParams
from . import growth
from .chains import Chains
from .context import DraftContext
from .law import law
from .trees import Growth, Trees

_CHUNK = 512  # pairs of one prompt per pass


class EagleDrafter:
    """Greedy at temperature 0, otherwise each token drawn from the network's own processed law, which is q.

    Args:
        net: the network, in the dtype to compute in.
        taps: the target layers it reads, ascending.
        vocab_size: V of the target; q has this width.
        embed: tokens `[n]` to embeddings `[n, H]`.
        output: what the output layer reads `[n, H]` to logits `[n, D]`.
        target_ids: the target's id of each of the D outputs, int64 `[D]`, or None where they are the same.
        num_rows: at most this many sequences at a time.
        max_length: longer texts get empty drafts.
        eos_ids, confidence: when a chain ends, see `chains.Chains`.
        tree: the kind of tree to draft, or None for chains.
        costs: let optimal trees have only as many nodes and layers as pay.
        name: as the user wrote it.
    """

    def __init__(
        self,
        net: EagleNet,
        taps: Sequence[int],
        vocab_size: int,
        *,
        embed: Callable[[Tensor], Tensor],
        output: Callable[[Tensor], Tensor],
        target_ids: Tensor | None = None,
        num_rows: int = 8,
        max_length: int = 1 << 30,
        eos_ids: frozenset[int] = frozenset(),
        confidence: float = 0.0,
        tree: growth.TreeOption | None = None,
        costs: growth.Costs | None = None,
        name: str = "eagle",
    ):
        self.name = name
        self.net = net
        self.taps = tuple(taps)
        self._vocab_size = vocab_size
        self._embed, self._output = embed, output
        self._target_ids = target_ids
        self._max_length = max_length
        self._eos_ids, self._confidence = eos_ids, confidence
        self._trees = None if tree is None else Trees(tree, self._law, eos_ids, confidence, costs)
        self._results: dict[int, Tensor] = {}  # of this round's trees: of the text, then of each fed node, `[n, H]`
        self._dtype, self._device = next((p.dtype, p.device) for p in net.parameters())
        config = net.config
        self._cache = SlotStore(config.num_layers, config.num_kv_heads, config.head_dim, self._dtype, self._device)
        self._rows: dict[int, int] = {}
        self._read: list[list[int]] = [[] for _ in range(num_rows)]  # by row: tokens whose pairs are in the cache

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """All requests together: one pass over what is new, then one per further position, or layer of the trees.

        A text of one token has no feature yet, so it gets an empty draft.
        """
        return self._chains(requests) if self._trees is None else self._grown(requests, self._trees)

    def release(self, sequence_id: int) -> None:
        self._rows.pop(sequence_id, None)
        if self._trees is not None:
            self._trees.release(sequence_id)

    def _chains(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        lengths = {r.id: len(r.tokens) for r in requests if len(r.tokens) > 1}
        chains = Chains(requests, self._eos_ids, self._confidence, self._max_length, lengths=lengths)
        results = self._catch_up(chains.active) if chains.active else None
        while results is not None:
            asked = chains.active
            chains.grow(self._logits(results), lambda logits, r, drawn: self._law(logits, r, [drawn]))
            active = {request.id for request in chains.active}
            going = [i for i, request in enumerate(asked) if request.id in active]
            blocks = [
                Block(self._rows[r.id], len(r.tokens) + len(chains.drawn(r)) - 2, chains.drawn(r)[-1:])
                for r in chains.active
            ]
            results = self._pass(blocks, self.net.carried(results[going])) if blocks else None
        return chains.drafts()

    def _grown(self, requests: Sequence[DraftRequest], trees: Trees) -> list[Draft]:
        fitting = [r for r in requests if r.max_nodes > 0 and 1 < len(r.tokens) <= self._max_length]
        growing = [trees.start(r, self._max_length - len(r.tokens) + 1) for r in fitting]
        trees.grow(growing, self._begin, self._branch)
        self._results.clear()
        drafts = {g.request.id: g.draft for g in growing}
        return [drafts.get(request.id, EMPTY_DRAFT) for request in requests]

    def _begin(self, growing: Sequence[Growth]) -> Tensor:
        """Logits `[B, D]` after each text."""
        results = self._catch_up([g.request for g in growing])
        self._results = {g.request.id: own for g, own in zip(growing, results.split(1))}
        return self._logits(results)

    def _branch(self, growing: Sequence[Growth]) -> list[Tensor]:
        """Each node to expand as a pair with the result at its parent; logits `[n, D]` tree by tree."""
        blocks, features = [], []
        for g in growing:
            parents = g.fed_parents()
            start = len(g.request.tokens) - 1  # the first slot that no pair of the text has
            blocks.append(Block(self._rows[g.request.id], start, g.fed_tokens(), parents, g.num_done))
            above = torch.tensor(parents[g.num_done :], device=self._device) + 1
            features.append(self.net.carried(self._results[g.request.id][above]))
        sizes = [len(block.queries) for block in blocks]
        results = self._pass(blocks, torch.cat(features))
        for g, own in zip(growing, results.split(sizes)):
            self._results[g.request.id] = torch.cat([self._results[g.request.id], own])
        return list(self._logits(results).split(sizes))

    def _logits(self, results: Tensor) -> Tensor:
        return self._output(self.net.hidden(results))

    def _law(
        self,
        logits: Tensor,
        request: DraftRequest,
        paths: Sequence[Sequence[int]],
        params: SamplingParams | None = None,
    ) -> Probs:
        return law(logits, self._target_ids, self._vocab_size, request, paths, params)

    def _catch_up(self, requests: Sequence[DraftRequest]) -> Tensor:
        """Read every pair of committed tokens that the cache lacks, at least the last; its results `[B, H]`."""
        blocks, features = [], []
        for request in requests:
            row, tokens = self._row(request), request.tokens
            first = max(0, min(common_prefix(self._read[row], tokens) - 1, len(tokens) - 2))
            states = request.states(self.taps, first)
            while len(tokens) - 1 - first > _CHUNK:
                end = first + _CHUNK
                self._pass([Block(row, first, tokens[first + 1 : end + 1])], self._feature(states[:_CHUNK]))
                first, states = end, states[_CHUNK:]
            blocks.append(Block(row, first, tokens[first + 1 :]))
            features.append(self._feature(states))
            self._read[row] = list(tokens)
        ends = torch.tensor([len(block.tokens) for block in blocks]).cumsum(0) - 1
        return self._pass(blocks, torch.cat(features))[ends.to(self._device)]

    def _row(self, request: DraftRequest) -> int:
        """The sequence's row; a new sequence takes the free one that shares most with it."""
        if request.id not in self._rows:
            free = set(range(len(self._read))) - set(self._rows.values())
            if not free:
                raise ModelError(f"all {len(self._read)} rows of the drafter are in use: raise max_batch or wait")
            self._rows[request.id] = max(free, key=lambda row: common_prefix(self._read[row], request.tokens))
        return self._rows[request.id]

    def _feature(self, states: Tensor) -> Tensor:
        return self.net.feature(states.to(self._dtype))

    def _pass(self, blocks: Sequence[Block], features: Tensor) -> Tensor:
        """Pairs of all rows as one flat batch: features `[T, H]` beside the blocks' queries; results `[T, H]`."""
        ids = torch.tensor([token for block in blocks for token in block.queries], device=self._device)
        positions = [block.start + depth for block in blocks for depth in block.depths()[block.fed :]]
        ends = [block.start + len(block.tokens) for block in blocks]
        self._cache.reserve(max(block.row for block in blocks) + 1, max(ends))
        masks = [self._mask(block) for block in blocks]

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed, first = [], 0
            for block, end, mask in zip(blocks, ends, masks):
                last = first + len(block.queries)
                slots = slice(block.start + block.fed, end)
                keys, values = self._cache.row(block.row)[number]
                keys[:, slots] = k[first:last].transpose(0, 1)
                values[:, slots] = v[first:last].transpose(0, 1)
                queries = q[first:last].transpose(0, 1)[None]
                past = keys[None, :, :end], values[None, :, :end]
                out = scaled_dot_product_attention(queries, *past, attn_mask=mask, enable_gqa=True)
                mixed.append(out[0].transpose(0, 1))
                first = last
            return torch.cat(mixed)

        return self.net(self._embed(ids), features, torch.tensor(positions, device=self._device), attend)

    def _mask(self, block: Block) -> Tensor:
        """bool `[n, S]`: each query sees the row's past, its ancestors in the block and itself."""
        past = torch.ones(len(block.queries), block.start, dtype=torch.bool)
        return torch.cat([past, block.sees()[block.fed :]], dim=1).to(self._device)


def build(argument: str, context: DraftContext) -> EagleDrafter:
    """`eagle:FOLDER`: EAGLE-1, -2 or -3 in the original layout, or EAGLE-3 in the speculators layout.

    Raises:
        OptionError: no folder, or no loaded target to read. ModelError: a checkpoint that cannot be loaded, or one for
        another target. VocabularyError: one for another vocabulary.
    """
    from pathlib import Path

    from ..models.forwards import draft_format, replace_linears
    from ..nets.eagle import default_layers
    from ..nets.eagle_files import read_eagle

    target = context.loaded_target("eagle", argument)
    forward = target.forward
    checkpoint = read_eagle(Path(argument).expanduser(), allow_pickle=context.allow_pickle)
    config, ids = checkpoint.config, checkpoint.target_ids()
    if config.target_hidden_size != forward.hidden_size:
        raise ModelError(
            f"{argument} reads hidden states of width {config.target_hidden_size}, "
            f"those of {context.target_name} have {forward.hidden_size}; choose a head trained for this target"
        )
    if config.vocab_size != context.vocab_size:
        raise VocabularyError(
            f"{argument} is for a vocabulary of {config.vocab_size} tokens, "
            f"{context.target_name} has {context.vocab_size}; choose a head trained for this target"
        )
    if not (config.own_embedding and config.version == 3) and config.hidden_size != forward.hidden_size:
        raise ModelError(
            f"{argument} has hidden size {config.hidden_size} and takes the target's embeddings or output layer, "
            f"whose width is {forward.hidden_size}"
        )
    taps = config.feature_layers or default_layers(forward.num_layers)
    if config.version != 3:
        taps = (forward.num_layers,)
    elif not all(low < high for low, high in zip((-1, *taps), (*taps, forward.num_layers))):
        raise ModelError(
            f"{argument} reads layers {list(taps)}, which {context.target_name} with {forward.num_layers} layers "
            "does not have: set eagle_aux_hidden_state_layer_ids in its config"
        )
    net = checkpoint.net(argument).to(forward.device, forward.dtype)
    replace_linears(net, draft_format(context.draft_weights, forward), forward.dtype, forward.device)
    target.tap(taps)
    return EagleDrafter(
        net,
        taps,
        context.vocab_size,
        embed=net.embed_tokens or forward.embed,
        output=net.lm_head or forward.project,
        target_ids=None if ids is None else ids.to(forward.device),
        num_rows=context.max_batch,
        max_length=context.draft_max_length or context.max_length,
        eos_ids=context.eos_ids,
        confidence=context.draft_confidence,
        tree=growth.TreeOption.parse(context.draft_tree),
        costs=context.draft_costs,
        name=f"eagle:{argument}",
    )
