"""The lean forward equals transformers' own, and is bit-exact where it says so, in every weight format."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import transformers as tf

from draftproof import SamplingParams
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.errors import OptionError
from draftproof.kernels import library
from draftproof.models import invariance
from draftproof.models.attention import TorchAttention
from draftproof.models.cached_lm import CachedLM
from draftproof.models.forwards import make_forward
from draftproof.models.hf import LoadedModel
from draftproof.models.lean import LeanForward, unsupported
from draftproof.models.masks import Block
from draftproof.models.native.attention import NativeAttention
from draftproof.models.plugged import PluggedForward
from draftproof.models.probe import check_forward
from draftproof.models.rotary import Rotary
from draftproof.models.slots import SlotStore
from draftproof.types import Draft
from engines import ModelTarget, engine, reference
from test_cached_lm import KINDS, SMALL, made
from tiny import tiny_llama, tiny_model

FAMILY = {
    **{kind: KINDS[kind] for kind in ("llama", "qwen2", "qwen3")},
    "mistral": tf.MistralConfig(**SMALL, sliding_window=None),
    "llama with biases": tf.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama with tied embeddings": tf.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "one kv head": tf.LlamaConfig(**{**SMALL, "num_key_value_heads": 1}),
    "as many kv heads": tf.LlamaConfig(**{**SMALL, "num_key_value_heads": 4}),
    "wide heads": tf.Qwen3Config(**SMALL, head_dim=32),
    "llama3 rope": tf.LlamaConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
}


def loaded(model) -> LoadedModel:
    return LoadedModel(model, None, model.config, "tiny", (), model.config.max_position_embeddings)


def randomised(config, dtype=torch.float32):
    """A model whose norms and biases are not at their neutral initial values."""
    model = tiny_model(copy.deepcopy(config), 3)  # tests may shorten their model and its config
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype)


@pytest.mark.parametrize("weights", ["dense", "packed"])
@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("kind", FAMILY)
def test_logits_equal_transformers_for_prompts_trees_and_ragged_batches(kind, bitwise, weights):
    model = randomised(FAMILY[kind])
    assert unsupported(model) is None
    lean = LeanForward(copy.deepcopy(model), 64, weights, bitwise=bitwise)
    assert check_forward(lean, model) < 1e-4


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_lean_and_plugged_agree_row_by_row_on_random_ragged_trees(kind):
    model = randomised(FAMILY[kind])
    chance = random.Random(4)
    pair = [CachedLM(f, 3) for f in (LeanForward(copy.deepcopy(model), 64, "packed"), PluggedForward(model, 64))]
    texts = [chance.choices(range(128), k=n) for n in (2, 9, 30)]
    drafts = []
    for size in (0, 5, 12):
        parents = tuple(chance.randrange(-1, i) for i in range(size))
        drafts.append(Draft(tuple(chance.choices(range(128), k=size)), parents))
    outputs = []
    for lm in pair:
        rows = [lm.open(()) for _ in texts]
        for row, text in zip(rows, texts):
            lm.prefill(row, text[:-1])
        outputs.append(lm.score(rows, [text[-1] for text in texts], drafts))
        for row, text, draft in zip(rows, texts, drafts):
            lm.keep(row, len(text), draft.path(draft.num_nodes - 1))
        outputs[-1].append(type("", (), {"logits": lm.extend(rows, [[1], [2, 3], [4]])}))
    for lean, plugged in zip(*outputs):
        torch.testing.assert_close(lean.logits, plugged.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_taps_give_the_hidden_states_that_transformers_records(kind):
    model = randomised(FAMILY[kind])
    lean, plugged = LeanForward(copy.deepcopy(model), 64, "packed"), PluggedForward(model, 64)
    blocks = [Block(0, 0, [1, 2, 3]), Block(1, 0, [4, 5])]
    lean.taps = plugged.taps = (0, 2, model.config.num_hidden_layers)
    one, other = lean(blocks, "last"), plugged(blocks, "last")
    assert one.features.shape == (5, 3 * 64) and one.logits.shape == (2, 128)
    torch.testing.assert_close(one.features, other.features, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["mistral sliding", "gemma3 sliding", "gpt2", "phi3", "qwen2 half sliding", "cohere"])
def test_other_architectures_run_through_transformers_with_the_reason_known(kind):
    model = made(kind)
    assert unsupported(model)
    assert isinstance(make_forward(loaded(model)), PluggedForward)
    for options, word in (({"lean": True}, "lean forward cannot run"), ({"bitwise": True}, "needs the lean forward")):
        with pytest.raises(OptionError, match=word):
            make_forward(loaded(made(kind)), **options)


def test_partial_rotation_and_other_activations_are_left_to_transformers():
    partial = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert "rotates only" in unsupported(tiny_model(tf.LlamaConfig(**SMALL, rope_parameters=partial)))
    assert "gelu" in unsupported(tiny_model(tf.LlamaConfig(**SMALL, hidden_act="gelu")))


@pytest.mark.parametrize("kind", ["gemma3 sliding", "phi3", "mixtral"])
def test_packed_weights_inside_a_transformers_model_change_nothing_but_rounding(kind):
    model = made(kind)
    plain = PluggedForward(copy.deepcopy(model), 64)
    packed = make_forward(loaded(model), weights="packed")
    assert packed.weights == "packed"
    blocks = [Block(0, 0, [1, 2, 3, 4]), Block(1, 0, [5])]
    torch.testing.assert_close(packed(blocks, "all").logits, plain(blocks, "all").logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(packed([Block(1, 1, [9])], "all").logits, plain([Block(1, 1, [9])], "all").logits)


native = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
DTYPES = (torch.float32, torch.bfloat16)
FORMATS = [
    *((dtype, weights) for dtype in DTYPES for weights in ("packed", "int8")),
    *(pytest.param(dtype, "int4", marks=native) for dtype in DTYPES),
]


@pytest.fixture(params=[pytest.param(True, marks=native), False], ids=["native", "torch"])
def kernels(request, monkeypatch):
    """Both ways of multiplying and attending: our own kernels, and torch's where those cannot be had."""
    if not request.param:
        monkeypatch.setattr(library, "reason", lambda: "turned off")
    return request.param


