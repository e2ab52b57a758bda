"""Load any decoder-only Hugging Face model and its tokenizer, safely, and say early whether it can be rewound.

Safe means: safetensors and GGUF only unless pickle files are allowed (and then tensors only), no code from the model
folder unless that is allowed, no weight silently left at random values. Everything wrong with a folder is one line.

This file knows nothing of drafting; `check_rewindable` refuses models whose state cannot be set back to a shorter
text, `layer_types` and `sliding_window` tell the mask builder what each layer may attend to.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import FetchError, ModelError, OptionError
from . import sources
from .folder import SAFE_WEIGHTS, TOKENIZER_FILES, check_folder, first_line
from .gguf import quiet

NO_LIMIT = 1 << 30
_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx", "seq_length")
_REWINDABLE = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model ready for inference.

    Fields:
        model: the transformers model, in eval mode, without gradients.
        tokenizer: the transformers tokenizer, or None (token ids only).
        config: the model's config; `config.get_text_config(decoder=True)` is the language model's part.
        name: what the user asked for.
        eos_token_ids: every id that ends a text, from generation config, config and tokenizer; may be empty.
        max_length: the longest text its positions allow; NO_LIMIT where the config states none.
    """

    model: Any
    tokenizer: Any | None
    config: Any
    name: str
    eos_token_ids: tuple[int, ...]
    max_length: int

    @property
    def vocab_size(self) -> int:
        """Number of logits per position."""
        return int(self.model.get_output_embeddings().weight.shape[0])


