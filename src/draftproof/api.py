"""The place that knows all parts and wires them: names in, an engine out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .costs import Calibration
from .drafters import catalog
from .drafters.calibrate import target_costs, with_drafter
from .drafters.context import DraftContext
from .drafters.growth import Costs, TreeOption
from .engine import Engine as CoreEngine
from .engine.budget import AdaptiveBudget
from .engine.prices import Prices
from .errors import OptionError
from .interfaces import Drafter, Verifier
from .models.bridge import MODES
from .models.cached_lm import CachedLM
from .models.codec import Codec
from .models.forwards import make_forward
from .models.hf import load_model
from .models.linear import FORMATS
from .verify import auto_rule, block_rule, token_rule, traversal_rule

VERIFIERS: dict[str, Verifier] = {
    "auto": auto_rule,
    "token": token_rule,
    "block": block_rule,
    "traversal": traversal_rule,
}
_log = logging.getLogger("draftproof")


@dataclass(frozen=True)
class _Parts:
    """What engines over one loaded target share."""

    target: CachedLM
    codec: Codec | None
    eos_ids: frozenset[int]
    context: DraftContext
    config: dict[str, Any]
    costs: dict[int, Calibration] = field(default_factory=dict)  # by the most tokens of a pass, once measured


class Engine(CoreEngine):
    """An engine over a loaded model; see `draftproof.engine.Engine` for generate, stream, add, step and abort."""

    target: CachedLM
    codec: Codec | None
    parts: _Parts


def load(
    target: str | Engine,
    drafter: str | Drafter = "none",
    *,
    dtype: Any = None,
    device: Any = None,
    weights: str = "auto",
    draft_weights: str = "auto",
    max_draft: int = 8,
    adaptive: bool = True,
    max_batch: int = 8,
    max_length: int | None = None,
    draft_max_length: int | None = None,
    draft_layers: int | None = None,
    draft_vocab: int | None = None,
    draft_corpus: Sequence[str] = (),
    draft_confidence: float = 0.3,
    draft_tree: str | None = None,
    draft_costs: Any = None,
    cross_vocab: str = "auto",
    verifier: str = "auto",
    bitwise: bool | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """Load a target and a drafter.

    Args:
        target: a model folder, a Hugging Face name, a .gguf file, a known short name - or an engine, whose target
            is then shared instead of loaded again.
        drafter: `none`, `ngram`, `suffix`, `model:ID`, `medusa:FOLDER`, `eagle:FOLDER`, `self:N`,
            `package.module:Class`, several with commas (a cascade), or an object with propose and release.
        dtype: the target's and the drafter's; None is each checkpoint's own.
        device: None is cuda if there is one, else cpu.
        weights: the target's format: "auto" (the fastest exact one), "dense", "packed", "int8" or "int4" (exact
            relative to the rounded target).
        draft_weights: the drafter's; "auto" is int4 on the CPU where our own kernels run (8 bits for what 4 hurt most),
            else int8; that costs acceptance only, never exactness.
        max_draft: at most this many drafted tokens per sequence and round; 0 turns drafting off.
        adaptive: draft as many tokens as pay, none included, by costs that are measured now (in less than three
            seconds) and while running, and by how much of each sequence's drafts was accepted. False always drafts
            max_draft. Sampled texts with a seed of their own always get max_draft, so that the seed fixes them.
        max_batch: at most this many sequences at a time; more wait their turn.
        max_length: context limit, if lower than the target's own.
        draft_max_length: the drafter's own limit; longer texts go on without drafts.
        draft_layers: keep only so many of a draft model's layers (a run from the middle on is dropped).
        draft_vocab: let a draft model propose only so many tokens, the most frequent in `draft_corpus` (texts, best
            the target's own); without a corpus the lowest ids, which byte-pair vocabularies give to frequent entries.
        verifier: "auto" (the best exact rule for what was drawn), "token", "block" (chains only) or "traversal"; all
            are exact, they differ in how much they accept.
        bitwise: bit-exact passes, so that greedy text is the same whatever drafts or shares the batch. None takes
            them where the kernels allow, True demands them, False does without.
        allow_pickle, trust_remote_code: unsafe checkpoints are refused unless these say otherwise.
        progress: called with (bytes done, bytes in all) while a model is fetched.

        draft_confidence: a greedy chain of a draft model or an EAGLE head ends after the token at which the product of
            its own probabilities falls below this, so that drafts are long where they are sure; 0 always drafts
            max_draft.
        draft_tree: let a draft model or an EAGLE head draft trees of max_draft nodes: "dynamic" (EAGLE-2; where tokens
            are sampled, as "optimal"), "optimal" (Sequoia, from the acceptance of each sequence so far) or children
            per depth as in "4,2,1". None drafts chains.
        draft_costs: what `draftproof bench --costs --json` wrote, a file or its content: optimal trees then have only
            as many nodes and layers as pay.
        cross_vocab: a draft model with another vocabulary is used by "intersection" of the two or by "string"
            matching, or refused ("off"); "auto" takes the first where the target has most of its tokens, and refuses
            vocabularies that are nearly but not quite the same.

    Raises:
        OptionError, ModelError, VocabularyError, FetchError: one line each.
    """
    if verifier not in VERIFIERS:
        raise OptionError(f"unknown verifier {verifier!r}: use {', '.join(VERIFIERS)}")
    for name, value in (("weights", weights), ("draft_weights", draft_weights)):
        if value not in ("auto", *FORMATS):
            raise OptionError(f"unknown {name} {value!r}: use auto, {', '.join(FORMATS)}")
    for name, limit in (("max_length", max_length), ("draft_max_length", draft_max_length)):
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 2):
            raise OptionError(f"{name} must be a whole number of at least 2, not {limit!r}")
    if not isinstance(draft_confidence, (int, float)) or not 0 <= draft_confidence <= 1:
        raise OptionError(f"draft_confidence must be a number from 0 to 1, not {draft_confidence!r}")
    TreeOption.parse(draft_tree)
    if cross_vocab not in MODES:
        raise OptionError(f"cross_vocab must be one of {', '.join(MODES)}, not {cross_vocab!r}")
    if not isinstance(max_batch, int) or isinstance(max_batch, bool) or max_batch < 1:
        raise OptionError(f"max_batch must be a whole number of at least 1, not {max_batch!r}")
    options = {
        "dtype": dtype,
        "device": device,
        "allow_pickle": allow_pickle,
        "trust_remote_code": trust_remote_code,
        "progress": progress,
    }
    if isinstance(target, CoreEngine):
        fixed = {"dtype": dtype, "device": device, "bitwise": bitwise, "max_length": max_length}
        fixed["weights"] = None if weights == "auto" else weights
        if given := [name for name, value in fixed.items() if value is not None]:
            raise OptionError(f"{given[0]} belongs to the loaded target: give it where the target is loaded")
        parts, max_batch = target.parts, min(max_batch, target.max_batch)
    else:
        if isinstance(drafter, str):
            catalog.check(drafter)  # before the target takes its time
        parts = _load_target(target, options, weights, bitwise, max_batch, max_length)
    context = replace(
        parts.context,
        draft_weights=draft_weights,
        draft_max_length=draft_max_length,
        draft_layers=draft_layers,
        draft_vocab=draft_vocab,
        draft_confidence=draft_confidence,
        draft_tree=draft_tree,
        draft_costs=None if draft_costs is None else Costs.read(draft_costs),
        cross_vocab=cross_vocab,
        draft_corpus=[parts.codec.encode(text) for text in draft_corpus] if parts.codec else (),
    )
    made = catalog.build(drafter, context) if isinstance(drafter, str) else catalog.checked(drafter, repr(drafter))
    engine = Engine(
        parts.target,
        made,
        VERIFIERS[verifier],
        parts.codec,
        eos_ids=parts.eos_ids,
        max_draft=max_draft,
        max_batch=max_batch,
        config={
            **parts.config,
            "drafter": made.name,
            "max_draft": max_draft,
            "adaptive": adaptive,
            "draft_tree": draft_tree,
            "verifier": verifier,
        },
    )
    engine.parts = parts
    if adaptive and made.name != "none" and max_draft > 0:
        engine.budget = _adaptive(
            parts, made, max_draft, max_batch, known=type(made).__module__.startswith(f"{catalog.__package__}.")
        )
    return engine


def _adaptive(parts: _Parts, drafter: Drafter, max_draft: int, max_batch: int, known: bool) -> AdaptiveBudget:
    """Costs measured; those of a drafter that is not one of ours (not `known`) show in its first rounds."""
    most_tokens = max_batch * (max_draft + 1)
    if most_tokens not in parts.costs:
        parts.costs[most_tokens] = target_costs(parts.target, most_tokens)
    costs = parts.costs[most_tokens]
    if known:
        costs = with_drafter(costs, parts.target, drafter, max_draft)
    offering = [hasattr(member, "offers") for member in getattr(drafter, "members", [drafter])]
    return AdaptiveBudget(Prices(costs), free="all" if all(offering) else "some" if any(offering) else "none")


def _load_target(
    target: str,
    options: dict[str, Any],
    weights: str,
    bitwise: bool | None,
    max_batch: int,
    max_length: int | None,
) -> _Parts:
    loaded = load_model(target, **options)
    forward = make_forward(loaded, weights=weights, bitwise=bitwise)
    lm = CachedLM(forward, max_batch, max_length)
    eos_ids = frozenset(loaded.eos_token_ids)
    if loaded.tokenizer is None:
        _log.warning("%s has no tokenizer: prompts must be token ids", target)
    context = DraftContext(
        target_name=target,
        vocab_size=lm.vocab_size,
        tokenizer=loaded.tokenizer,
        eos_ids=eos_ids,
        max_batch=max_batch,
        max_length=lm.max_length,
        model_options=options,
        target=lm,
    )
    config = {
        "target": target,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": str(loaded.model.device),
        "weights": forward.weights,
        "bitwise": forward.bitwise,
        "max_batch": max_batch,
        "max_length": lm.max_length,
    }
    codec = Codec(loaded.tokenizer, target) if loaded.tokenizer is not None else None
    return _Parts(lm, codec, eos_ids, context, config)
