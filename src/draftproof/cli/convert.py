"""`draftproof convert`: a trained drafter in the layout another engine loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[str, typer.Argument(help="Folder of EAGLE or Medusa heads in any layout, or of a draft.")],
    destination: Annotated[str, typer.Argument(help="Folder to write; it must not be there yet.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="LAYOUT", help="EAGLE: original, speculators. Medusa: original, vllm. Draft: hf."),
    ],
    target: Annotated[str, typer.Option("--target", "-t", help="Name of the model it drafts for.")] = "",
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read tensors from a .pt or .bin file.")] = False,
) -> None:
    """Write a trained drafter in another layout: EAGLE and Medusa heads bit by bit, a distilled draft as an ordinary
    Hugging Face model (with --target, whose embeddings it shares)."""
    from ..models.slim import is_slim
    from ..nets.convert import convert as run
    from . import show

    folder = Path(destination).expanduser()
    if is_slim(source):
        _plain(Path(source).expanduser(), folder, to, target)
        return
    head = run(Path(source).expanduser(), folder, to, target=target, allow_pickle=allow_pickle)
    size = sum(tensor.numel() * tensor.element_size() for tensor in head.tensors.values())
    show.out().print(f"{folder}: {len(head.tensors)} tensors, {size / 1e6:.1f} MB, layout {to}", highlight=False)


def _plain(source: Path, folder: Path, to: str, target: str) -> None:
    from ..errors import OptionError
    from ..models.hf import load_model
    from ..models.slim import write_plain
    from . import show

    if to != "hf":
        raise OptionError(f"a distilled draft is written with --to hf, not {to!r}")
    if not target:
        raise OptionError("a distilled draft needs --target, whose embeddings and tokenizer it takes")
    loaded = load_model(target, device="cpu")
    write_plain(source, folder, loaded.model, loaded.tokenizer)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    show.out().print(f"{folder}: an ordinary Hugging Face model, {size / 1e6:.1f} MB", highlight=False)
