"""EAGLE heads (2401.15077, 2503.01840): trained as they will draft, over their own earlier results.

A pair j is the target's feature at position j beside the token j + 1; its result drafts the token j + 2. In step 0 of a
round the feature is the target's; in step s it is the network's own result of step s - 1 at pair j - 1, and the pair
attends over the target's pairs up to j - s and over its own chain since then (EAGLE-3's training-time test; EAGLE-1 is
its first step, with noise on the features and their own loss beside the law's).

A head begins as what is known already: its decoder layer is the target's last one, its norm and output rows the
target's, and fc passes the highest tapped state on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss
from torch.utils.checkpoint import checkpoint

from ..errors import OptionError
from ..nets.eagle import EagleConfig, EagleNet, default_layers
from ..nets.eagle_files import EagleCheckpoint, write_eagle
from .corpus import Sample
from .recipe import Step
from .teacher import Lesson

_LAYER_KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "rms_norm_eps", "max_position_embeddings", "attention_bias", "mlp_bias",
)  # fmt: skip


class EagleRecipe:
    """See the module; `Recipe`.

    Args:
        model: the target as transformers loaded it, of the Llama family.
        vocab: the draft vocabulary (EAGLE-3), or None for all.
        version: 3 or 1.
        num_steps: steps of the training-time test (EAGLE-3).
        decay: weight of step s is decay^s (the paper: 0.8).
        layers: the fused layers (EAGLE-3); None are the usual three.
        post_norm: the normed result takes the feature's place, and each fused state has a norm (2605.09992).
        noise: EAGLE-1's, uniform up to this, on the features.
        low_memory: compute each step's activations anew for its gradient.
        seed: of new weights.

    Raises:
        OptionError: a target or options a head cannot be made for.
    """

    name = "eagle"
    same_law = False

    def __init__(
        self,
        model: Any,
        vocab: Tensor | None,
        *,
        version: int = 3,
        num_steps: int = 4,
        decay: float = 0.8,
        layers: tuple[int, ...] | None = None,
        post_norm: bool = False,
        noise: float = 0.1,
        low_memory: bool = False,
        seed: int = 0,
    ):
        config = model.config.get_text_config()
        body = getattr(model, model.base_model_prefix, model)
        _check_target(config, body)
        if version not in (1, 3):
            raise OptionError(f"EAGLE's version must be 1 or 3, not {version!r}; EAGLE-2 heads are EAGLE-1's")
        number = config.num_hidden_layers
        if version == 3:
            layers = layers or default_layers(number)
            if not all(low < high for low, high in zip((-1, *layers), (*layers, number))):
                raise OptionError(
                    f"the fused layers must ascend from 0 to {number - 1}, not {list(layers)}: give --layers, "
                    f"as in --layers 0,{number // 2},{number - 1}"
                )
        self.taps = tuple(layers) if version == 3 and layers else (number,)
        self.vocab = vocab if version == 3 else None
        self.weights = tuple(decay**step for step in range(num_steps if version == 3 else 1))
        self.ce_weight = 1.0 if version == 3 else 0.1
        self._noise = noise if version == 1 else 0.0
        self._low_memory = low_memory
        kept = {key: getattr(config, key, None) for key in _LAYER_KEYS}
        kind = config.model_type if config.model_type in ("qwen2", "qwen3") else "llama"
        layer = {key: value for key, value in kept.items() if value is not None}
        layer |= {"model_type": kind, "num_hidden_layers": 1, "hidden_act": "silu", **_rope(config)}
        self._config = EagleConfig(
            version=version,
            layer=layer,
            target_hidden_size=config.hidden_size,
            draft_vocab_size=config.vocab_size if self.vocab is None else len(self.vocab),
            num_features=len(self.taps),
            feature_layers=self.taps if version == 3 and self.taps != default_layers(number) else None,
            norm_output=post_norm and version == 3,
            fc_norm=post_norm and version == 3,
            own_embedding=version == 1,
        )
        self.net = EagleNet(self._config)
        embedding = model.get_input_embeddings().weight.detach()
        _begin(self.net, body, model.get_output_embeddings().weight.detach(), embedding, self.vocab, seed)
        self._head: nn.Linear | None = None
        if version == 3:
            self._embedding = nn.Embedding.from_pretrained(embedding.clone(), freeze=True)
        else:
            assert self.net.embed_tokens is not None
            self._embedding = self.net.embed_tokens.requires_grad_(False)
            self._head = nn.Linear(1, 1, bias=False)
            self._head.weight = nn.Parameter(model.get_output_embeddings().weight.detach().clone(), requires_grad=False)

    def steps(self, lesson: Lesson, num_steps: int, seed: int | None = None) -> Iterator[Step]:
        """See `Recipe`; the target's features reach step 0, the network's own results the others."""
        batch, net = lesson.batch, self.net
        shape = batch.tokens.shape
        device = lesson.states.device
        tokens, positions = batch.tokens.to(device), batch.positions.to(device)
        embeddings = self._embedding(tokens.roll(-1, 1))  # of the token after; the last of a text is never used
        states = lesson.states.view(*shape, -1)
        dtype = net.fc.weight.dtype
        embeddings, states = embeddings.to(dtype), states.to(dtype)
        given = states
        if self._noise and seed is not None:
            chance = torch.Generator().manual_seed(seed)
            noise = torch.rand(states.shape, generator=chance).sub_(0.5).mul_(2 * self._noise)
            given = states + noise.to(states)
        features = net.feature(given)
        sees = batch.sees().to(device)
        past: list[dict[int, tuple[Tensor, Tensor]]] = []
        for step in range(num_steps):
            kept: dict[int, tuple[Tensor, Tensor]] = {}
            attend = ChainAttention(past, kept, sees, step)
            if self._low_memory and torch.is_grad_enabled():
                results = checkpoint(net, embeddings, features, positions, attend, use_reentrant=False)
            else:
                results = net(embeddings, features, positions, attend)
            past.append(kept)
            flat = results.flatten(0, 1)
            rows = batch.rows(step)
            hidden = net.hidden(flat[rows - 1])  # pair r - 1 drafts the token after r
            extra = None
            if self._config.version == 1:
                wanted = states.flatten(0, 1)[rows]
                extra = smooth_l1_loss(flat[rows - 1].float(), wanted.float(), reduction="none").mean(-1)
            yield Step(hidden, extra)
            features = net.carried(results).roll(1, 1)

    def logits(self, hidden: Tensor, step: int) -> Tensor:
        head = self._head if self.net.lm_head is None else self.net.lm_head
        assert head is not None
        return head(hidden)

    def rollout(self, samples: Sequence[Sample], seed: int) -> None:
        """A head writes no text by itself."""

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The speculators layout for EAGLE-3, the original one for EAGLE-1."""
        tensors = {name: tensor.detach().to(torch.bfloat16) for name, tensor in self.net.state_dict().items()}
        if self.vocab is not None:
            tensors["d2t"] = self.vocab - torch.arange(len(self.vocab))
            tensors["t2d"] = torch.zeros(self._config.vocab_size, dtype=torch.bool).index_fill_(0, self.vocab, True)
        layout = "speculators" if self._config.version == 3 else "original"
        write_eagle(EagleCheckpoint(self._config, tensors), folder, layout, target=str(about.get("target", "")))