def load_model(
    name: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    progress: sources.Progress | None = None,
) -> LoadedModel:
    """Load a folder, a .gguf file, a known short name or a Hugging Face name.

    Args:
        dtype: None is the checkpoint's own; otherwise a floating torch dtype or its name.
        device: None is cuda if there is one, else cpu.
        allow_pickle: read .bin weights where there are no safetensors; tensors only, objects are still refused.
        trust_remote_code: run Python code that comes with the model.
        progress: called with (bytes done, bytes in total) while a known model is fetched.

    Raises:
        ModelError: missing, damaged, unsafe, or not a decoder-only language model.
        FetchError: could not be fetched.
        OptionError: an unknown dtype or device.
    """
    torch_dtype, torch_device = _dtype(dtype), _device(device)
    where = sources.resolve(str(name), progress=progress)
    label = str(name)
    if isinstance(where, Path):
        check_folder(where, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    with quiet():
        access = {"trust_remote_code": trust_remote_code}
        if isinstance(where, Path) or not sources.hub_reachable():
            access["local_files_only"] = True
        config = _load_config(where, label, access)
        model = _load_weights(where, label, config, torch_dtype, allow_pickle, access)
        tokenizer = read_tokenizer(where, label, access)
    try:
        model = model.to(torch_device).eval().requires_grad_(False)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{label} cannot be moved to {torch_device}: {first_line(error)}") from error
    return LoadedModel(
        model, tokenizer, model.config, label, _eos_token_ids(model, tokenizer), max_length(model.config)
    )


def load_tokenizer(name: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer alone of whatever `load_model` loads.

    Raises:
        ModelError: there is none, or it cannot be loaded. FetchError: could not be fetched.
    """
    where = sources.resolve(name)
    access = {"trust_remote_code": trust_remote_code}
    if isinstance(where, Path) or not sources.hub_reachable():
        access["local_files_only"] = True
    with quiet():
        tokenizer = read_tokenizer(where, name, access)
    if tokenizer is None:
        raise ModelError(f"{name} has no tokenizer, so it cannot read text: give a model folder with one")
    return tokenizer


def check_rewindable(model: Any, name: str = "") -> None:
    """Refuse a model whose state cannot be set back to a shorter text, naming the kind of layer that cannot.

    Raises:
        ModelError: recurrent, convolutional, linear-attention, compressed or shared layers; no key-value cache; or
            positions that cannot be given.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    label = f"{name or 'the model'} ({type(model).__name__})"
    advice = "choose a model with plain or sliding-window attention"
    arguments = inspect.signature(model.forward).parameters
    try:
        layers = DynamicCache(config=model.config).layers
    except Exception as error:
        raise ModelError(f"{label} has no cache that can be rewound: {first_line(error)}; {advice}") from error
    for index, (kind, layer) in enumerate(zip(layer_types(model.config), layers, strict=True)):
        if kind not in _REWINDABLE or type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ModelError(f"{label} cannot be rewound: layer {index} is {kind} ({type(layer).__name__}); {advice}")
    if getattr(model, "_is_stateful", False):
        raise ModelError(f"{label} cannot be rewound: it keeps a recurrent state beside its cache; {advice}")
    if not {"cache", "past_key_values"} & arguments.keys():
        raise ModelError(f"{label} cannot be rewound: its forward takes no key-value cache; {advice}")
    text = model.config.get_text_config(decoder=True)
    own_masks = getattr(text, "alibi", False) is True or "local" in (getattr(text, "attention_layers", None) or ())
    if "position_ids" not in arguments or own_masks:
        raise ModelError(
            f"{label} cannot verify drafts: it takes a token's position from its place in the cache; "
            "choose a model with rotary or learned positions"
        )


def layer_types(config: Any) -> list[str]:
    """One of "full_attention", "sliding_attention", "chunked_attention", ... for each decoder layer."""
    from transformers.cache_utils import get_layer_types_and_kwargs

    return list(get_layer_types_and_kwargs(config.get_text_config(decoder=True))[0])


def sliding_window(config: Any) -> int | None:
    """How many positions, its own included, a token of a sliding layer sees; None without such layers."""
    if "sliding_attention" not in layer_types(config):
        return None
    return int(config.get_text_config(decoder=True).sliding_window)


def max_length(config: Any) -> int:
    """The longest text the config's positions allow; NO_LIMIT where it states none.

    Rotary embeddings that change with the length of the text (dynamic, longrope) would make a token's law depend on
    how far a draft reaches, so such models end where the change would begin.
    """
    text = config.get_text_config(decoder=True)
    stated = [getattr(text, field, None) for field in _LENGTH_FIELDS]
    limit = next((int(value) for value in stated if isinstance(value, int) and value > 0), NO_LIMIT)
    rope = getattr(text, "rope_parameters", None) or {}
    for entry in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if entry.get("rope_type") in ("dynamic", "longrope"):
            limit = min(limit, int(entry.get("original_max_position_embeddings") or limit))
    return limit


def _load_config(where: Path | str, label: str, access: dict[str, bool]) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(where, **access)
    except Exception as error:
        raise _load_error(where, label, "config", error) from error
    if config.is_encoder_decoder:
        raise ModelError(f"{label}: expected a decoder-only model, given an encoder-decoder ({config.model_type})")
    text = config.get_text_config(decoder=True)
    bidirectional = getattr(text, "is_causal", True) is False or getattr(text, "use_bidirectional_attention", False)
    # gpt_neox configs carry an is_decoder flag that their causal model never reads
    encoder = getattr(text, "is_decoder", True) is False and not text.model_type.startswith("gpt_neox")
    custom = access["trust_remote_code"] and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if not custom and (_causal_class(config) is None or bidirectional is True or encoder):
        raise ModelError(f"{label}: expected a causal language model, given model type {config.model_type!r}")
    return config


def _load_weights(
    where: Path | str, label: str, config: Any, dtype: Any, allow_pickle: bool, access: dict[str, bool]
) -> Any:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"use_safetensors": True}
    if allow_pickle:
        safe = isinstance(where, Path) and any((where / name).exists() for name in SAFE_WEIGHTS)
        options = {"use_safetensors": safe or None, "weights_only": True}
    if (known := _causal_class(config)) is not None:
        options["attn_implementation"] = "sdpa" if known._supports_sdpa else "eager"
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            where,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below instead, with both shapes
            **options,
            **access,
        )
    except Exception as error:
        raise _load_error(where, label, "weights", error) from error
    if info["mismatched_keys"]:
        key, stored, expected = sorted(info["mismatched_keys"])[0]
        raise ModelError(
            f"{label}: config.json expects {key} of shape {list(expected)}, the weights have {list(stored)}; "
            "config and weights are of different models"
        )
    if info["missing_keys"]:
        keys = sorted(info["missing_keys"])
        raise ModelError(f"{label}: the weights lack {len(keys)} tensors, first {keys[0]}; fetch the model again")
    if foreign := _ignored_weights(model, info["unexpected_keys"]):
        raise ModelError(
            f"{label}: the weights hold {len(foreign)} tensors that config.json has no place for, first {foreign[0]}; "
            "config and weights are of different models"
        )
    return model


