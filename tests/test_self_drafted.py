"""Sanity of the whole EAGLE path: a head made of the target's own last layer guesses what the target says.

The target's other layers do nothing, its embeddings have length 1 (so that norms leave them as they are), and its
attention cannot see the first token, which a head never sees as an embedding either: component 0 is +2 for every token
and -2 for the first one, and a rotary pair that hardly turns multiplies the two.
"""

from __future__ import annotations

import pytest
import torch

from draftproof.drafters import catalog
from draftproof.drafters.context import DraftContext
from draftproof.models.cached_lm import CachedLM
from draftproof.models.lean import LeanForward
from draftproof.types import SamplingParams
from engines import engine
from heads import save
from tiny import tiny_llama

V, H, HEADS, DIM, FIRST = 128, 64, 4, 16, 0
PROMPTS = [[FIRST, 5, 9], [FIRST, 7, 7, 8, 100, 3, 60, 61, 62], [FIRST, 99]]
ROPE = 1e10


def target_model(layers: int = 5):
    """See the module. Tokens other than the first never follow it, as it is banned."""
    model = tiny_llama(
        4,
        num_hidden_layers=layers,
        num_key_value_heads=HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE},
    )
    table = model.model.embed_tokens.weight.data
    table[:, 0] = 0
    table *= (H - 4) ** 0.5 / table.norm(dim=-1, keepdim=True)
    table[:, 0] = 2
    table[FIRST, 0] = -2
    for layer in model.model.layers[:-1]:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    last = model.model.layers[-1].self_attn
    for proj in (last.q_proj, last.k_proj):
        rows = proj.weight.data.view(HEADS, DIM, H)
        rows[:, (DIM // 2 - 1, DIM - 1)] = 0
        rows[:, DIM // 2 - 1, 0] = 10  # scores of +100 for every token and -100 for the first one
    return model


def shared_keys() -> dict:
    return {"model_type": "llama", "hidden_size": H, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": V,
            "rms_norm_eps": 1e-6, "rope_theta": ROPE, "hidden_act": "silu", "head_dim": DIM,
            "max_position_embeddings": 256}  # fmt: skip


def last_layer(model, prefix: str) -> dict[str, torch.Tensor]:
    layer = model.model.layers[-1].state_dict()
    return {f"{prefix}.{name}": t.clone() for name, t in layer.items() if name != "input_layernorm.weight"}


def eagle1_of(model):
    """fc takes the embedding and leaves the feature."""
    tensors = {"embed_tokens.weight": model.model.embed_tokens.weight.data.clone(), **last_layer(model, "layers.0")}
    tensors["fc.weight"] = torch.cat([torch.eye(H), torch.zeros(H, H)], dim=1)
    config = {**shared_keys(), "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "bias": False}
    return config, tensors


def eagle3_of(model):
    """The feature is zero, so the residual lacks the embedding: four more heads, which see only their own token, carry
    it there. They score the sum of cos(frequency * distance), largest by far at distance 0.
    """
    tensors = last_layer(model, "midlayer")
    own = torch.zeros(HEADS, DIM, H)
    own[:, : DIM // 2, 0] = 30
    for name in ("q_proj", "k_proj", "v_proj"):
        key = f"midlayer.self_attn.{name}.weight"
        more = torch.eye(H) if name == "v_proj" else own.reshape(H, H)
        rows = torch.cat([tensors[key], more])
        tensors[key] = torch.cat([rows, torch.zeros_like(rows)], dim=1)  # embedding first, then the feature
    tensors["midlayer.self_attn.o_proj.weight"] = torch.cat(
        [tensors["midlayer.self_attn.o_proj.weight"], torch.eye(H)], dim=1
    )
    tensors["midlayer.input_layernorm.weight"] = torch.ones(H)
    tensors["midlayer.hidden_norm.weight"] = torch.ones(H)
    tensors["fc.weight"] = torch.zeros(H, 3 * H)
    tensors["norm.weight"] = model.model.norm.weight.data.clone()
    tensors["lm_head.weight"] = model.lm_head.weight.data.clone()
    config = {**shared_keys(), "num_attention_heads": 2 * HEADS, "num_key_value_heads": 2 * HEADS,
              "draft_vocab_size": V, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}  # fmt: skip
    return config, tensors


def run(tmp_path, make, max_draft: int, temperature: float):
    model = target_model()
    folder = save(tmp_path / "head", make(model))
    target = CachedLM(LeanForward(model, 256, "dense"), 3)
    drafter = catalog.build(f"eagle:{folder}", DraftContext(vocab_size=V, target=target, draft_weights="dense"))
    params = SamplingParams(temperature=temperature, max_new_tokens=40, seed=5, banned_tokens=(FIRST,))
    return engine(target, drafter, max_draft=max_draft).generate(PROMPTS, params)


def test_eagle1_made_of_the_targets_last_layer_is_always_right(tmp_path):
    """Its feature plays no part, so not only the first token of a chain but all of them are the target's."""
    results = run(tmp_path, eagle1_of, 3, 0)
    assert all(len(set(r.token_ids)) > 5 for r in results), "a text that says something"
    assert all(r.stats.num_accepted == r.stats.num_drafted == 30 for r in results)


@pytest.mark.parametrize("temperature", [0, 1])
def test_eagle3_made_of_the_targets_last_layer_is_always_right_about_the_first_token(tmp_path, temperature):
    """Sampled, q is p up to rounding below 1e-4, so that one of 60 tokens is refused with probability below 0.01;
    the seed is fixed.
    """
    results = run(tmp_path, eagle3_of, 1, temperature)
    assert all(len(set(r.token_ids)) > 5 for r in results)
    assert all(r.stats.num_accepted == r.stats.num_drafted == 20 for r in results)


def test_the_attention_that_is_reproduced_matters(tmp_path):
    """Without it the same head is wrong now and then: the test above would notice."""

    def blind(model):
        config, tensors = eagle1_of(model)
        tensors["layers.0.self_attn.o_proj.weight"].zero_()
        return config, tensors

    stats = [r.stats for r in run(tmp_path, blind, 3, 0)]
    assert sum(s.num_accepted for s in stats) < sum(s.num_drafted for s in stats)
