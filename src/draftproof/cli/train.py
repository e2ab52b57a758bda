"""`draftproof train data | distill | medusa | eagle`: a drafter for your own target, from nothing but the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .document import Document
from .options import JsonFile
from .train_data import data
from .train_options import NET, RUN, Out, TrainOptions, TrainTarget

DRAFT_VOCAB = 8192
Vocab = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=NET,
        help=f"Tokens the drafter can say, the most frequent ones; 0: all. Default: {DRAFT_VOCAB}, or those of "
        "--start-from.",
    ),
]


def distill(
    target: TrainTarget,
    options: TrainOptions,
    folder: Out,
    draft: Annotated[
        str | None,
        typer.Option(rich_help_panel=NET, help="Model to begin from. Default: the target itself."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(rich_help_panel=NET, help="Layers to keep: how many, or which, as in 0,1,2,28,29. Default: all."),
    ] = None,
    draft_vocab: Vocab = None,
    train_output: Annotated[
        bool, typer.Option("--train-output/--keep-output", rich_help_panel=NET, help="Train the output rows too.")
    ] = True,
    store: Annotated[str, typer.Option(rich_help_panel=NET, help="Weights of the result: bf16 or int8.")] = "bf16",
    on_policy: Annotated[
        float, typer.Option(rich_help_panel=RUN, help="Share of the batches whose answers the draft writes itself.")
    ] = 0.0,
    json: JsonFile = None,
) -> None:
    """Teach a smaller draft model: fewer layers of the target, or of another model of its family."""
    from ..errors import OptionError

    chosen = _numbers("layers", layers)
    if store not in ("bf16", "int8"):
        raise OptionError(f"--store must be bf16 or int8, not {store!r}")
    recipe = {
        "layers": chosen[0] if len(chosen) == 1 else tuple(chosen) or None,
        "train_output": train_output,
        "weights_format": store,
    }
    _train("distill", target, options, folder, draft_vocab, recipe, json, draft, on_policy)


def medusa(
    target: TrainTarget,
    options: TrainOptions,
    folder: Out,
    heads: Annotated[int, typer.Option(rich_help_panel=NET, help="Tokens drafted ahead.")] = 4,
    blocks: Annotated[int, typer.Option(rich_help_panel=NET, help="Residual blocks of each head.")] = 1,
    decay: Annotated[float, typer.Option(rich_help_panel=NET, help="Head k's loss weighs this to the k.")] = 0.8,
    shared_output: Annotated[
        bool,
        typer.Option("--shared-output/--own-outputs", rich_help_panel=NET, help="One output layer for all heads."),
    ] = True,
    nodes: Annotated[
        int, typer.Option(rich_help_panel=NET, help="Of the tree it drafts, from held-out accuracies; 0: chains.")
    ] = 16,
    draft_vocab: Vocab = None,
    json: JsonFile = None,
) -> None:
    """Train Medusa heads, and the tree they draft."""
    recipe = {
        "num_heads": heads, "num_blocks": blocks, "decay": decay, "shared_output": shared_output, "num_nodes": nodes,
    }  # fmt: skip
    _train("medusa", target, options, folder, draft_vocab, recipe, json)


def eagle(
    target: TrainTarget,
    options: TrainOptions,
    folder: Out,
    version: Annotated[int, typer.Option(rich_help_panel=NET, help="3, or 1 (also drafts as EAGLE-2).")] = 3,
    unroll: Annotated[
        int, typer.Option(rich_help_panel=NET, help="EAGLE-3: steps over its own results in training.")
    ] = 4,
    decay: Annotated[float, typer.Option(rich_help_panel=NET, help="Step s's loss weighs this to the s.")] = 0.8,
    fuse: Annotated[
        str | None,
        typer.Option(rich_help_panel=NET, help="EAGLE-3: the target's layers it reads, as in 2,15,27."),
    ] = None,
    post_norm: Annotated[
        bool,
        typer.Option("--post-norm", rich_help_panel=NET, help="EAGLE-3: feed back normed results (EAGLE-3.1)."),
    ] = False,
    noise: Annotated[float, typer.Option(rich_help_panel=NET, help="EAGLE-1: on the features.")] = 0.1,
    draft_vocab: Vocab = None,
    json: JsonFile = None,
) -> None:
    """Train an EAGLE head."""
    layers = tuple(_numbers("fuse", fuse)) or None
    recipe = {
        "version": version, "num_steps": unroll, "decay": decay, "layers": layers, "post_norm": post_norm,
        "noise": noise,
    }  # fmt: skip
    _train("eagle", target, options, folder, draft_vocab if version == 3 else 0, recipe, json)


COMMANDS: dict[str, Callable[..., None]] = {"data": data, "distill": distill, "medusa": medusa, "eagle": eagle}


def _train(
    kind: str,
    target: TrainTarget,
    options: TrainOptions,
    folder: str,
    draft_vocab: int | None,
    recipe: Mapping[str, Any],
    json: str | None,
    draft: str | None = None,
    on_policy: float = 0.0,
) -> None:
    from ..errors import OptionError

    document = Document(json)
    settings = options.settings(on_policy)
    if not options.data:
        raise OptionError("give --data FOLDER: texts made by draftproof train data")
    if draft_vocab is None and options.start_from is None:
        draft_vocab = DRAFT_VOCAB
    if draft_vocab is not None and draft_vocab < 0:
        raise OptionError(f"--draft-vocab must be a number of tokens, or 0 for all, not {draft_vocab}")
    from ..bench.machine import peak_rss_gb
    from ..training.run import Plan, clean, train
    from . import show
    from .training_view import TrainingView

    console = show.err()
    plan = Plan(
        kind,
        target.target,
        tuple(Path(path).expanduser() for path in options.data),
        recipe,
        draft,
        draft_vocab,
        None if options.start_from is None else Path(options.start_from).expanduser(),
        None if options.cache is None else Path(options.cache).expanduser(),
        options.cache_top,
        target.flags(),
        {"dtype": target.dtype, "device": target.device},
        target.weights,
    )
    with TrainingView(console, kind) as view:
        result = train(plan, settings, Path(folder).expanduser(), view.update, view.say)
    if options.clean:
        clean(result.folder)
    measured = result.manifest["measured"]
    show.out().print(
        f"{folder}: acceptance length {measured['greedy']['acceptance_length']:.2f} at temperature 0, "
        f"{measured['sampled']['acceptance_length']:.2f} sampled, on {measured['num_tokens']:,} held-out tokens; "
        f"use it as --drafter {result.manifest['drafter']}:{folder}",
        highlight=False,
    )
    peak = peak_rss_gb()
    console.print(f"{result.manifest['seconds'] / 60:.1f} minutes in all, at most {peak:.1f} GB of memory", style="dim")
    document.write({"folder": folder, "manifest": result.manifest, "peak_rss_gb": peak})


def _numbers(name: str, text: str | None) -> list[int]:
    from ..errors import OptionError

    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise OptionError(f"--{name} needs whole numbers with commas, as in 0,1,29, not {text!r}") from None