def _ignored_weights(model: Any, unexpected: Any) -> list[str]:
    """Unexpected tensors that belong to the model's own parts: one more layer, a bias the config switched off.

    Tensors of whole parts the model does not have (a vision tower, multi-token-prediction heads) change nothing.
    """
    own = {re.sub(r"\d+", "*", key) for key in model.state_dict()}
    modules = {key for key, _ in model.named_modules() if key}
    buffers = {key for key, _ in model.named_buffers()}
    return sorted(
        key
        for key in unexpected
        if key not in buffers and (re.sub(r"\d+", "*", key) in own or key.rpartition(".")[0] in modules)
    )


def read_tokenizer(where: Path | str, label: str, access: dict[str, bool]) -> Any | None:
    """The tokenizer of a folder or a hub name; None if it has none.

    Raises:
        ModelError: it cannot be loaded; names the model by `label`.
    """
    from transformers import AutoTokenizer

    if isinstance(where, Path) and not any((where / name).exists() for name in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(where, **access)
    except Exception as error:
        if isinstance(where, str) and isinstance(error, OSError):
            return None  # a hub model without tokenizer files
        raise _load_error(where, label, "tokenizer", error) from error


def _load_error(where: Path | str, label: str, part: str, error: Exception) -> ModelError | FetchError:
    """One line for whatever transformers, safetensors or torch raised."""
    text = str(error)
    if "trust_remote_code" in text:
        return ModelError(
            f"{label} needs Python code that comes with the model; read it, then allow it with --trust-remote-code"
        )
    if isinstance(where, str) and isinstance(error, OSError):
        if part == "weights" and "does not appear to have" in text:
            return ModelError(f"{label} has no safetensors weights; convert it, or load it with --allow-pickle")
        return FetchError(
            f"{label} is neither in the local Hugging Face cache nor could it be fetched from the hub "
            "(no connection, no such name, or no access); give a model folder, a .gguf file or a known name "
            f"({', '.join(sources.KNOWN)})"
        )
    if "weights_only" in text or "Unpickl" in type(error).__name__ or "unsupported global" in text.lower():
        return ModelError(f"{label}: its pickle weights hold more than tensors and are not loaded; use safetensors")
    kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
    return ModelError(f"{label}: the {part} cannot be loaded ({kind}{first_line(error)}); fetch or convert it again")


def _causal_class(config: Any) -> Any | None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        return None
    return found[0] if isinstance(found, (list, tuple)) else found


def _eos_token_ids(model: Any, tokenizer: Any | None) -> tuple[int, ...]:
    text = model.config.get_text_config(decoder=True)
    ids: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config, text, tokenizer):
        value = getattr(owner, "eos_token_id", None)
        ids.update(int(i) for i in (value if isinstance(value, (list, tuple)) else [value]) if i is not None)
    return tuple(sorted(ids))


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None or dtype == "auto":
        return "auto"
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionError(f"dtype must be bfloat16, float16 or float32, not {dtype!r}")
    return found


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device must be cpu, cuda or cuda:N, not {str(device)!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device {str(device)!r} was asked for, but torch finds no CUDA device; use cpu")
    return found
