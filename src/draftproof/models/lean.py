"""Our own forward for the Llama family: few operators a layer, fused weights, a cache written in place.

Llama, Mistral (without a window), Qwen2 and Qwen3 share one layer: norm, attention with rotary positions, norm, gated
MLP. transformers runs it with about fifty operators and copies of the cache; here tokens of all rows are one flat
`[T, H]` through five steps a layer: query/key/value as one product behind its norm, attention over each row's own slots
(our own kernel where it can be had, else torch's), the output product with the residual added inside, gate and up as
one product behind its norm, and the product behind the gate, again with its residual. It equals transformers' forward
up to rounding (`plugged` is the oracle), on any device.

Bit-exact mode: a token's result must not depend on what shares the pass. Packed, int8 and int4 products are row-wise
identical, our own attention kernel is by its making, torch's where `attention` calls it with care. `invariance` tries
all that out on the model itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from ..errors import OptionError
from .attention import Attention, TorchAttention
from .linear import Linear, Make, maker
from .masks import Block
from .native.arena import copy as copied
from .native.attention import NativeAttention
from .passes import PassOutput, Want
from .rotary import Rotary
from .slots import SlotStore

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def unsupported(model: Any) -> str | None:
    """Why this model needs transformers' own forward; None if the lean one can run it."""
    config, name = model.config, type(model).__name__
    if name not in FAMILY:
        return f"{name} is not of the Llama family ({', '.join(FAMILY)})"
    if getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True):
        return f"{name} has a sliding window"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return f"{name} mixes layer types"
    if not type(model).__module__.startswith("transformers."):
        return f"{name} comes with its own code"
    if config.hidden_act != "silu":
        return f"{name} uses {config.hidden_act}, not silu"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"{name} rotates only a part of each head"
    return None


@dataclass(frozen=True)
class _Layer:
    """One decoder layer's weights, norms and gate inside the maps that read them.

    `head_scale` float32 `[heads + kv_heads, D]` holds Qwen3's query and key norms, or is None.
    """

    qkv: Linear
    head_scale: Tensor | None
    output: Linear
    gate_up: Linear
    down: Linear


