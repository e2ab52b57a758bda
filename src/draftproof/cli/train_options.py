"""The options that `draftproof train` and its recipes share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import DEFAULT_TARGET

if TYPE_CHECKING:
    from ..training.settings import Settings

DATA, RUN, NET = "Texts", "Training", "Drafter"
Out = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder to write; the same command goes on where it was.")]


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
        typer.Option(metavar="FOLDER", rich_help_panel=DATA, help="Made by `train data`; repeatable."),
    ] = None
    held_out: Annotated[int, typer.Option(rich_help_panel=DATA, help="Texts kept from training, to measure on.")] = 48
    length: Annotated[int, typer.Option(rich_help_panel=DATA, help="Tokens of a row; longer texts are cut.")] = 512
    rows: Annotated[int, typer.Option(rich_help_panel=DATA, help="Rows of a batch.")] = 4
    epochs: Annotated[int, typer.Option(rich_help_panel=RUN, help="Passes over the texts.")] = 1
    max_steps: Annotated[int | None, typer.Option(rich_help_panel=RUN, help="At most this many steps.")] = None
    accumulate: Annotated[int, typer.Option(rich_help_panel=RUN, help="Batches to a step.")] = 1
    lr: Annotated[float, typer.Option(rich_help_panel=RUN, help="Highest learning rate.")] = 1e-3
    warmup: Annotated[float, typer.Option(rich_help_panel=RUN, help="Share of the steps in which it rises.")] = 0.03
    floor: Annotated[float, typer.Option(rich_help_panel=RUN, help="Where its cosine ends, as a share.")] = 0.1
    weight_decay: Annotated[float, typer.Option(rich_help_panel=RUN, help="Of AdamW.")] = 0.0
    clip: Annotated[float, typer.Option(rich_help_panel=RUN, help="Longest gradient.")] = 1.0
    precision: Annotated[str, typer.Option(rich_help_panel=RUN, help="bf16, fp32 or auto.")] = "auto"
    loss: Annotated[str, typer.Option(rich_help_panel=RUN, help="kl, rkl, jsd, tv, nla or lk.")] = "lk"
    eta: Annotated[float, typer.Option(rich_help_panel=RUN, help="Of lk: how soon TV takes over from KL.")] = 3.0
    temperature: Annotated[float, typer.Option(rich_help_panel=RUN, help="Of the target's law.")] = 1.0
    seed: Annotated[int, typer.Option(rich_help_panel=RUN, help="Of order, noise and new weights.")] = 0
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", rich_help_panel=RUN, help="Less memory for more time.")
    ] = False
    depth: Annotated[int, typer.Option(rich_help_panel=RUN, help="Drafted tokens per round when measuring.")] = 4
    eval_every: Annotated[int, typer.Option(rich_help_panel=RUN, help="Steps between measures.")] = 200
    save_every: Annotated[int, typer.Option(rich_help_panel=RUN, help="Steps between checkpoints.")] = 50
    log_every: Annotated[int, typer.Option(rich_help_panel=RUN, help="Steps between lines of the log.")] = 10
    patience: Annotated[
        int, typer.Option(rich_help_panel=RUN, help="Stop after so many measures without a better one; 0 never.")
    ] = 0
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", rich_help_panel=RUN, help="A drafter of this kind whose weights it begins with."
        ),
    ] = None
    cache: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", rich_help_panel=DATA, help="Keep the target's states and laws there."),
    ] = None
    cache_top: Annotated[int, typer.Option(rich_help_panel=DATA, help="Tokens kept of each law there.")] = 64

    clean: Annotated[
        bool, typer.Option("--clean", rich_help_panel=RUN, help="Remove the checkpoints when it is done.")
    ] = False

    def settings(self, on_policy: float) -> Settings:
        from ..training.settings import Settings

        names = {field.name for field in fields(Settings)}
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name in names}
        return Settings(**values, on_policy=on_policy)
