"""The options that sub-commands share, as dataclasses whose fields carry Typer's descriptions.

A command takes whole groups (`model: ModelOptions`); `flat` shows Typer their fields as options of the command.
Defaults are those of `draftproof.load` and `SamplingParams`, except that the command line drafts by n-gram.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from .. import Engine, SamplingParams
    from ..interfaces import Drafter

DEFAULT_TARGET = "smollm2-135m"

JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write one JSON document; - is the last line of standard output."),
]


@dataclass(frozen=True)
class TargetOptions:
    """What to load: the arguments of `draftproof.load`, except the drafter."""

    target: Annotated[
        str,
        typer.Option(
            "--target", "-t", rich_help_panel="Model", help="Model folder, known name, Hugging Face name or .gguf file."
        ),
    ] = DEFAULT_TARGET
    dtype: Annotated[
        str | None,
        typer.Option(rich_help_panel="Model", help="float32, bfloat16 or float16. Default: the checkpoint's."),
    ] = None
    device: Annotated[
        str | None, typer.Option(rich_help_panel="Model", help="cpu or cuda. Default: cuda if there is one.")
    ] = None
    weights: Annotated[
        str,
        typer.Option(
            rich_help_panel="Model", help="Format of the target's weights: auto, dense, packed, int8 or int4."
        ),
    ] = "auto"
    draft_weights: Annotated[
        str,
        typer.Option(
            rich_help_panel="Model", help="The same for the drafter; auto is int4 or int8 where there is such a kernel."
        ),
    ] = "auto"
    bitwise: Annotated[
        bool | None,
        typer.Option(
            "--bitwise/--no-bitwise",
            rich_help_panel="Model",
            help="Demand bit-exact passes, or do without. Default: wherever the kernels allow.",
        ),
    ] = None
    max_draft: Annotated[int, typer.Option(rich_help_panel="Model", help="Most tokens drafted per round.")] = 8
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive/--no-adaptive",
            rich_help_panel="Model",
            help="Draft as many tokens as pay, none included, or always --max-draft.",
        ),
    ] = True
    max_batch: Annotated[int, typer.Option(rich_help_panel="Model", help="Most sequences that run at once.")] = 8
    verifier: Annotated[
        str,
        typer.Option(
            rich_help_panel="Model", help="auto, token, block (chains only) or traversal. All exact; auto accepts most."
        ),
    ] = "auto"
    draft_max_length: Annotated[
        int | None, typer.Option(rich_help_panel="Model", help="The same for the drafter; longer texts go undrafted.")
    ] = None
    draft_layers: Annotated[
        int | None, typer.Option(rich_help_panel="Model", help="Keep only so many layers of a draft model.")
    ] = None
    draft_vocab: Annotated[
        int | None, typer.Option(rich_help_panel="Model", help="Let a draft model propose only so many tokens.")
    ] = None
    draft_corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Model",
            help="Text to count frequent tokens in, for --draft-vocab; repeatable. Best: the target's own output.",
        ),
    ] = None
    draft_confidence: Annotated[
        float,
        typer.Option(rich_help_panel="Model", help="A draft model's greedy chain ends below this; 0: at --max-draft."),
    ] = 0.3
    draft_tree: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Model",
            help="Draft trees of --max-draft nodes: dynamic, optimal, or children per depth such as 4,2,1.",
        ),
    ] = None
    draft_costs: Annotated[
        str | None,
        typer.Option(metavar="FILE", rich_help_panel="Model", help="Size optimal trees by what bench --costs wrote."),
    ] = None
    cross_vocab: Annotated[
        str,
        typer.Option(
            rich_help_panel="Model",
            help="A draft model with another vocabulary: auto, intersection, string, or off (refuse it).",
        ),
    ] = "auto"
    max_length: Annotated[
        int | None, typer.Option(rich_help_panel="Model", help="Most tokens per sequence. Default: the model's own.")
    ] = None
    allow_pickle: Annotated[
        bool,
        typer.Option("--allow-pickle", rich_help_panel="Model", help="Load pickle files, which can run code."),
    ] = False
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", rich_help_panel="Model", help="Run code that comes with a model.")
    ] = False

    def load_with(self, drafter: str | Drafter, base: Engine | None = None, **changes: Any) -> Engine:
        """Load the models, with the progress of a download on standard error.

        Args:
            drafter: its name, or one that is loaded already.
            base: an engine whose target is taken instead of loading it again.
            changes: instead of the options of the same names.
        """
        from ..api import load
        from .show import Loading

        values = {field.name: getattr(self, field.name) for field in fields(TargetOptions)}
        target = values.pop("target")
        values["draft_corpus"] = [_text(path) for path in self.draft_corpus or ()]
        values |= changes
        if base is not None:  # what the target was loaded with is settled
            values |= {"dtype": None, "device": None, "bitwise": None, "max_length": None, "weights": "auto"}
        with Loading(f"loading {target if base is None else drafter}") as progress:
            return load(base or target, drafter, **values, progress=progress)


def _text(path: str) -> str:
    from ..errors import OptionError

    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read as UTF-8 text: {error}") from error


@dataclass(frozen=True)
class ModelOptions(TargetOptions):
    """What to load: the arguments of `draftproof.load`."""

    drafter: Annotated[
        str,
        typer.Option(
            "--drafter",
            "-d",
            rich_help_panel="Model",
            help="none, ngram, suffix, model:ID, eagle:FOLDER, medusa:FOLDER, self:N, or a,b.",
        ),
    ] = "ngram"

    def load(self) -> Engine:
        return self.load_with(self.drafter)


@dataclass(frozen=True)
class SamplingOptions:
    """How to choose tokens: the arguments of `SamplingParams`, under the same names."""

    temperature: Annotated[float, typer.Option(rich_help_panel="Sampling", help="0 is greedy.")] = 1.0
    top_p: Annotated[float, typer.Option(rich_help_panel="Sampling", help="Mass of the nucleus; 1 is off.")] = 1.0
    top_k: Annotated[int, typer.Option(rich_help_panel="Sampling", help="Most likely tokens to keep; 0 is off.")] = 0
    min_p: Annotated[
        float, typer.Option(rich_help_panel="Sampling", help="Least share of the top token's probability; 0 is off.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option(rich_help_panel="Sampling", help="Over prompt and output; 1 is off.")
    ] = 1.0
    presence_penalty: Annotated[
        float, typer.Option(rich_help_panel="Sampling", help="Once per token of the output; 0 is off.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, typer.Option(rich_help_panel="Sampling", help="Per occurrence in the output; 0 is off.")
    ] = 0.0
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", rich_help_panel="Sampling", help="Exact budget of new tokens.")
    ] = 256
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", rich_help_panel="Sampling", help="End before this text; repeatable."),
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", rich_help_panel="Sampling", help="Run through the end-of-text token.")
    ] = False
    seed: Annotated[int | None, typer.Option(rich_help_panel="Sampling", help="Same seed and settings, same text.")] = (
        None
    )

    def params(self) -> SamplingParams:
        """The record the engine takes; raises OptionError on a value outside its range."""
        from ..params import SamplingParams

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return SamplingParams(**{**values, "stop": tuple(self.stop or ())})


@dataclass(frozen=True)
class MeasuredOptions(SamplingOptions):
    """The same for measurements, which are greedy and of moderate length unless told otherwise."""

    temperature: Annotated[
        list[float] | None, typer.Option(rich_help_panel="Sampling", help="0 is greedy; repeatable. Default: 0.")
    ] = None  # type: ignore[assignment]
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", rich_help_panel="Sampling", help="Exact budget of new tokens.")
    ] = 128

    def grid(self) -> list[SamplingParams]:
        """One record for each temperature."""
        temperatures = dict.fromkeys(self.temperature or [0.0])
        return [replace(self, temperature=value).params() for value in temperatures]  # type: ignore[arg-type]


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass parameters in the place of those parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
                )
            )

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
