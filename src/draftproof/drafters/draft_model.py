"""A small language model drafts a chain: greedy at temperature 0, otherwise sampled from its own processed law q.

q is what `sampling.probs` makes of the drafter's logits at the sequence's own settings, and exactly what the tokens
were drawn from, so verification is exact whatever the model is worth. The model's cache is brought to the
sequence's text by prefix comparison each round: nothing has to tell it what was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import sampling
from ..models.cached_lm import CachedLM
from ..types import Draft, DraftRequest, Probs
from .chains import Chains
from .context import DraftContext


class ModelDrafter:
    """Chains from a language model over (nearly) the target's vocabulary.

    Args:
        lm: the draft model, with a row for each sequence of the batch.
        vocab_size: V of the target; q has this width.
        common: only ids below this are proposed (`models.vocab.common_vocabulary`).
        kept: the token each logit belongs to, ascending, where the output layer was reduced
            (`models.shrink.keep_outputs`); q is zero elsewhere.
        eos_ids, confidence: when a chain ends, see `chains.Chains`.
        name: as the user wrote it.
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
    ):
        self.name = name
        self.lm = lm
        self._vocab_size = vocab_size
        self._common = common
        self._eos_ids = eos_ids
        self._confidence = confidence
        self._kept = None if kept is None else torch.tensor(kept)
        self._rows: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """All requests together: one pass of the draft model per position.

        A sequence longer than the draft model's window gets an empty draft.
        """
        chains = Chains(requests, self._eos_ids, self._confidence, self.lm.max_length)
        feeds = [self._unfed(request) for request in chains.active]
        while chains.active:
            chains.grow(self.lm.extend([self._rows[r.id] for r in chains.active], feeds), self._law)
            feeds = [chains.drawn(request)[-1:] for request in chains.active]
        return chains.drafts()

    def release(self, sequence_id: int) -> None:
        row = self._rows.pop(sequence_id, None)
        if row is not None:
            self.lm.free(row)

    def _unfed(self, request: DraftRequest) -> Sequence[int]:
        """Bring the row to a prefix of the text; returns what is left to feed, at least the last token."""
        tokens = request.tokens
        if request.id not in self._rows:
            self._rows[request.id] = self.lm.open(tokens[:-1])
        row = self._rows[request.id]
        self.lm.rewind(row, tokens[:-1])
        if len(tokens) - len(self.lm.held(row)) > request.max_nodes + 2:
            self.lm.prefill(row, tokens[:-1])
        return tokens[len(self.lm.held(row)) :]

    def _law(self, logits: Tensor, request: DraftRequest, drawn: Sequence[int]) -> Probs:
        """q over the target's ids from the draft model's logits `[1, V']`; ids it may not propose have none."""
        params = request.params
        tokens = (*request.tokens, *drawn) if params.needs_history else ()
        if self._kept is not None and not (params.needs_history or params.logit_bias or params.banned_tokens):
            law = sampling.probs(logits, params)
            ids = self._kept[None] if law.ids is None else self._kept[law.ids]
            return Probs(law.values, ids, self._vocab_size)
        return sampling.probs(self._spread(logits), params, tokens, request.num_prompt)

    def _spread(self, logits: Tensor) -> Tensor:
        """Logits `[1, V']` over the target's ids `[1, V]`; -inf for ids that are not shared or not kept."""
        if self._kept is not None:
            spread = logits.new_full((1, self._vocab_size), -torch.inf)
            spread[:, self._kept] = logits
            return spread
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
    from ..models.forwards import make_forward
    from ..models.hf import load_model
    from ..models.linear import available
    from ..models.vocab import common_vocabulary

    if not argument:
        raise OptionError("drafter 'model' needs a model, as in model:FOLDER")
    options, weights = dict(context.model_options), context.draft_weights
    if weights in ("auto", "int8"):
        options["dtype"] = None  # 8-bit products need no wider activations than the checkpoint's own
    loaded = load_model(argument, **options)
    if weights == "auto" and available("int8", loaded.model.dtype, loaded.model.device) is None:
        weights = "int8"
    num_outputs = loaded.vocab_size
    common = common_vocabulary(
        context.tokenizer, loaded.tokenizer, context.vocab_size, num_outputs, context.target_name, argument
    )
    kept = None
    if context.draft_layers is not None:
        shrink.keep_layers(loaded.model, context.draft_layers, argument)
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
        lm, context.vocab_size, common, context.eos_ids, f"model:{argument}", kept, context.draft_confidence
    )
