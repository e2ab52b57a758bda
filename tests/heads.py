"""Draft heads written by hand from the tables of tensors, and what they ought to draft, computed the slow way.

Nothing here uses the package's own networks or writers: tensors go through safetensors alone, and the reference
recomputes the whole prefix for every token, without a cache.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import silu

V, H, INNER, HEADS, KV, DIM = 128, 64, 96, 4, 2, 16
DRAFT_IDS = sorted({0, 5, *range(7, 120, 3)})  # the target's ids of the reduced vocabulary
LLAMA = {
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": V,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "attention_bias": False,
}


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int, scale: float = 0.15) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    made = {name: scale * torch.randn(shape, generator=chance) for name, shape in shapes.items()}
    return {name: 1 + tensor if "norm" in name else tensor for name, tensor in made.items()}


def layer_shapes(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    """A Llama layer without its first norms; `width` enters the attention."""
    return {
        f"{prefix}.self_attn.q_proj.weight": (HEADS * DIM, width),
        f"{prefix}.self_attn.k_proj.weight": (KV * DIM, width),
        f"{prefix}.self_attn.v_proj.weight": (KV * DIM, width),
        f"{prefix}.self_attn.o_proj.weight": (H, HEADS * DIM),
        f"{prefix}.post_attention_layernorm.weight": (H,),
        f"{prefix}.mlp.gate_proj.weight": (INNER, H),
        f"{prefix}.mlp.up_proj.weight": (INNER, H),
        f"{prefix}.mlp.down_proj.weight": (H, INNER),
    }


def vocabulary_maps() -> dict[str, torch.Tensor]:
    ids = torch.tensor(DRAFT_IDS)
    mask = torch.zeros(V, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": mask}


def eagle1(seed: int = 0, layers: int = 1, bias: bool = False) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (V, H), "fc.weight": (H, 2 * H)}
    if bias:
        shapes["fc.bias"] = (H,)
    for i in range(layers):
        shapes |= layer_shapes(f"layers.{i}", H)
        if i:
            shapes[f"layers.{i}.input_layernorm.weight"] = (H,)
    config = {"architectures": ["LlamaForCausalLM"], **LLAMA, "num_hidden_layers": layers, "bias": bias}
    return config, random_tensors(shapes, seed)


def eagle3(
    layout: str, seed: int = 0, *, reduced: bool = True, embed: bool = False, qwen3: bool = False, **own: Any
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """EAGLE-3 in a layout, "original" or "speculators"; `own` are its own config keys."""
    first = "midlayer" if layout == "original" else "layers.0"
    num = len(own.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))
    outputs = len(DRAFT_IDS) if reduced else V
    shapes = {
        "fc.weight": (H, num * H),
        **layer_shapes(first, 2 * H),
        f"{first}.input_layernorm.weight": (H,),
        f"{first}.hidden_norm.weight": (H,),
        "norm.weight": (H,),
        "lm_head.weight": (outputs, H),
    }
    if qwen3:
        shapes |= {f"{first}.self_attn.q_norm.weight": (DIM,), f"{first}.self_attn.k_norm.weight": (DIM,)}
    if embed:
        shapes["embed_tokens.weight"] = (V, H)
    if own.get("norm_before_fc"):
        shapes["input_norm.weight"] = (num * H,)
    if own.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (H,) for i in range(num)}
    tensors = {**random_tensors(shapes, seed), **(vocabulary_maps() if reduced else {})}
    kind = {"model_type": "qwen3", "head_dim": DIM} if qwen3 else {}
    if layout == "original":
        return {"architectures": ["LlamaForCausalLM"], **LLAMA, **kind, "draft_vocab_size": outputs, **own}, tensors
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": outputs,
        **own,
        "transformer_layer_config": {**LLAMA, **kind},
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3}]},
    }
    return config, tensors


def medusa(
    layout: str = "original", seed: int = 0, heads: int = 3, blocks: int = 1, stated: int | None = None
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for h in range(heads):
        for b in range(blocks):
            name = f"{h}.{b}.linear" if layout == "original" else f"blocks.{h}.layers.{b}"
            shapes |= {f"{name}.weight": (H, H), f"{name}.bias": (H,)}
        shapes[f"{h}.{blocks}.weight" if layout == "original" else f"lm_heads.{h}.weight"] = (V, H)
    stated = heads if stated is None else stated
    if layout == "original":
        config: dict[str, Any] = {"medusa_num_heads": stated, "medusa_num_layers": blocks, "version": "2"}
    else:
        config = {"model_type": "medusa", "hidden_size": H, "vocab_size": V, "num_heads": stated,
                  "num_hidden_layers": blocks, "medusa_fc_bias": True}  # fmt: skip
    return config, random_tensors(shapes, seed)


def save(folder: Path, made: tuple[dict[str, Any], dict[str, torch.Tensor]], name: str = "model.safetensors") -> Path:
    folder.mkdir()
    config, tensors = made
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / name)
    return folder


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def rotate(x: torch.Tensor) -> torch.Tensor:
    """x `[T, heads, D]` at positions 0 to T - 1: components i and i + D/2 turn by position * theta^(-2i/D)."""
    half = x.shape[-1] // 2
    out = x.clone()
    for i in range(half):
        angle = torch.arange(len(x)) * 10000.0 ** (-2 * i / x.shape[-1])
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        out[..., i] = x[..., i] * cos - x[..., i + half] * sin
        out[..., i + half] = x[..., i + half] * cos + x[..., i] * sin
    return out


def attention(t: dict[str, torch.Tensor], p: str, x: torch.Tensor) -> torch.Tensor:
    q = (x @ t[f"{p}.self_attn.q_proj.weight"].T).view(len(x), HEADS, DIM)
    k = (x @ t[f"{p}.self_attn.k_proj.weight"].T).view(len(x), KV, DIM)
    v = (x @ t[f"{p}.self_attn.v_proj.weight"].T).view(len(x), KV, DIM)
    if f"{p}.self_attn.q_norm.weight" in t:
        q, k = rms(q, t[f"{p}.self_attn.q_norm.weight"]), rms(k, t[f"{p}.self_attn.k_norm.weight"])
    q, k = rotate(q), rotate(k)
    out = torch.zeros(len(x), HEADS, DIM)
    for head in range(HEADS):
        kv = head // (HEADS // KV)
        for i in range(len(x)):
            scores = k[: i + 1, kv] @ q[i, head] / math.sqrt(DIM)
            out[i, head] = torch.softmax(scores, 0) @ v[: i + 1, kv]
    return out.reshape(len(x), -1) @ t[f"{p}.self_attn.o_proj.weight"].T


def mlp(t: dict[str, torch.Tensor], p: str, x: torch.Tensor) -> torch.Tensor:
    gate, up = x @ t[f"{p}.mlp.gate_proj.weight"].T, x @ t[f"{p}.mlp.up_proj.weight"].T
    return (silu(gate) * up) @ t[f"{p}.mlp.down_proj.weight"].T


@torch.inference_mode()
def eagle_logits(made: tuple[dict[str, Any], dict[str, torch.Tensor]], model: Any, text: list[int], guesses: list[int]):
    """Logits `[D]` of the token after text and guesses: the whole prefix anew, features of guesses by recursion."""
    config, t = made
    states = model(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
    states = [s[0, :-1] for s in states]  # the engine has fed all but the last token
    tokens = torch.tensor([*text, *guesses])
    embed = t.get("embed_tokens.weight", model.get_input_embeddings().weight)[tokens[1:]]
    third = "norm.weight" in t
    if third:
        num = len(model.model.layers)
        layers = config.get("eagle_aux_hidden_state_layer_ids") or [2, num // 2, num - 3]
        parts = [states[layer] for layer in sorted(layers)]
        if config.get("fc_norm"):
            parts = [rms(part, t[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)]
        fused = torch.cat(parts, -1)
        if config.get("norm_before_fc"):
            fused = rms(fused, t["input_norm.weight"])
        features = fused @ t["fc.weight"].T
    else:
        features = states[-1]
    while True:
        e = embed[: len(features)]
        if third:
            p = "midlayer" if "midlayer.hidden_norm.weight" in t else "layers.0"
            normed = rms(features, t[f"{p}.hidden_norm.weight"])
            residual = normed if config.get("norm_before_residual") else features
            x = torch.cat([rms(e, t[f"{p}.input_layernorm.weight"]), normed], -1)
            x = residual + attention(t, p, x)
            x = x + mlp(t, p, rms(x, t[f"{p}.post_attention_layernorm.weight"]))
            last = rms(x, t["norm.weight"])
            carried = last if config.get("norm_output") else x
        else:
            x = torch.cat([e, features], -1) @ t["fc.weight"].T + t.get("fc.bias", 0)
            for i in range(config["num_hidden_layers"]):
                p = f"layers.{i}"
                x = x + attention(t, p, rms(x, t[f"{p}.input_layernorm.weight"]) if i else x)
                x = x + mlp(t, p, rms(x, t[f"{p}.post_attention_layernorm.weight"]))
            last = carried = x
        if len(features) == len(embed):
            return last[-1] @ (t["lm_head.weight"] if third else model.lm_head.weight).T
        features = torch.cat([features, carried[-1:]])


@torch.inference_mode()
def medusa_logits(made: tuple[dict[str, Any], dict[str, torch.Tensor]], model: Any, text: list[int], head: int):
    """Logits `[V]` of one head after `text`, whose last token is not fed."""
    _, t = made
    x = model.model(torch.tensor([text[:-1]]), use_cache=False).last_hidden_state[0, -1]
    old = any(name.startswith("0.") for name in t)
    block = 0
    while (name := f"{head}.{block}.linear" if old else f"blocks.{head}.layers.{block}") + ".weight" in t:
        x = x + silu(t[name + ".weight"] @ x + t[name + ".bias"])
        block += 1
    return t[f"{head}.{block}.weight" if old else f"lm_heads.{head}.weight"] @ x
