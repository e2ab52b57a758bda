"""`draftproof convert`: a draft head's checkpoint in the layout another engine loads."""

from __future__ import annotations

from typing import Annotated

import typer


def convert(
    source: Annotated[str, typer.Argument(help="Folder with EAGLE or Medusa weights, in any known layout.")],
    destination: Annotated[str, typer.Argument(help="Folder to write; it must not be there yet.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="LAYOUT", help="EAGLE: original or speculators. Medusa: original or vllm."),
    ],
    target: Annotated[str, typer.Option("--target", "-t", help="Name of the model it drafts for.")] = "",
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read tensors from a .pt or .bin file.")] = False,
) -> None:
    """Write an EAGLE or Medusa checkpoint in another layout, bit by bit the same tensors."""
    from pathlib import Path

    from ..nets.convert import convert as run
    from . import show

    folder = Path(destination).expanduser()
    head = run(Path(source).expanduser(), folder, to, target=target, allow_pickle=allow_pickle)
    size = sum(tensor.numel() * tensor.element_size() for tensor in head.tensors.values())
    show.out().print(f"{folder}: {len(head.tensors)} tensors, {size / 1e6:.1f} MB, layout {to}", highlight=False)