@pytest.mark.parametrize(("dtype", "weights"), FORMATS, ids=lambda v: str(v).removeprefix("torch."))
def test_bit_exact_mode_holds_in_every_cpu_format(dtype, weights, kernels):
    if weights == "int4" and not kernels:
        pytest.skip("int4 needs the kernels")
    forward = make_forward(loaded(randomised(FAMILY["qwen3"], dtype)), weights=weights, bitwise=True)
    assert forward.bitwise and forward.weights == weights
    assert invariance.fault(forward) is None and invariance.attention_fault(forward) is None


@pytest.mark.parametrize("heads", [(12, 2, 128), (14, 2, 64), (9, 3, 64), (4, 4, 32), (8, 1, 64)], ids=str)
def test_attention_is_bit_exact_at_every_length_for_common_head_shapes(heads):
    """Short texts do not show what happens beyond the kernel's blocks of 512 keys and 32 query rows."""
    query_heads, kv_heads, width = heads
    config = tf.Qwen3Config(
        **{**SMALL, "num_attention_heads": query_heads, "num_key_value_heads": kv_heads, "num_hidden_layers": 1},
        head_dim=width,
    )
    for dtype in (torch.float32, torch.bfloat16):
        forward = LeanForward(tiny_model(config, 0).to(dtype), 64, "packed", bitwise=True, native=False)
        assert invariance.attention_fault(forward) is None


def test_bit_exact_mode_is_refused_with_the_reason_where_kernels_do_not_allow_it():
    model = tiny_llama(0, hidden_size=256, intermediate_size=512)
    with pytest.raises(OptionError, match="cannot be promised for tiny with dense weights: token . of . in one pass"):
        make_forward(loaded(model), weights="dense", bitwise=True)
    forward = make_forward(loaded(tiny_llama(0, hidden_size=256, intermediate_size=512)), weights="dense")
    assert not forward.bitwise, "without a demand it is left out"


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
@pytest.mark.parametrize("weights", ["dense", "packed", "int8", pytest.param("int4", marks=native)])
def test_greedy_text_equals_plain_text_in_every_format_of_both_forwards(weights, lean):
    """Each format against a plain loop over the same forward, which recomputes the whole prefix every time."""
    forward = make_forward(loaded(tiny_llama(9)), weights=weights, lean=lean)
    params = SamplingParams(temperature=0, max_new_tokens=30)
    small = CachedLM(make_forward(loaded(tiny_llama(1)), weights="int8"), 4)
    target = CachedLM(forward, 4)
    prompts = [[1, 2, 3], [4] * 9, [5, 6, 5, 6, 5]]
    expected = [_plain(forward, prompt, 30) for prompt in prompts]
    for drafter in (NoDrafter(), NgramDrafter(1, 3), ModelDrafter(small, 128, 128)):
        run = engine(target, drafter, max_draft=4, max_batch=4)
        assert [r.token_ids for r in run.generate(prompts, params)] == expected
        assert [run.generate([p], params)[0].token_ids for p in prompts] == expected
    if weights not in ("int8", "int4"):
        plain = ModelTarget(tiny_llama(9))
        assert expected == [reference(plain, prompt, params) for prompt in prompts]


