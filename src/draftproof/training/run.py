"""One training run from names to a folder: loads the target, wires recipe, texts, teacher and loop, writes the result.

FOLDER/run.json                 what the run was begun with; a run is continued only with the same
FOLDER/checkpoints/, best-*/    while it runs
FOLDER/config.json, ...         the best drafter, once it is done: --drafter eagle:FOLDER and the like
FOLDER/manifest.json, README.md, log.csv, log.json, curve.png
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError, TrainingError
from ..models.forwards import make_forward
from ..models.hf import LoadedModel, load_model
from ..whole import remove_partials
from .beginning import Beginning, beginning
from .capture import Capture
from .card import card
from .corpus import Corpus
from .distill import DistillRecipe
from .eagle import EagleRecipe
from .files import digest, put, read_json, write_json, write_text
from .identity import Identity, identify
from .log import plot
from .loop import Finished, LessonSource, Loop, Progress, processes
from .medusa import MedusaRecipe
from .recipe import Recipe, frequent
from .settings import Settings
from .teacher import Teacher

RUN, MANIFEST = "run.json", "manifest.json"


@dataclass(frozen=True)
class Plan:
    """What to train, on what.

    Fields:
        kind: "distill", "medusa" or "eagle".
        target: name of the model to draft for.
        data: folders of `draftproof train data`.
        options: of the recipe, by its argument names.
        draft: distill: the model to begin from; None is the target.
        draft_vocab: how many tokens the drafter says, 0 for all; None is what `start_from` says, or all.
        start_from: the folder of a drafter whose weights it begins with, or None.
        cache, cache_top: keep the teacher's lessons there, that many tokens of each law.
        template_flags: of the chat template.
        load: keyword arguments for `load_model`, such as dtype and device.
        weights: format of the target's weights.
    """

    kind: str
    target: str
    data: tuple[Path, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    draft: str | None = None
    draft_vocab: int | None = None
    start_from: Path | None = None
    cache: Path | None = None
    cache_top: int = 64
    template_flags: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "auto"


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, and what its manifest says."""

    folder: Path
    manifest: dict[str, Any]


