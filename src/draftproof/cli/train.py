"""`draftproof train data | distill | medusa | eagle`: a drafter for your own target, from nothing but the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .document import Document
from .options import DEFAULT_TARGET, JsonFile

if TYPE_CHECKING:
    from ..training.settings import Settings

_DATA, _RUN, _NET = "Texts", "Training", "Drafter"
Out = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder to write; the same command goes on where it was.")]
Vocab = Annotated[
    int, typer.Option(rich_help_panel=_NET, help="Tokens the drafter can say, the most frequent ones; 0: all.")
]


@dataclass(frozen=True)
class TrainTarget:
    """The model to draft for."""

    target: Annotated[
        str, typer.Option("--target", "-t", rich_help_panel="Model", help="Model to draft for, as in `generate`.")
    ] = DEFAULT_TARGET
    dtype: Annotated[str | None, typer.Option(rich_help_panel="Model", help="Default: the checkpoint's.")] = None
    device: Annotated[
        str | None, typer.Option(rich_help_panel="Model", help="cpu or cuda. Default: cuda if there is one.")
    ] = None
    weights: Annotated[
        str, typer.Option(rich_help_panel="Model", help="Format of the target's weights, as in `generate`.")
    ] = "auto"
    template_flag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", rich_help_panel="Model", help="Variable of the chat template; repeatable."),
    ] = None

    def flags(self) -> dict[str, Any]:
        """The template's variables, with JSON values."""
        import json

        from ..errors import OptionError

        found: dict[str, Any] = {}
        for text in self.template_flag or ():
            name, equals, value = text.partition("=")
            if not equals:
                raise OptionError(f"--template-flag needs NAME=VALUE, as in thinking=false, not {text!r}")
            try:
                found[name] = json.loads(value)
            except ValueError:
                found[name] = value
        return found


@dataclass(frozen=True)
class TrainOptions:
    """How to train: the fields of `training.settings.Settings` that people set, and where the texts are."""

    data: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", rich_help_panel=_DATA, help="Made by `train data`; repeatable."),
    ] = None
    held_out: Annotated[int, typer.Option(rich_help_panel=_DATA, help="Texts kept from training, to measure on.")] = 48
    length: Annotated[int, typer.Option(rich_help_panel=_DATA, help="Tokens of a row; longer texts are cut.")] = 512
    rows: Annotated[int, typer.Option(rich_help_panel=_DATA, help="Rows of a batch.")] = 4
    epochs: Annotated[int, typer.Option(rich_help_panel=_RUN, help="Passes over the texts.")] = 1
    max_steps: Annotated[int | None, typer.Option(rich_help_panel=_RUN, help="At most this many steps.")] = None
    accumulate: Annotated[int, typer.Option(rich_help_panel=_RUN, help="Batches to a step.")] = 1
    lr: Annotated[float, typer.Option(rich_help_panel=_RUN, help="Highest learning rate.")] = 1e-3
    warmup: Annotated[float, typer.Option(rich_help_panel=_RUN, help="Share of the steps in which it rises.")] = 0.03
    floor: Annotated[float, typer.Option(rich_help_panel=_RUN, help="Where its cosine ends, as a share.")] = 0.1
    weight_decay: Annotated[float, typer.Option(rich_help_panel=_RUN, help="Of AdamW.")] = 0.0
    clip: Annotated[float, typer.Option(rich_help_panel=_RUN, help="Longest gradient.")] = 1.0
    precision: Annotated[str, typer.Option(rich_help_panel=_RUN, help="bf16 or fp32; weights are fp32.")] = "bf16"
    loss: Annotated[str, typer.Option(rich_help_panel=_RUN, help="kl, rkl, jsd, tv, nla or lk.")] = "lk"
    eta: Annotated[float, typer.Option(rich_help_panel=_RUN, help="Of lk: how soon TV takes over from KL.")] = 3.0
    temperature: Annotated[float, typer.Option(rich_help_panel=_RUN, help="Of the target's law.")] = 1.0
    seed: Annotated[int, typer.Option(rich_help_panel=_RUN, help="Of order, noise and new weights.")] = 0
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", rich_help_panel=_RUN, help="Less memory for more time.")
    ] = False
    depth: Annotated[int, typer.Option(rich_help_panel=_RUN, help="Drafted tokens per round when measuring.")] = 4
    eval_every: Annotated[int, typer.Option(rich_help_panel=_RUN, help="Steps between measures.")] = 200
    save_every: Annotated[int, typer.Option(rich_help_panel=_RUN, help="Steps between checkpoints.")] = 50
    log_every: Annotated[int, typer.Option(rich_help_panel=_RUN, help="Steps between lines of the log.")] = 10
    patience: Annotated[
        int, typer.Option(rich_help_panel=_RUN, help="Stop after so many measures without a better one; 0 never.")
    ] = 0
    start_from: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", rich_help_panel=_RUN, help="Begin with the weights of an earlier run."),
    ] = None
    cache: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", rich_help_panel=_DATA, help="Keep the target's states and laws there."),
    ] = None
    cache_top: Annotated[int, typer.Option(rich_help_panel=_DATA, help="Tokens kept of each law there.")] = 64

    def settings(self, on_policy: float) -> Settings:
        from ..training.settings import Settings

        names = {field.name for field in fields(Settings)}
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name in names}
        return Settings(**values, on_policy=on_policy)


