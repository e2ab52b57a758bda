"""Our own forward for the Llama family: few operators a layer, fused weights, a cache written in place.

Llama, Mistral (without a window), Qwen2 and Qwen3 share one layer: norm, attention with rotary positions, norm, gated
MLP. transformers runs it with about fifty operators and copies of the cache; here tokens of all rows are one flat
`[T, H]` through the linear maps, query/key/value are one product, gate and up another, residuals are added inside the
product, and attention reads each row's own slots. It equals transformers' forward up to rounding (`plugged` is the
oracle), on any device.

Bit-exact mode: a token's result must not depend on what shares the pass. Packed and int8 products are row-wise
identical from 2 rows on. Attention is called per row: over slots rounded up to a multiple of 512, the block in which
torch's CPU kernel adds keys up, and with at most 16 queries, padded so that its last block of 32 rows is never so short
that another kernel takes it. `invariance.fault` tries all that out on the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from .linear import Linear, maker
from .masks import Block
from .passes import PassOutput, Want
from .slots import SlotStore

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_GRAIN = 16  # slots per attention call are a multiple of this
_BLOCK = 512  # ... and of this in bit-exact mode: the kernel's block of keys
_QUERIES = 16  # queries per attention call in bit-exact mode
_ROWS, _LEAST = 32, 4  # the kernel's block of query rows, and the fewest that its last block may have


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
    """One decoder layer's weights. `head_scale` `[nq + nkv, D]` holds Qwen3's query and key norms, or is None."""

    input_norm: Tensor
    qkv: Linear
    head_scale: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class _View:
    """One row's share of a pass: tokens [first, last) of the flat batch, its cache by layer, and what each may see."""

    first: int
    last: int
    start: int
    cache: list[tuple[Tensor, Tensor]]
    chunks: tuple[tuple[int, int, int, Tensor], ...]  # first and last query, number of slots, mask [1, 1, g * n, S]