def _plain(forward, prompt, num):
    tokens = list(prompt)
    for _ in range(num):
        logits = forward([Block(3, 0, tokens)], "last").logits[0]
        tokens.append(int(logits.float().argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(("dtype", "weights"), FORMATS, ids=lambda v: str(v).removeprefix("torch."))
@pytest.mark.parametrize("k", [1, 4, 8])
def test_bit_exact_greedy_text_is_the_same_token_for_token(dtype, weights, k):
    """In bfloat16 and int8 too, alone and in batches, where near-ties are common; so no seed had to be chosen."""
    model = tiny_llama(0, vocab_size=96).to(dtype)
    target = CachedLM(make_forward(loaded(model), weights=weights, bitwise=True), 4)
    small = CachedLM(make_forward(loaded(tiny_llama(1, vocab_size=96).to(dtype)), weights="int8"), 4)
    params = SamplingParams(temperature=0, max_new_tokens=60)
    prompts = [random.Random(n).choices(range(96), k=n) for n in (1, 5, 17, 40)]
    plain = engine(target, NoDrafter(), max_batch=4)
    expected = [plain.generate([p], params)[0].token_ids for p in prompts]
    for drafter in (NoDrafter(), NgramDrafter(1, 3), ModelDrafter(small, 96, 96)):
        run = engine(target, drafter, max_draft=k, max_batch=4)
        assert [r.token_ids for r in run.generate(prompts, params)] == expected
        assert [run.generate([p], params)[0].token_ids for p in prompts] == expected


def test_the_weights_are_held_once():
    model = tiny_llama(0)
    LeanForward(model, 64, "packed")
    kept = {name for name, _ in model.named_parameters()}
    assert all("norm" in name or "embed" in name for name in kept)


@native
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(12, 2, 128), (14, 2, 64), (9, 3, 64), (4, 4, 24), (2, 1, 256)], ids=str)
@torch.inference_mode()
def test_the_attention_kernel_gives_what_torch_gives(heads, dtype):
    """Chains, a tree, ragged rows and a grown tree beside torch's attention: outputs, keys and values."""
    query_heads, kv_heads, width = heads
    generator = torch.Generator().manual_seed(0)
    size = (query_heads + 2 * kv_heads) * width
    scale = 1 + 0.1 * torch.randn(query_heads + kv_heads, width, generator=generator)

    def embedding(like, positions):
        angles = positions[0, :, None] * torch.logspace(0, -3, width // 2)
        angles = torch.cat([angles, angles], -1)[None]
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    made = []
    for kind in (NativeAttention, TorchAttention):
        cache = SlotStore(1, kv_heads, width, dtype, torch.device("cpu"))
        rotary = Rotary(embedding, width, 4096, torch.float32 if kind is NativeAttention else dtype, cache.device)
        made.append((kind(query_heads, kv_heads, width, 1e-6, cache, rotary), cache))
    passes = [
        [Block(0, 0, [0] * 70), Block(1, 0, [0] * 5)],
        [Block(0, 70, [0] * 4), Block(1, 5, [0] * 6, [-1, 0, 0, 1, 1, 2])],
        [Block(1, 5, [0] * 9, [-1, 0, 0, 1, 1, 2, 3, 3, 5], 6), Block(0, 74, [0])],
    ]
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    for blocks in passes:
        qkv = torch.randn(sum(len(block.queries) for block in blocks), size, generator=generator).to(dtype)
        outs = [attention(0, qkv, scale, attention.plan(blocks)) for attention, _ in made]
        torch.testing.assert_close(outs[0], outs[1], rtol=tolerance, atol=tolerance)
    for row, length in ((0, 75), (1, 14)):
        for one, other in zip(*(cache.row(row)[0] for _, cache in made)):
            torch.testing.assert_close(one[:, :length], other[:, :length], rtol=tolerance, atol=tolerance)


@native
def test_the_attention_kernel_gives_a_tree_the_bits_of_its_paths():
    """Every node of a tree against its path alone, on long and odd contexts."""
    forward = LeanForward(randomised(FAMILY["qwen3"], torch.bfloat16), 2048, "packed", bitwise=True)
    parents = (-1, 0, 0, 1, 2, 2, 4)
    for start in (1, 15, 130, 517):
        text = [(7 * i * i + 3) % 90 for i in range(start)]
        for row in (0, 1):
            forward([Block(row, 0, text)], "none")
        tokens = [11, 12, 13, 14, 15, 16, 17]
        tree = forward([Block(0, start, tokens, parents)], "all").logits
        for node, _ in enumerate(parents):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            alone = forward([Block(1, start, [tokens[i] for i in path])], "last").logits[0]
            assert torch.equal(tree[node], alone)


def test_a_tree_with_masked_slots_inside_its_paths_is_caught_by_the_try_out():
    """The usual tree mask, in one attention call, adds the same numbers up in another order: other bits."""
    forward = LeanForward(randomised(FAMILY["qwen3"]), 64, "packed", bitwise=True, native=False)
    assert invariance.fault(forward) is None
    forward.attention._chains = lambda blocks: (list(blocks), None, [])
    assert "in a tree of" in invariance.fault(forward)