def data(
    target: TrainTarget,
    folder: Out,
    conversations: Annotated[
        int, typer.Option(rich_help_panel=_DATA, help="Conversations the target writes itself (whole units).")
    ] = 0,
    domain: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_DATA, help="Only these kinds of conversation; repeatable. Default: all."),
    ] = None,
    openers: Annotated[
        str | None,
        typer.Option(metavar="FILE", rich_help_panel=_DATA, help="Lines with which user turns begin, instead."),
    ] = None,
    prompts_file: Annotated[
        list[str] | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            rich_help_panel=_DATA,
            help="JSON lines with prompt, turns or messages, to be answered by the target; repeatable.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(rich_help_panel=_DATA, help="Answers of each prompt.")] = 1,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", rich_help_panel=_DATA, help="Text files to read as they are; repeatable."),
    ] = None,
    text_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=_DATA, help="At most so many tokens of each --text.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_DATA, help="Prompts whose words must not be trained on; repeatable."
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(rich_help_panel=_RUN, help="Of answers; several take turns. Default: 0 and 0.7."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Of an answer.")] = 384,
    max_length: Annotated[int, typer.Option(help="Tokens of a conversation or of a piece of text.")] = 1024,
    batch: Annotated[int, typer.Option(help="Conversations at a time.")] = 48,
    unit: Annotated[int, typer.Option(help="Conversations saved at a time.")] = 192,
    seed: Annotated[int, typer.Option(help="Same seed, settings and target, same texts.")] = 0,
    show: Annotated[int, typer.Option(help="Print so many texts, what is learned from in green.")] = 0,
    json: JsonFile = None,
) -> None:
    """Make texts to train on: the target's own, its answers to prompts, or public text read by it.

    Run it again with larger numbers to add to the folder; a killed run goes on with its next unit.
    """
    from ..errors import OptionError

    document = Document(json)
    if not (conversations or prompts_file or text):
        raise OptionError("give --conversations N, --prompts FILE or --text PATH: where should the texts come from?")
    asked = [_conversations(path) for path in prompts_file or ()]
    from ..training.corpus import Corpus, CorpusFolder
    from ..training.data import Answered, Answering, PublicText, SelfWritten
    from ..training.making import Excluded, Source, make
    from . import prompts
    from . import show as screen

    answering = Answering(tuple(temperature or (0.0, 0.7)), max_new_tokens, max_length, unit, seed)
    excluded = Excluded(_words(prompt) for path in exclude or () for prompt in prompts.read_file(path))
    domains = _domains(domain, openers)
    codec, engine = _speaker(target, batch, needs_model=bool(conversations or asked))
    sources: list[Source] = []
    if engine is not None:
        sources += [SelfWritten(engine, answering, conversations, domains)] if conversations else []
        sources += [Answered(engine, answering, some, repeats) for some in asked]
    for path in text or ():
        root = Path(path).expanduser()
        sources.append(PublicText(codec, root, max_tokens=text_tokens, length=max_length, seed=seed))
    from ..training.identity import identify

    identity = identify(target.target, codec.tokenizer, codec.template_flags)
    manifest = {"identity": identity.to_dict(), "settings": {source.name: source.settings for source in sources}}
    made = CorpusFolder(Path(folder).expanduser(), manifest)
    identity.check(made.manifest["identity"], folder)
    with screen.Status(f"making {folder}") as status:
        counts = make(made, sources, excluded, lambda p: _making(screen.err(), status, p))
    _counted(screen.out(), counts)
    if show:
        for sample in Corpus.read([made.folder]).samples[:show]:
            _shown(screen.out(), codec, sample)
    document.write({"folder": folder, "counts": counts, "identity": identity.to_dict()})


