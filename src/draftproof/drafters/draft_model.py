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
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs
from .context import DraftContext


class ModelDrafter:
    """Chains from a language model over (nearly) the target's vocabulary.

    Args:
        lm: the draft model, with a row for each sequence of the batch.
        vocab_size: V of the target; q has this width.
        common: only ids below this are proposed (`models.vocab.common_vocabulary`).
        confidence: a greedy chain goes on only while the product of the draft model's own probabilities for its
            tokens is at least this; 0 always drafts to the budget. A stopping rule over the drafter's own law, and
            every drawn token stays, so the output's law cannot depend on it (a threshold policy as in SpecDec++,
            2405.19715, on the drafter's own confidence).
        kept: the token each logit belongs to, ascending, where the output layer was reduced
            (`models.shrink.keep_outputs`); q is zero elsewhere.
        eos_ids: drafting a sequence stops after one of these was drawn (it stays in the draft).
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
        drawn: dict[int, list[int]] = {r.id: [] for r in requests}
        laws: dict[int, list[Probs]] = {r.id: [] for r in requests}
        survival = dict.fromkeys(drawn, 1.0)
        active = [r for r in requests if r.max_nodes > 0 and len(r.tokens) <= self.lm.max_length]
        feeds = [self._unfed(r) for r in active]
        while active:
            logits = self.lm.extend([self._rows[r.id] for r in active], feeds)
            for request, probability in zip(active, self._confidences(logits, active)):
                survival[request.id] *= probability
            for i, request in enumerate(active):
                law = self._law(logits[i : i + 1], request, drawn[request.id])
                drawn[request.id].append(sampling.draw(law, 0, request.generator, "draft"))
                laws[request.id].append(law)
            active = [r for r in active if self._goes_on(r, drawn[r.id], survival[r.id])]
            feeds = [drawn[r.id][-1:] for r in active]
        return [self._draft(r, drawn[r.id], laws[r.id]) for r in requests]

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

    def _goes_on(self, request: DraftRequest, drawn: list[int], survival: float) -> bool:
        """Whether another token may be drafted. Looks at the draft's side only and keeps every drawn token: exact."""
        room = len(request.tokens) + len(drawn) <= self.lm.max_length
        worth = survival >= self._confidence
        return len(drawn) < request.max_nodes and room and worth and drawn[-1] not in self._eos_ids

    def _confidences(self, logits: Tensor, active: Sequence[DraftRequest]) -> list[float]:
        """The draft model's probability of its most likely token, for greedy requests; 1 for sampled ones."""
        if not self._confidence or not any(request.params.greedy for request in active):
            return [1.0] * len(active)
        scores = logits.float()
        top = (scores.amax(-1) - torch.logsumexp(scores, -1)).exp().tolist()
        return [p if request.params.greedy else 1.0 for p, request in zip(top, active)]

    def _law(self, logits: Tensor, request: DraftRequest, drawn: list[int]) -> Probs:
        """q over the target's ids from the draft model's logits `[1, V']`; ids it may not propose have none."""
        params = request.params
        tokens = (*request.tokens, *drawn) if params.needs_history else ()
        logits = logits if self._kept is not None else self._spread(logits)
        return sampling.reduced_probs(logits, self._kept, self._vocab_size, params, tokens, request.num_prompt)

    def _spread(self, logits: Tensor) -> Tensor:
        """Logits `[1, V']` over the target's ids `[1, V]`; -inf for ids that are not shared."""
        if self._common == self._vocab_size == logits.shape[-1]:
            return logits
        if logits.shape[-1] < self._vocab_size:
            logits = torch.nn.functional.pad(logits, (0, self._vocab_size - logits.shape[-1]))
        logits = logits[:, : self._vocab_size].clone()
        logits[:, self._common :] = -torch.inf
        return logits

    @staticmethod
    def _draft(request: DraftRequest, drawn: list[int], laws: list[Probs]) -> Draft:
        if not drawn:
            return EMPTY_DRAFT
        if request.params.greedy:
            return Draft.chain(drawn)
        return Draft.chain(drawn, Probs.stack(laws), "independent")


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