def train(
    plan: Plan,
    settings: Settings,
    folder: Path,
    report: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Begin a run, or go on with it where it was left.

    Args:
        report: progress of the loop.
        say: what a person may want to read before it.

    Raises:
        TrainingError: data of another target, a folder of another run, a run that went astray, a full disk.
        OptionError, ModelError, FetchError: as ever.
    """
    if (folder / MANIFEST).exists() and not (folder / "checkpoints").exists():
        raise TrainingError(f"{folder} holds a finished drafter: choose another folder, or remove it")
    corpus = Corpus.read(plan.data)
    loaded = load_model(plan.target, **plan.load)
    identity = identify(plan.target, loaded.tokenizer, plan.template_flags)
    what = f"the data in {', '.join(map(str, plan.data))}"
    identity.check(corpus.identity, what, anyones=not _conversations(corpus))
    training, held_out = corpus.split(settings.held_out, settings.length)
    start = None
    if plan.start_from is not None:
        start = beginning(plan.kind, plan.start_from, loaded.model.get_input_embeddings().weight)
    vocab = _vocabulary(plan, corpus, loaded, start)
    begun = {
        "kind": plan.kind,
        "identity": {part: value for part, value in identity.to_dict().items() if part != "target"},
        "texts": corpus.digest,
        "options": _plain(plan.options),
        "draft": plan.draft,
        "draft_vocab": None if vocab is None else [len(vocab), digest(vocab.tolist())],
        "start_from": None if plan.start_from is None else str(plan.start_from),
        "cached": None if plan.cache is None else plan.cache_top,
        "settings": settings.must_match,
    }
    recipe = _recipe(plan, loaded, vocab, settings)
    shared = processes(loaded.model)
    with shared.main_process_first():
        _begin(folder, begun, shared.is_main_process)
    if start is not None:
        start.give(recipe)
    forward = make_forward(loaded, weights=plan.weights, bitwise=None)
    recipe.net.to(forward.device)
    for part in vars(recipe).values():  # frozen tables beside the network
        if isinstance(part, torch.nn.Module):
            part.to(forward.device)
    teacher = Teacher(forward, recipe.taps, vocab if recipe.vocab is not None else None, settings.temperature)
    source: LessonSource = teacher
    if settings.on_policy and (plan.kind != "distill" or plan.cache is not None):
        raise OptionError("on_policy is for distill without a cache: heads write no text, and new text is not captured")
    if plan.cache is not None:
        with shared.main_process_first():
            source = _captured(plan, teacher, [*training, *held_out], identity, corpus, settings, say)
    num_trained = sum(p.numel() for p in recipe.net.parameters() if p.requires_grad)
    tokens, answers = sum(len(s.ids) for s in training), sum(s.num_answer for s in training)
    say(
        f"{len(training)} texts, {tokens:,} tokens, {answers:,} of them supervised; {len(held_out)} held out; "
        f"{num_trained / 1e6:.1f} million trained weights"
        + ("" if vocab is None else f"; {len(vocab)} draft tokens, {_coverage(corpus, vocab):.1%} of the answers")
    )
    about = {"target": plan.target, "kind": plan.kind}
    loop = Loop(recipe, source, training, held_out, settings, folder, about, report)
    if loop.begun:
        say(f"going on from step {loop.begun} of {loop.num_steps}")
    finished = loop.run()
    shared.wait_for_everyone()
    return _finish(plan, settings, folder, finished, identity, begun, num_trained, shared.is_main_process)


def _vocabulary(plan: Plan, corpus: Corpus, loaded: LoadedModel, start: Beginning | None) -> Tensor | None:
    """The tokens the drafter is to say: those it began with, otherwise the answers' most frequent ones."""
    size = loaded.vocab_size
    if start is None:
        return frequent(corpus.frequencies(), plan.draft_vocab or size, size, loaded.eos_token_ids)
    known = size if start.vocab is None else len(start.vocab)
    if plan.draft_vocab is not None and (plan.draft_vocab or size) != known:
        raise OptionError(f"{start.folder} drafts {known} tokens: leave --draft-vocab out, or begin anew")
    return start.vocab


def _recipe(plan: Plan, loaded: LoadedModel, vocab: Tensor | None, settings: Settings) -> Recipe:
    options = dict(plan.options)
    if plan.kind == "medusa":
        return MedusaRecipe(loaded.model, vocab, **options)
    if plan.kind == "eagle":
        return EagleRecipe(loaded.model, vocab, low_memory=settings.checkpointing, seed=settings.seed, **options)
    if plan.kind != "distill":
        raise OptionError(f"unknown recipe {plan.kind!r}: use distill, medusa or eagle")
    draft = loaded if plan.draft is None else load_model(plan.draft, **{**plan.load, "dtype": "float32"})
    own, theirs = (m.model.get_input_embeddings().weight for m in (draft, loaded))
    if draft is not loaded:
        from ..models.vocab import common_vocabulary

        sizes = (loaded.vocab_size, draft.vocab_size)
        common = common_vocabulary(loaded.tokenizer, draft.tokenizer, *sizes, plan.target, draft.name)
        if vocab is None and draft.vocab_size != loaded.vocab_size:
            raise OptionError(
                f"{draft.name} has {draft.vocab_size} outputs, {plan.target} {loaded.vocab_size}: give --draft-vocab"
            )
        if vocab is not None and int(vocab.max()) >= common:
            raise OptionError(f"the draft vocabulary has tokens that {draft.name} does not know: lower --draft-vocab")
    shared = own.shape == theirs.shape and torch.equal(own.to(theirs.dtype), theirs)
    return DistillRecipe(draft, vocab, shares_embedding=shared, low_memory=settings.checkpointing, **options)


def _captured(
    plan: Plan,
    teacher: Teacher,
    samples: Sequence[Any],
    identity: Identity,
    corpus: Corpus,
    settings: Settings,
    say: Callable[[str], None],
) -> Capture:
    assert plan.cache is not None
    capture = Capture(plan.cache, teacher, samples, identity, corpus.digest, length=settings.length, k=plan.cache_top)
    if capture.num_missing:
        say(
            f"capturing {capture.num_bytes / 1e9:.2f} GB of lessons into {capture.folder} "
            f"({capture.num_missing} of {capture.num_shards} shards are missing)"
        )
    capture.fill(lambda done, total: say(f"captured {done} of {total} shards") if done % 10 == 0 else None)
    return capture


def _begin(folder: Path, begun: dict[str, Any], main: bool) -> None:
    """Start the folder's run, or check that this is the same one. A run killed while it began left nothing."""
    path = folder / RUN
    if main:
        remove_partials(folder)
    if path.exists():
        before = read_json(path)
        for name, new in begun.items():
            old = before.get(name)
            if old != new and isinstance(old, dict) and isinstance(new, dict):
                name = next(key for key in {**old, **new} if old.get(key) != new.get(key))
                old, new = old.get(name), new.get(name)
            if old != new:
                raise TrainingError(
                    f"{folder} holds a run with {name} = {old!r}, now {new!r}: give the same to go on with it, "
                    "or another folder"
                )
    elif folder.exists() and any(folder.iterdir()):
        raise TrainingError(f"{folder} is there and holds no training run: choose a new folder")
    else:
        write_json(path, begun)


def _finish(
    plan: Plan,
    settings: Settings,
    folder: Path,
    finished: Finished,
    identity: Identity,
    begun: dict[str, Any],
    num_trained: int,
    main: bool,
) -> Result:
    """The best drafter's files into the folder, its config last: from then on it is one."""
    from importlib.metadata import version

    rows = read_json(folder / "log.json")["rows"]
    first: dict[str, Any] = next((row for row in rows if "greedy_length" in row), {})
    manifest = {
        "kind": plan.kind,
        "drafter": {"distill": "model"}.get(plan.kind, plan.kind),
        "target": identity.to_dict(),
        "measured": finished.measured,
        "before": {k: v for k, v in first.items() if k != "by_category"},
        "steps": finished.steps,
        "stopped": finished.reason,
        "tokens": max((row["tokens"] for row in rows), default=0),
        "supervised": max((row["supervised"] for row in rows), default=0),
        "seconds": max((row.get("seconds", 0.0) for row in rows), default=0.0),
        "trained_weights": num_trained,
        "begun_with": begun,
        "data": [str(path) for path in plan.data],
        "versions": {name: version(name) for name in ("draftproof", "torch", "transformers")},
    }
    if main:
        names = sorted(path.name for path in finished.best.iterdir())
        for name in [*(n for n in names if n != "config.json"), "config.json"]:
            put(folder / name, partial(shutil.copyfile, finished.best / name))
        plot(rows, folder / "curve.png", f"{plan.kind} for {plan.target}")
        write_text(folder / "README.md", card(manifest, settings, folder.name))
        write_json(folder / MANIFEST, manifest)
    return Result(folder, manifest)


def clean(folder: Path) -> None:
    """Remove what only a run that goes on needs."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for path in folder.glob("best-*"):
        shutil.rmtree(path, ignore_errors=True)


def _conversations(corpus: Corpus) -> bool:
    """Whether any text was written by the target; public text is anyone's."""
    return any(not sample.category.startswith("text") for sample in corpus.samples)


def _coverage(corpus: Corpus, vocab: Tensor) -> float:
    counts, known = corpus.frequencies(), set(vocab.tolist())
    return sum(n for token, n in counts.items() if token in known) / max(1, sum(counts.values()))


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON reads them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