def distill(
    target: TrainTarget,
    options: TrainOptions,
    folder: Out,
    draft: Annotated[
        str | None,
        typer.Option(rich_help_panel=_NET, help="Model to begin from. Default: the target itself."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(rich_help_panel=_NET, help="Layers to keep: how many, or which, as in 0,1,2,28,29. Default: all."),
    ] = None,
    draft_vocab: Vocab = 8192,
    train_output: Annotated[
        bool, typer.Option("--train-output/--keep-output", rich_help_panel=_NET, help="Train the output rows too.")
    ] = True,
    store: Annotated[str, typer.Option(rich_help_panel=_NET, help="Weights of the result: bf16 or int8.")] = "bf16",
    on_policy: Annotated[
        float, typer.Option(rich_help_panel=_RUN, help="Share of the batches whose answers the draft writes itself.")
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
    heads: Annotated[int, typer.Option(rich_help_panel=_NET, help="Tokens drafted ahead.")] = 4,
    blocks: Annotated[int, typer.Option(rich_help_panel=_NET, help="Residual blocks of each head.")] = 1,
    decay: Annotated[float, typer.Option(rich_help_panel=_NET, help="Head k's loss weighs this to the k.")] = 0.8,
    shared_output: Annotated[
        bool,
        typer.Option("--shared-output/--own-outputs", rich_help_panel=_NET, help="One output layer for all heads."),
    ] = True,
    nodes: Annotated[
        int, typer.Option(rich_help_panel=_NET, help="Of the tree it drafts, from held-out accuracies; 0: chains.")
    ] = 16,
    draft_vocab: Vocab = 8192,
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
    version: Annotated[int, typer.Option(rich_help_panel=_NET, help="3, or 1 (also drafts as EAGLE-2).")] = 3,
    unroll: Annotated[
        int, typer.Option(rich_help_panel=_NET, help="EAGLE-3: steps over its own results in training.")
    ] = 4,
    decay: Annotated[float, typer.Option(rich_help_panel=_NET, help="Step s's loss weighs this to the s.")] = 0.8,
    fuse: Annotated[
        str | None,
        typer.Option(rich_help_panel=_NET, help="EAGLE-3: the target's layers it reads, as in 2,15,27."),
    ] = None,
    post_norm: Annotated[
        bool,
        typer.Option("--post-norm", rich_help_panel=_NET, help="EAGLE-3: feed back normed results (EAGLE-3.1)."),
    ] = False,
    noise: Annotated[float, typer.Option(rich_help_panel=_NET, help="EAGLE-1: on the features.")] = 0.1,
    draft_vocab: Vocab = 8192,
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
    draft_vocab: int,
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
    if draft_vocab < 0:
        raise OptionError(f"--draft-vocab must be a number of tokens, or 0 for all, not {draft_vocab}")
    from ..training.run import Plan, train
    from . import show
    from .training_view import TrainingView

    console = show.err()
    plan = Plan(
        kind,
        target.target,
        tuple(Path(path).expanduser() for path in options.data),
        recipe,
        draft,
        draft_vocab or None,
        None if options.start_from is None else Path(options.start_from).expanduser(),
        None if options.cache is None else Path(options.cache).expanduser(),
        options.cache_top,
        target.flags(),
        {"dtype": target.dtype, "device": target.device},
        target.weights,
    )
    with TrainingView(console, kind) as view:
        result = train(plan, settings, Path(folder).expanduser(), view.update, view.say)
    measured = result.manifest["measured"]
    show.out().print(
        f"{folder}: acceptance length {measured['greedy']['acceptance_length']:.2f} at temperature 0, "
        f"{measured['sampled']['acceptance_length']:.2f} sampled, on {measured['num_tokens']:,} held-out tokens; "
        f"use it as --drafter {result.manifest['drafter']}:{folder}",
        highlight=False,
    )
    document.write({"folder": folder, "manifest": result.manifest})


def _speaker(target: TrainTarget, batch: int, *, needs_model: bool) -> tuple[Any, Any]:
    """The target's codec, and an engine over it where it has to speak."""
    from ..errors import PromptError
    from ..models.codec import Codec

    if needs_model:
        from ..api import load
        from .show import Loading

        with Loading(f"loading {target.target}") as progress:
            engine = load(
                target.target, "none", dtype=target.dtype, device=target.device, weights=target.weights, max_draft=0,
                max_batch=batch, progress=progress,
            )  # fmt: skip
        if engine.codec is None:
            raise PromptError(f"{target.target} has no tokenizer, so it cannot write texts")
        engine.codec.template_flags = target.flags()
        return engine.codec, engine
    from ..models.hf import load_tokenizer

    return Codec(load_tokenizer(target.target), target.target, target.flags()), None


def _domains(names: Sequence[str] | None, file: str | None) -> Mapping[str, Sequence[str]]:
    from ..errors import OptionError
    from ..training.questions import OPENERS

    if file is not None:
        try:
            lines = [line.rstrip("\n") for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--openers needs a readable text file, not {file!r}: {error}") from None
        return {Path(file).stem: [line for line in lines if line.strip()]}
    for name in names or ():
        if name not in OPENERS:
            raise OptionError(f"unknown domain {name!r}: use {', '.join(OPENERS)}")
    return {name: some for name, some in OPENERS.items() if not names or name in names}


def _conversations(path: str) -> list[tuple[str, list[Any], list[str]]]:
    """Category, messages so far and user turns to answer, of every line of a file."""
    from . import prompts

    found = []
    for category, messages in prompts.read_conversations(path):
        kept = messages[: max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1) + 1]
        first = next((i for i, m in enumerate(kept) if m["role"] == "user"), len(kept))
        follow = [m["content"] for m in kept[first:] if m["role"] == "user"]
        if any(m["role"] == "assistant" for m in kept):
            found.append((category or "prompts", kept[:-1], [kept[-1]["content"]]))
        elif follow:
            found.append((category or "prompts", kept[:first], follow))
    return found


def _words(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(str(m.get("content")) for m in prompt)


def _numbers(name: str, text: str | None) -> list[int]:
    from ..errors import OptionError

    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise OptionError(f"--{name} needs whole numbers with commas, as in 0,1,29, not {text!r}") from None


def _making(console: Any, status: Any, p: Any) -> None:
    speed = f", {p.fresh / p.seconds:.0f} tokens/s" if p.seconds else " (made before)"
    line = f"{p.source}: {p.units} units, {p.samples} texts, {p.tokens:,} tokens, {p.answer_tokens:,} supervised{speed}"
    with status.hidden():
        console.print(line)


def _counted(console: Any, counts: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table("source", "kind", "texts", "tokens", "supervised", "duplicates", "excluded", box=None)
    for source, found in counts.items():
        kinds = {name: c for name, c in found.items() if isinstance(c, dict)}
        for name, c in kinds.items():
            dropped = (str(found["duplicates"]), str(found["excluded"])) if name == "all" else ("", "")
            sizes = (f"{c['samples']:,}", f"{c['tokens']:,}", f"{c['answer_tokens']:,}")
            table.add_row(source if name == "all" else "", name, *sizes, *dropped)
    console.print(table)


def _shown(console: Any, codec: Any, sample: Any) -> None:
    import itertools

    from rich.text import Text

    line = Text(f"--- {sample.category}\n", style="dim")
    for answer, part in itertools.groupby(zip(sample.answer, sample.ids), key=lambda pair: pair[0]):
        said = codec.tokenizer.decode([token for _, token in part])
        line.append(said, style="green" if answer else "")
    console.print(line)