class LeanForward:
    """See the module.

    Args:
        model: a transformers model of the family; its weights are taken out of it, layer by layer.
        max_length: number of positions the model knows.
        weights: "auto" (packed on the CPU, dense elsewhere), "dense", "packed" or "int8".
        bitwise: make every token's result independent of what shares the pass (`invariance` tries it out).
    """

    def __init__(self, model: Any, max_length: int, weights: str = "auto", *, bitwise: bool = False):
        config = model.config
        self.max_length = max_length
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.weights, make = maker(weights, self.dtype, self.device)
        self.num_layers, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.taps: tuple[int, ...] = ()
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._eps = config.rms_norm_eps
        body = model.model
        self._embedding: Tensor = body.embed_tokens.weight
        self.vocab_size = self._embedding.shape[0]
        self._rotary = body.rotary_emb
        self._layers = [_take_layer(layer, make) for layer in body.layers]
        self._norm: Tensor = body.norm.weight
        self._head: Linear = _take([model.lm_head], make)
        self._min_rows = max(linear.min_rows for linear in self._linears())
        self.bitwise = bitwise
        self._cos, self._sin = self._table(256)
        self.cache = SlotStore(len(self._layers), self._kv_heads, self._width, self.dtype, self.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that one pass reads."""
        return sum(linear.num_bytes for linear in self._linears())

    def _linears(self) -> list[Linear]:
        parts = [part for layer in self._layers for part in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return [*parts, self._head]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Query heads, key heads, width of a head."""
        return self._heads, self._kv_heads, self._width

    @property
    def chunk(self) -> int:
        """Prompt tokens per pass; products of more than 160 rows may take another kernel."""
        return 128 if self.bitwise else 512

    @torch.inference_mode()
    def __call__(self, blocks: Sequence[Block], want: Want) -> PassOutput:
        """See `passes.Forward`."""
        num_tokens = sum(len(block.tokens) for block in blocks)
        ids = [token for block in blocks for token in block.tokens]
        positions = [position for block in blocks for position in _positions(block)]
        padding = max(0, self._min_rows - num_tokens)
        index = torch.tensor(positions + [0] * padding, device=self.device)
        views = self._views(blocks)
        highest = max(positions)
        if highest >= len(self._cos):
            self._cos, self._sin = self._table(2 * highest)
        cos, sin = self._cos[index], self._sin[index]
        x = self._embedding[torch.tensor(ids + [0] * padding, device=self.device)]
        tapped = []
        for number, layer in enumerate(self._layers):
            if number in self.taps:
                tapped.append(x[:num_tokens])
            x = self._layer(number, layer, x, cos, sin, views)
        if len(self._layers) in self.taps:
            tapped.append(rms_norm(x[:num_tokens], self._norm.shape, self._norm, self._eps))
        logits = self._logits(x, num_tokens, blocks, want)
        return PassOutput(logits, torch.cat(tapped, dim=-1) if tapped else None)

    def _logits(self, x: Tensor, num_tokens: int, blocks: Sequence[Block], want: Want) -> Tensor:
        if want == "none":
            return x.new_empty(0, self.vocab_size)
        if want == "last" and len(blocks) < num_tokens:
            ends = torch.tensor([len(block.tokens) for block in blocks]).cumsum(0) - 1
            x, num_tokens = x[ends.to(x.device)], len(blocks)
        return self._project(rms_norm(x, self._norm.shape, self._norm, self._eps))[:num_tokens]

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """See `passes.Forward`."""
        return self._embedding[ids]

    @torch.inference_mode()
    def project(self, states: Tensor) -> Tensor:
        """See `passes.Forward`."""
        return self._project(states)[: len(states)]

    def _project(self, x: Tensor) -> Tensor:
        if len(x) < self._min_rows:
            x = torch.cat([x, x[:1].expand(self._min_rows - len(x), -1)])
        return self._head(x)

    def _layer(self, number: int, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, views: Sequence[_View]) -> Tensor:
        heads, kv_heads, width = self._heads, self._kv_heads, self._width
        shape = layer.input_norm.shape
        qkv = layer.qkv(rms_norm(x, shape, layer.input_norm, self._eps)).view(len(x), heads + 2 * kv_heads, width)
        qk = qkv[:, : heads + kv_heads]
        if layer.head_scale is not None:
            qk = rms_norm(qk, (width,), None, self._eps) * layer.head_scale
        qk = torch.addcmul(qk * cos, torch.roll(qk, width // 2, -1), sin)
        mixed = []
        for view in views:
            keys, values = view.cache[number]
            end = view.start + view.last - view.first
            keys[:, view.start : end] = qk[view.first : view.last, heads:].transpose(0, 1)
            values[:, view.start : end] = qkv[view.first : view.last, heads + kv_heads :].transpose(0, 1)
            for first, last, span, mask in view.chunks:
                q = qk[first:last, :heads]
                mixed.append(self.attend(q, keys[None, :, :span], values[None, :, :span], mask))
        if len(x) > views[-1].last:  # rows that pad the product
            mixed.append(mixed[-1].new_zeros(len(x) - views[-1].last, heads * width))
        x = layer.output(mixed[0] if len(mixed) == 1 else torch.cat(mixed), x)
        gate_up = layer.gate_up(rms_norm(x, shape, layer.mlp_norm, self._eps))
        gate, up = gate_up.chunk(2, dim=-1)
        return layer.down(silu(gate).mul_(up), x)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """q `[n, heads, D]`, keys and values `[1, kv_heads, S, D]`, mask `[1, 1, g * m, S]`, m >= n; `[n, heads * D]`.

        Heads that share keys become more queries of one head, so each key is read once.
        """
        num, group = len(q), self._heads // self._kv_heads
        padded = mask.shape[2] // group
        q = q.view(num, self._kv_heads, group, self._width).permute(1, 2, 0, 3)
        if padded > num:
            q = torch.nn.functional.pad(q, (0, 0, 0, padded - num))
        q = q.reshape(1, self._kv_heads, group * padded, self._width)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.view(self._kv_heads, group, padded, self._width)[:, :, :num]
        return out.permute(2, 0, 1, 3).reshape(num, -1)

    def _views(self, blocks: Sequence[Block]) -> list[_View]:
        """Where each row's tokens go and what they see, once for all layers."""
        ends = [block.start + len(block.tokens) for block in blocks]
        grain = _BLOCK if self.bitwise else _GRAIN
        self.cache.reserve(max(block.row for block in blocks) + 1, -(-max(ends) // grain) * grain)
        views, first = [], 0
        for block in blocks:
            size = len(block.tokens)
            sees = block.sees()
            chunks = []
            step = _QUERIES if self.bitwise else size
            for begin in range(0, size, step):
                stop = min(begin + step, size)
                chunks.append((first + begin, first + stop, *self.sight(block, sees, begin, stop)))
            views.append(_View(first, first + size, block.start, self.cache.row(block.row), tuple(chunks)))
            first += size
        return views

    def sight(self, block: Block, sees: Tensor, begin: int, stop: int) -> tuple[int, Tensor]:
        """S, and the additive mask `[1, 1, g * m, S]` of queries [begin, stop) of a block; padding sees slot 0."""
        reach = block.start + (stop if block.parents is None else len(block.tokens))
        grain = _BLOCK if self.bitwise else _GRAIN
        span = -(-reach // grain) * grain
        num = self.padded(stop - begin)
        mask = torch.full((num, span), -torch.inf, dtype=self.dtype)
        mask[: stop - begin, : block.start] = 0
        own = min(span - block.start, len(block.tokens))
        mask[: stop - begin, block.start : block.start + own].masked_fill_(sees[begin:stop, :own], 0)
        mask[stop - begin :, 0] = 0
        return span, mask.to(self.device).repeat(self._heads // self._kv_heads, 1)[None, None]

    def padded(self, num: int) -> int:
        """Queries to attend with so that `num` of them get the bits that each gets alone."""
        group = self._heads // self._kv_heads
        while self.bitwise and 0 < group * num % _ROWS < _LEAST:
            num += 1
        return num

    def _table(self, size: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin `[P, 1, D]` from the model's own rotary embedding: rotating is q * cos + roll(q) * sin."""
        size = min(self.max_length, max(256, size))
        positions = torch.arange(size, device=self.device)[None]
        with torch.inference_mode():
            cos, sin = self._rotary(self._norm.new_zeros(1, 1), positions)
        sign = torch.ones(self._width, dtype=sin.dtype, device=self.device)
        sign[: self._width // 2] = -1
        return cos[0][:, None].clone(), (sin[0] * sign)[:, None]


def _positions(block: Block) -> list[int]:
    return [block.start + depth for depth in block.depths()]


def _take(modules: Sequence[Any], make: Any) -> Linear:
    """One linear map from several of the same input; the modules give their weights up, so none is held twice."""
    weights = [module.weight.detach() for module in modules]
    biases = [None if module.bias is None else module.bias.detach() for module in modules]
    for module in modules:
        module.weight = module.bias = None
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    if all(bias is None for bias in biases):
        return make(weight, None)
    filled = [w.new_zeros(len(w)) if bias is None else bias for w, bias in zip(weights, biases)]
    return make(weight, torch.cat(filled))


def _take_layer(layer: Any, make: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    heads = attention.q_proj.out_features // attention.head_dim
    kv_heads = attention.k_proj.out_features // attention.head_dim
    scale = None
    if hasattr(attention, "q_norm"):
        q_norm, k_norm = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        scale = torch.cat([q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1)])
    return _Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_take([attention.q_proj, attention.k_proj, attention.v_proj], make),
        head_scale=scale,
        output=_take([attention.o_proj], make),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_take([mlp.gate_proj, mlp.up_proj], make),
        down=_take([mlp.down_proj], make),
    )
