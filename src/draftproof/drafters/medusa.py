"""Medusa's heads draft from the target's last hidden state alone (2401.10774): no cache, one small pass a round.

Given the text, the heads' laws do not depend on each other's tokens, so a chain drawn head by head has a known q: the
product of their processed laws. A tree of their most likely tokens is fixed by the text, so its children are point
masses, exact at every temperature (algorithm: the paper's sparse tree from measured accuracies).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import sampling
from ..errors import ModelError, OptionError, VocabularyError
from ..nets.medusa import Choice, MedusaNet
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs
from .context import DraftContext
from .law import law


class MedusaDrafter:
    """Chains or a static tree from Medusa heads.

    Args:
        net: the heads, in the target's dtype.
        tap: the number of the target's layers, which names its last hidden state.
        vocab_size: V of the target; q has this width.
        choices: the tree, parents before their children; empty drafts chains, greedy at temperature 0 and drawn from
            the heads' processed laws above it.
        target_ids: the target's id of each output, int64 `[D]`, or None where they are the same.
        name: as the user wrote it.
    """

    def __init__(
        self,
        net: MedusaNet,
        tap: int,
        vocab_size: int,
        *,
        choices: Sequence[Choice] = (),
        target_ids: Tensor | None = None,
        name: str = "medusa",
    ):
        self.name = name
        self.net = net
        self.taps = (tap,)
        self.choices = list(choices)
        self._parents = _parents(self.choices, net.config.num_heads)
        self._vocab_size = vocab_size
        self._target_ids = target_ids

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A text of one token has no hidden state yet, so it gets an empty draft."""
        active = [r for r in requests if r.max_nodes > 0 and len(r.tokens) > 1]
        if not active:
            return [EMPTY_DRAFT] * len(requests)
        states = torch.cat([r.states(self.taps, len(r.tokens) - 2) for r in active])
        logits = self.net(states, max(r.max_nodes for r in active))
        make = self._tree if self.choices else self._chain
        drafts = {r.id: make(r, [head[i : i + 1] for head in logits]) for i, r in enumerate(active)}
        return [drafts.get(r.id, EMPTY_DRAFT) for r in requests]

    def release(self, sequence_id: int) -> None:
        pass

    def _chain(self, request: DraftRequest, logits: Sequence[Tensor]) -> Draft:
        """logits: by head, `[1, D]`."""
        drawn: list[int] = []
        laws: list[Probs] = []
        for head in logits[: request.max_nodes]:
            laws.append(law(head, self._target_ids, self._vocab_size, request, [drawn]))
            drawn.append(sampling.draw(laws[-1], 0, request.generator, "draft"))
        if request.params.greedy:
            return Draft.chain(drawn)
        return Draft.chain(drawn, Probs.stack(laws), "independent")

    def _tree(self, request: DraftRequest, logits: Sequence[Tensor]) -> Draft:
        """The first `max_nodes` choices, filled with each head's most likely tokens."""
        choices = self.choices[: request.max_nodes]
        width = min(logits[0].shape[-1], max(max(choice) for choice in choices) + 1)
        ranked = [head[0].topk(width).indices for head in logits]
        if self._target_ids is not None:
            ranked = [self._target_ids[ids] for ids in ranked]
        ids = [head.tolist() for head in ranked]
        return Draft(tuple(ids[len(c) - 1][c[-1]] for c in choices), self._parents[: len(choices)])


def _parents(choices: Sequence[Choice], num_heads: int) -> tuple[int, ...]:
    """Each choice's parent by index.

    Raises:
        OptionError: a choice comes before its parent, or twice, or is deeper than there are heads.
    """
    index: dict[Choice, int] = {(): -1}
    for number, choice in enumerate(choices):
        if len(choice) > num_heads:
            raise OptionError(f"a Medusa tree of {num_heads} heads is no deeper than that, unlike path {choice}")
        if not choice or choice in index or choice[:-1] not in index or min(choice) < 0:
            raise OptionError(f"a Medusa tree lists ranks by path, each path once and after its parent, not {choice}")
        index[choice] = number
    return tuple(index[choice[:-1]] for choice in choices)


def build(argument: str, context: DraftContext) -> MedusaDrafter:
    """`medusa:FOLDER`: Medusa heads in the original layout or vLLM's.

    Raises:
        OptionError: no folder, or no loaded target to read. ModelError: a checkpoint that cannot be loaded, or one for
        another target. VocabularyError: one for another vocabulary.
    """
    from pathlib import Path

    from ..models.forwards import draft_format, replace_linears
    from ..nets.medusa_files import read_medusa

    target = context.loaded_target("medusa", argument)
    forward = target.forward
    checkpoint = read_medusa(Path(argument).expanduser(), allow_pickle=context.allow_pickle)
    config, ids = checkpoint.config, checkpoint.target_ids()
    if config.hidden_size != forward.hidden_size:
        raise ModelError(
            f"{argument} reads hidden states of width {config.hidden_size}, those of {context.target_name} have "
            f"{forward.hidden_size}; choose heads trained for this target"
        )
    if config.vocab_size != context.vocab_size:
        raise VocabularyError(
            f"{argument} is for a vocabulary of {config.vocab_size} tokens, {context.target_name} has "
            f"{context.vocab_size}; choose heads trained for this target"
        )
    net = checkpoint.net(argument).to(forward.device, forward.dtype)
    replace_linears(net, draft_format(context.draft_weights, forward), forward.dtype, forward.device)
    target.tap((forward.num_layers,))
    return MedusaDrafter(
        net,
        forward.num_layers,
        context.vocab_size,
        choices=checkpoint.choices,
        target_ids=None if ids is None else ids.to(forward.device),
        name=f"medusa:{argument}",
    )