class LeanForward:
    """See the module.

    Args:
        model: a transformers model of the family; its weights are taken out of it, layer by layer.
        max_length: number of positions the model knows.
        weights: "auto" (packed on the CPU, dense elsewhere), "dense", "packed", "int8" or "int4".
        bitwise: make every token's result independent of what shares the pass (`invariance` tries it out).
        native: attend by our own kernel; None is wherever it can be had.

    Raises:
        OptionError: a format or kernel that cannot be had here.
    """

    def __init__(
        self,
        model: Any,
        max_length: int,
        weights: str = "auto",
        *,
        bitwise: bool = False,
        native: bool | None = None,
    ):
        config = model.config
        self.max_length = max_length
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.weights, make = maker(weights, self.dtype, self.device)
        fine = maker("int8", self.dtype, self.device)[1] if self.weights == "int4" else make  # what 4 bits hurt most
        self.hidden_size: int = config.hidden_size
        self.taps: tuple[int, ...] = ()
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        eps = config.rms_norm_eps
        body = model.model
        embedding = body.embed_tokens.weight
        self.embedding: Tensor = embedding.detach() if self.weights == "dense" else _own(embedding)
        self.vocab_size = self.embedding.shape[0]
        self._layers = [_take_layer(layer, make, fine, eps) for layer in body.layers]
        self._norm, self._eps = _own(body.norm.weight), eps
        self._head: Linear = _take([model.lm_head], fine)
        self._min_rows = max(linear.min_rows for linear in self._linears())
        self.cache = SlotStore(len(self._layers), kv_heads, width, self.dtype, self.device)
        reason = NativeAttention.unsupported(width, self.dtype, self.device)
        if native and reason:
            raise OptionError(reason)
        own = reason is None if native is None else native
        rotary = Rotary(body.rotary_emb, width, max_length, torch.float32 if own else self.dtype, self.device)
        self.attention: Attention
        self.attention = (NativeAttention if own else TorchAttention)(heads, kv_heads, width, eps, self.cache, rotary)
        self.bitwise = bitwise

    @property
    def bitwise(self) -> bool:
        return self._bitwise

    @bitwise.setter
    def bitwise(self, wanted: bool) -> None:
        self._bitwise = wanted
        if isinstance(self.attention, TorchAttention):
            self.attention.bitwise = wanted

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def early_exit(self, num_layers: int) -> LeanForward:
        """The first layers under the same norm and output layer: a model of its own that shares weights and slots.

        What it writes to a slot is what this forward writes there, for those layers; the others keep what they hold.
        """
        exit = copy.copy(self)
        exit.taps, exit._layers = (), self._layers[:num_layers]
        return exit

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that one pass reads."""
        return sum(linear.num_bytes for linear in self._linears())

    def _linears(self) -> list[Linear]:
        parts = [part for layer in self._layers for part in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return [*parts, self._head]

    @property
    def chunk(self) -> int:
        """Prompt tokens per pass."""
        return self.attention.chunk

    @torch.inference_mode()
    def __call__(self, blocks: Sequence[Block], want: Want) -> PassOutput:
        """See `passes.Forward`."""
        sizes = [len(block.queries) for block in blocks]
        num_tokens = sum(sizes)
        ids = [token for block in blocks for token in block.queries]
        ids += [0] * (self._min_rows - num_tokens)
        plan = self.attention.plan(blocks)
        x = self.embedding[torch.tensor(ids, device=self.device)]
        tapped = []
        for number, layer in enumerate(self._layers):
            if number in self.taps:
                tapped.append(x[:num_tokens])
            x = layer.output(self.attention(number, layer.qkv(x), layer.head_scale, plan), x)
            x = layer.down(layer.gate_up(x), x)
        if len(self._layers) in self.taps:
            tapped.append(self._normed(x[:num_tokens]))
        logits = self._logits(x, sizes, want)
        return PassOutput(logits, torch.cat(tapped, dim=-1) if tapped else None)

    def _logits(self, x: Tensor, sizes: Sequence[int], want: Want) -> Tensor:
        num_tokens = sum(sizes)
        if want == "none":
            return x.new_empty(0, self.vocab_size)
        if want == "last" and len(sizes) < num_tokens:
            ends = torch.tensor(sizes).cumsum(0) - 1
            x, num_tokens = x[ends.to(x.device)], len(sizes)
        return self.project(self._normed(x))[:num_tokens]

    def _normed(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._norm.shape, self._norm, self._eps)

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """See `passes.Forward`."""
        return self.embedding[ids]

    @torch.inference_mode()
    def project(self, states: Tensor) -> Tensor:
        """See `passes.Forward`."""
        num = len(states)
        if num < self._min_rows:
            states = torch.cat([states, states[:1].expand(self._min_rows - num, -1)])
        return self._head(states)[:num]


def _own(weight: Tensor) -> Tensor:
    """A copy: a view of one tensor would keep the whole file of weights mapped into memory."""
    return copied(weight.detach())


def _take(modules: Sequence[Any], make: Make, norm: tuple[Tensor, float] | None = None, gated: bool = False) -> Linear:
    """One linear map from several of the same input; the modules give their weights up, so none is held twice."""
    weights = [module.weight.detach() for module in modules]
    biases = [None if module.bias is None else module.bias.detach() for module in modules]
    for module in modules:
        module.weight = module.bias = None
    bias = None
    if any(bias is not None for bias in biases):
        bias = torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases)])
    return make(weights if len(weights) > 1 else weights[0], bias, norm=norm, gated=gated)


def _take_layer(layer: Any, make: Make, fine: Make, eps: float) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    heads = attention.q_proj.out_features // attention.head_dim
    kv_heads = attention.k_proj.out_features // attention.head_dim
    scale = None
    if hasattr(attention, "q_norm"):
        q_norm, k_norm = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        scale = torch.cat([q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1)]).float()
    input_norm = (_own(layer.input_layernorm.weight), eps)
    mlp_norm = (_own(layer.post_attention_layernorm.weight), eps)
    return _Layer(
        qkv=_take([attention.q_proj, attention.k_proj, attention.v_proj], fine, norm=input_norm),
        head_scale=scale,
        output=_take([attention.o_proj], make),
        gate_up=_take([mlp.gate_proj, mlp.up_proj], make, norm=mlp_norm),
        down=_take([mlp.down_proj], make, gated=True),
    )
