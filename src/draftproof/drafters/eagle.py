"""EAGLE drafts chains from the target's own hidden states, with a cache of its own (2401.15077, 2503.01840).

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

from .. import sampling
from ..errors import ModelError, VocabularyError
from ..models.cached_lm import common_prefix
from ..models.masks import Block
from ..models.slots import SlotStore
from ..nets.eagle import EagleNet
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs
from .context import DraftContext

_CHUNK = 512  # pairs of one prompt per pass


class EagleDrafter:
    """Chains: greedy at temperature 0, otherwise each token drawn from the network's own processed law, which is q.

    Args:
        net: the network, in the dtype to compute in.
        taps: the target layers it reads, ascending.
        vocab_size: V of the target; q has this width.
        embed: tokens `[n]` to embeddings `[n, H]`.
        output: what the output layer reads `[n, H]` to logits `[n, D]`.
        target_ids: the target's id of each of the D outputs, int64 `[D]`, or None where they are the same.
        num_rows: at most this many sequences at a time.
        max_length: longer texts get empty drafts.
        eos_ids: drafting a sequence stops after one of these was drawn (it stays in the draft).
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
        name: str = "eagle",
    ):
        self.name = name
        self.net = net
        self.taps = tuple(taps)
        self._vocab_size = vocab_size
        self._embed, self._output = embed, output
        self._target_ids = target_ids
        self._max_length = max_length
        self._eos_ids = eos_ids
        self._dtype, self._device = next((p.dtype, p.device) for p in net.parameters())
        config = net.config
        self._cache = SlotStore(config.num_layers, config.num_kv_heads, config.head_dim, self._dtype, self._device)
        self._rows: dict[int, int] = {}
        self._read: list[list[int]] = [[] for _ in range(num_rows)]  # by row: tokens whose pairs are in the cache

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """All requests together: one pass over what is new, then one per further position.

        A text of one token has no feature yet, so it gets an empty draft.
        """
        drawn: dict[int, list[int]] = {r.id: [] for r in requests}
        laws: dict[int, list[Probs]] = {r.id: [] for r in requests}
        active = [r for r in requests if r.max_nodes > 0 and 1 < len(r.tokens) <= self._max_length]
        results = self._catch_up(active) if active else None
        while results is not None:
            logits = self._output(self.net.hidden(results))
            for i, request in enumerate(active):
                law = self._law(logits[i : i + 1], request, drawn[request.id])
                drawn[request.id].append(sampling.draw(law, 0, request.generator, "draft"))
                laws[request.id].append(law)
            going = [i for i, r in enumerate(active) if self._goes_on(r, drawn[r.id])]
            active = [active[i] for i in going]
            blocks = [Block(self._rows[r.id], len(r.tokens) + len(drawn[r.id]) - 2, drawn[r.id][-1:]) for r in active]
            results = self._pass(blocks, self.net.carried(results[going])) if active else None
        return [_draft(r, drawn[r.id], laws[r.id]) for r in requests]

    def release(self, sequence_id: int) -> None:
        self._rows.pop(sequence_id, None)

    def _goes_on(self, request: DraftRequest, drawn: Sequence[int]) -> bool:
        """Whether another token may be drafted; every drawn token stays, so the output's law cannot depend on it."""
        room = len(request.tokens) + len(drawn) <= self._max_length
        return len(drawn) < request.max_nodes and room and drawn[-1] not in self._eos_ids

    def _law(self, logits: Tensor, request: DraftRequest, drawn: Sequence[int]) -> Probs:
        tokens = (*request.tokens, *drawn) if request.params.needs_history else ()
        return sampling.reduced_probs(
            logits, self._target_ids, self._vocab_size, request.params, tokens, request.num_prompt
        )

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
        """Pairs of all rows as one flat batch: features `[T, H]` beside the blocks' tokens; results `[T, H]`."""
        ids = torch.tensor([token for block in blocks for token in block.tokens], device=self._device)
        positions = [block.start + depth for block in blocks for depth in block.depths()]
        ends = [block.start + len(block.tokens) for block in blocks]
        self._cache.reserve(max(block.row for block in blocks) + 1, max(ends))
        masks = [self._mask(block) for block in blocks]

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed, first = [], 0
            for block, end, mask in zip(blocks, ends, masks):
                last = first + len(block.tokens)
                keys, values = self._cache.row(block.row)[number]
                keys[:, block.start : end] = k[first:last].transpose(0, 1)
                values[:, block.start : end] = v[first:last].transpose(0, 1)
                queries = q[first:last].transpose(0, 1)[None]
                past = keys[None, :, :end], values[None, :, :end]
                out = scaled_dot_product_attention(queries, *past, attn_mask=mask, enable_gqa=True)
                mixed.append(out[0].transpose(0, 1))
                first = last
            return torch.cat(mixed)

        return self.net(self._embed(ids), features, torch.tensor(positions, device=self._device), attend)

    def _mask(self, block: Block) -> Tensor:
        """bool `[n, S]`: each pair sees the row's past, its ancestors in the block and itself."""
        past = torch.ones(len(block.tokens), block.start, dtype=torch.bool)
        return torch.cat([past, block.sees()], dim=1).to(self._device)


def _draft(request: DraftRequest, drawn: Sequence[int], laws: Sequence[Probs]) -> Draft:
    if not drawn:
        return EMPTY_DRAFT
    if request.params.greedy:
        return Draft.chain(drawn)
    return Draft.chain(drawn, Probs.stack(laws), "independent")


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
        name=f"eagle:{argument}",
    )
