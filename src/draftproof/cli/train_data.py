"""`draftproof train data`: texts to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .document import Document
from .options import JsonFile
from .train_options import DATA, RUN, Out, TrainTarget


def data(
    target: TrainTarget,
    folder: Out,
    conversations: Annotated[
        int, typer.Option(rich_help_panel=DATA, help="Conversations the target writes itself (whole units).")
    ] = 0,
    domain: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=DATA, help="Only these kinds of conversation; repeatable. Default: all."),
    ] = None,
    openers: Annotated[
        str | None,
        typer.Option(metavar="FILE", rich_help_panel=DATA, help="Lines with which user turns begin, instead."),
    ] = None,
    prompts_file: Annotated[
        list[str] | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            rich_help_panel=DATA,
            help="JSON lines with prompt, turns or messages, to be answered by the target; repeatable.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(rich_help_panel=DATA, help="Answers of each prompt.")] = 1,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", rich_help_panel=DATA, help="Text files to read as they are; repeatable."),
    ] = None,
    text_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=DATA, help="At most so many tokens of each --text.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", rich_help_panel=DATA, help="Prompts whose words must not be trained on; repeatable."
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(rich_help_panel=RUN, help="Of answers; several by chance. Default: 0 and 0.7."),
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
    with screen.Status(f"making {folder}") as status:
        counts = make(made, sources, excluded, lambda p: _making(screen.err(), status, p))
    _counted(screen.out(), counts)
    if show:
        for sample in Corpus.read([made.folder]).samples[:show]:
            _shown(screen.out(), codec, sample)
    document.write({"folder": folder, "counts": counts, "identity": identity.to_dict()})


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