class ChainAttention:
    """Attention of one step of all rounds at once.

    The query of pair j in step s sees the target's pairs up to j - s in its text, and of its own chain the pair
    j - s + i as step i made it, i = 1 .. s.

    Args:
        past: by earlier step, keys and values by layer, `[R, L, kv_heads, D]`.
        kept: where this step's go.
        sees: bool `[R, 1, L, L]`: causal within a text.
        step: s.
    """

    def __init__(
        self,
        past: list[dict[int, tuple[Tensor, Tensor]]],
        kept: dict[int, tuple[Tensor, Tensor]],
        sees: Tensor,
        step: int,
    ):
        self._past, self._kept, self._step = list(past), kept, step
        self._sees = sees if not step else sees & sees.new_ones(sees.shape[-2:]).tril(-step)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[R, L, heads, D]`, k and v `[R, L, kv_heads, D]` -> `[R, L, heads, D]`."""
        self._kept[layer] = (k, v)
        keys, values = (self._past[0][layer]) if self._step else (k, v)
        groups = q.shape[-2] // k.shape[-2]
        grouped = q.unflatten(-2, (-1, groups))  # [R, L, kv, g, D]
        scale = 1 / math.sqrt(q.shape[-1])
        scores = torch.einsum("rqkgd,rskd->rkgqs", grouped * scale, keys)
        scores = scores.masked_fill(~self._sees[:, :, None], -torch.inf)
        chain = []
        for i in range(1, self._step + 1):
            own = (k, v) if i == self._step else self._past[i][layer]
            chain.append(tuple(part.roll(self._step - i, 1) for part in own))
        along = [torch.einsum("rqkgd,rqkd->rkgq", grouped * scale, key)[..., None] for key, _ in chain]
        weights = torch.cat([scores, *along], dim=-1).float().softmax(-1).to(v.dtype)
        length = keys.shape[1]
        mixed = torch.einsum("rkgqs,rskd->rqkgd", weights[..., :length], values)
        for number, (_, value) in enumerate(chain):
            share = weights[..., length + number].permute(0, 3, 1, 2)[..., None]
            mixed = mixed + share * value[:, :, :, None]
        return mixed.flatten(-3, -2)


def _rope(config: Any) -> dict[str, Any]:
    """The target's rotation under the keys that every reader of checkpoints knows."""
    stated = dict(getattr(config, "rope_parameters", None) or {})
    theta = stated.pop("rope_theta", 10000.0)
    scaling = {} if stated.get("rope_type", "default") == "default" else {"rope_scaling": stated}
    return {"rope_theta": float(theta), **scaling}


def _check_target(config: Any, body: Any) -> None:
    layers = getattr(body, "layers", None)
    if layers is None or not hasattr(layers[0], "self_attn") or not hasattr(layers[0], "mlp"):
        raise OptionError(f"an EAGLE head is made from a target of the Llama family, not {type(body).__name__}")
    if getattr(config, "hidden_act", "silu") != "silu":
        raise OptionError(f"an EAGLE head needs a target with hidden_act silu, not {config.hidden_act}")


@torch.no_grad()
def _begin(net: EagleNet, body: Any, output: Tensor, embedding: Tensor, vocab: Tensor | None, seed: int) -> None:
    """Start from the target's own weights."""
    chance = torch.Generator().manual_seed(seed)
    hidden, weights = net.config.hidden_size, dict(net.named_parameters())
    for name, weight in weights.items():
        if "norm" in name:
            weight.fill_(1.0)
        else:
            weight.copy_(torch.randn(weight.shape, generator=chance) * 0.02)
    own = dict(body.layers[-1].named_parameters())
    for name, weight in net.layers[0].named_parameters():
        given = own.get(name)
        if given is None:
            continue
        if given.shape == weight.shape:
            weight.copy_(given)
        elif weight.dim() == 2 and weight.shape[1] == 2 * given.shape[1]:  # embedding and feature side by side
            weight[:, given.shape[1] :] = given
    if net.config.version == 3:
        weights["layers.0.hidden_norm.weight"].copy_(own["input_layernorm.weight"])
        weights["norm.weight"].copy_(body.norm.weight)
        weights["lm_head.weight"].copy_(output if vocab is None else output[vocab])
    else:
        weights["embed_tokens.weight"].copy_(embedding)
    net.fc.weight.mul_(0.1)
    net.fc.weight[:, -hidden:] += torch.eye(hidden)
