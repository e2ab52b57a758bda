"""The EAGLE draft networks as plain modules: arithmetic only; who attends to whom is the caller's.

A pair j is the target's feature at position j beside the embedding of token j+1; the network turns it into what stands
for position j+1, from which the token j+2 is drafted, and which takes the feature's place in the next pair.

    EAGLE-1 and -2 (2401.15077, 2406.16858; one network, -2 only grows other trees): fc([embedding; feature]) enters
        ordinary Llama layers, the first without its input norm; the target's own output layer reads the result.
        The feature is the target's last hidden state, normed.
    EAGLE-3 (2503.01840): fc fuses hidden states of several target layers into the feature; the first layer attends
        over [norm(embedding); norm(feature)], with the feature as residual; own norm and output layer, over a reduced
        vocabulary.

Letters: H draft hidden, T target hidden, A number of fused target layers, V and D target and draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q `[..., heads, D]`, k and v `[..., kv_heads, D]`) -> `[..., heads, D]`: sees the past, remembers k and v."""


@dataclass(frozen=True)
class EagleConfig:
    """What an EAGLE network is made of.

    Fields:
        version: 1 (EAGLE-1 and -2) or 3.
        layer: the Llama or Qwen3 config of its decoder layers, by Hugging Face's keys.
        target_hidden_size: T.
        draft_vocab_size: D (V for version 1).
        num_features: A; 1 for version 1.
        feature_layers: target layers whose input state is fused, or None for the usual three (`default_layers`).
        norm_before_residual: the normed feature is the residual.
        norm_output: the normed result takes the feature's place in the next pair (2605.09992).
        norm_before_fc, fc_norm: one norm over all fused states, or one for each.
        own_embedding: the network has its own embeddings; otherwise the target's are used.
        fc_bias: fc has a bias.
    """

    version: int
    layer: Mapping[str, Any] = field(hash=False)
    target_hidden_size: int
    draft_vocab_size: int
    num_features: int = 3
    feature_layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    own_embedding: bool = True
    fc_bias: bool = False

    @property
    def hidden_size(self) -> int:
        return int(self.layer["hidden_size"])

    @property
    def vocab_size(self) -> int:
        return int(self.layer["vocab_size"])

    @property
    def num_layers(self) -> int:
        return int(self.layer.get("num_hidden_layers") or 1)

    @property
    def num_heads(self) -> int:
        return int(self.layer["num_attention_heads"])

    @property
    def num_kv_heads(self) -> int:
        return int(self.layer.get("num_key_value_heads") or self.num_heads)

    @property
    def head_dim(self) -> int:
        return int(self.layer.get("head_dim") or self.hidden_size // self.num_heads)

    @property
    def eps(self) -> float:
        return float(self.layer.get("rms_norm_eps") or 1e-6)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The target layers EAGLE-3 fuses unless a config says otherwise: low, middle and high."""
    return (2, num_layers // 2, num_layers - 3)


class _Norm(nn.RMSNorm):
    """In training the weights are wider than what they scale; the product stays as narrow as that."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.weight.dtype == x.dtype else self.weight.to(x.dtype)
        return rms_norm(x, self.normalized_shape, weight, self.eps)


class _Attention(nn.Module):
    """Rotary attention over inputs of any width."""

    def __init__(self, config: EagleConfig, width: int):
        super().__init__()
        layer, heads, kv_heads, size = config.layer, config.num_heads, config.num_kv_heads, config.head_dim
        bias = bool(layer.get("attention_bias") or layer.get("qkv_bias") or layer.get("model_type") == "qwen2")
        self.q_proj = nn.Linear(width, heads * size, bias)
        self.k_proj = nn.Linear(width, kv_heads * size, bias)
        self.v_proj = nn.Linear(width, kv_heads * size, bias)
        self.o_proj = nn.Linear(heads * size, config.hidden_size, bool(layer.get("attention_bias")))
        if layer.get("model_type") == "qwen3":
            self.q_norm = _Norm(size, config.eps)
            self.k_norm = _Norm(size, config.eps)
        self._size = size

    def forward(self, number: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self._size)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        return self.o_proj(attend(number, q, k, v).flatten(-2))


class _GatedMLP(nn.Module):
    def __init__(self, config: EagleConfig):
        super().__init__()
        hidden, width = config.hidden_size, int(config.layer["intermediate_size"])
        bias = bool(config.layer.get("mlp_bias"))
        self.gate_proj = nn.Linear(hidden, width, bias)
        self.up_proj = nn.Linear(hidden, width, bias)
        self.down_proj = nn.Linear(width, hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    """One decoder layer; the first one of each version differs from Llama's."""

    def __init__(self, config: EagleConfig, number: int):
        super().__init__()
        hidden = config.hidden_size
        self._number = number
        self._fused = config.version == 3 and number == 0
        self._normed_residual = config.norm_before_residual
        self.self_attn = _Attention(config, 2 * hidden if self._fused else hidden)
        self.mlp = _GatedMLP(config)
        if number > 0 or self._fused:
            self.input_layernorm = _Norm(hidden, config.eps)
        if self._fused:
            self.hidden_norm = _Norm(hidden, config.eps)
        self.post_attention_layernorm = _Norm(hidden, config.eps)

    def forward(self, x: Tensor, embedding: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x `[..., H]`: the feature in EAGLE-3's first layer, whose embedding joins it here."""
        if self._fused:
            normed = self.hidden_norm(x)
            x = normed if self._normed_residual else x
            entering = torch.cat([self.input_layernorm(embedding), normed], dim=-1)
        else:
            entering = self.input_layernorm(x) if self._number else x
        x = x + self.self_attn(self._number, entering, cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleNet(nn.Module):
    """See the module. Shapes may have any leading dimensions.

    `embed_tokens` is None where the target's embeddings are to be used, `lm_head` and `norm` where (version 1) the
    target's output layer reads the result as it is. Names of parameters are those of the speculators layout.
    """

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.config = config
        hidden, fused = config.hidden_size, config.num_features * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if config.own_embedding else None
        self.fc = nn.Linear(fused if config.version == 3 else hidden + fused, hidden, config.fc_bias)
        self.layers = nn.ModuleList(_Layer(config, number) for number in range(config.num_layers))
        self.norm = _Norm(hidden, config.eps) if config.version == 3 else None
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False) if config.version == 3 else None
        self.input_norm = _Norm(fused, config.eps) if config.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(_Norm(config.target_hidden_size, config.eps) for _ in range(config.num_features))
            if config.fc_norm
            else None
        )
        self._rotary: Any = None

    def feature(self, states: Tensor) -> Tensor:
        """The target's hidden states side by side `[..., A * T]` as features `[..., H]` (version 1: as they are)."""
        if self.config.version != 3:
            return states
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(self.config.num_features, dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts)], dim=-1)
        return self.fc(states)

    def forward(self, embeddings: Tensor, features: Tensor, positions: Tensor, attend: Attend | None = None) -> Tensor:
        """Pairs in, results out.

        Args:
            embeddings: `[..., H]` of the tokens after the features' positions.
            features: `[..., H]` (version 1: `[..., T]`), of `feature` or `carried`.
            positions: int64 `[...]`.
            attend: None is causal attention over `[B, Q]` pairs that see nothing else.
        """
        cos, sin = self._angles(positions, embeddings)
        x = features if self.config.version == 3 else self.fc(torch.cat([embeddings, features], dim=-1))
        for layer in self.layers:
            x = layer(x, embeddings, cos, sin, attend or causal)
        return x

    def hidden(self, x: Tensor) -> Tensor:
        """Of a result `[..., H]`: what the output layer reads."""
        return x if self.norm is None else self.norm(x)

    def carried(self, x: Tensor) -> Tensor:
        """Of a result `[..., H]`: what takes the feature's place in the next pair."""
        return self.hidden(x) if self.config.norm_output else x

    def _angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin `[..., 1, D]`, with every kind of scaling transformers knows."""
        if self._rotary is None:
            from transformers import LlamaConfig
            from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

            known = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
            keys = (*known, "rope_theta", "rope_scaling", "rope_parameters")
            given = {key: self.config.layer[key] for key in keys if self.config.layer.get(key) is not None}
            self._rotary = LlamaRotaryEmbedding(LlamaConfig(**given)).to(like.device)
        cos, sin = self._rotary(like, positions.reshape(1, -1))
        return cos[0].view(*positions.shape, 1, -1), sin[0].view(*positions.shape, 1, -1)


def causal(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain causal attention over `[B, Q, heads, D]`, without a past."""
    q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(-3, -2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
