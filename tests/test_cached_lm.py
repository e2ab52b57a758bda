"""Slots, masks and rows: any decoder run over them says what it says by itself (H11, H13, H15, H23 and their kinds)."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import transformers as tf

from draftproof import SamplingParams
from draftproof.drafters.none import NoDrafter
from draftproof.errors import ModelError
from draftproof.models import hf, masks
from draftproof.models.cached_lm import CachedLM, common_prefix
from draftproof.models.lean import LeanForward
from draftproof.models.masks import Block, arrange
from draftproof.models.plugged import PluggedForward
from draftproof.models.probe import check_forward
from draftproof.types import Draft
from engines import GREEDY, ModelTarget, engine, lm, model_drafter, reference
from tiny import tiny_llama, tiny_model

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "eos_token_id": None,
    "bos_token_id": None,
}
GPT2 = {"vocab_size": 128, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.3}
NO_SPECIAL = {"bos_token_id": None, "eos_token_id": None}
KINDS = {
    "llama": tf.LlamaConfig(**SMALL),
    "qwen2": tf.Qwen2Config(**SMALL),
    "qwen2 half sliding": tf.Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=2),
    "qwen3": tf.Qwen3Config(**SMALL, head_dim=16),
    "mistral sliding": tf.MistralConfig(**SMALL, sliding_window=8),
    "gemma2 sliding": tf.Gemma2Config(**SMALL, head_dim=16, sliding_window=8),
    "gemma3 sliding": tf.Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8),
    "gpt2": tf.GPT2Config(**GPT2, **NO_SPECIAL),
    "phi3": tf.Phi3Config(**SMALL),
    "mixtral": tf.MixtralConfig(**SMALL, num_local_experts=4),
    "cohere": tf.CohereConfig(**SMALL),
    "granite": tf.GraniteConfig(**SMALL),
    "smollm3": tf.SmolLM3Config(**SMALL),
}


def made(kind: str, implementation: str = "sdpa"):
    model = tiny_model(KINDS[kind], 3)
    if kind != "gemma2 sliding":  # its softcapped attention is eager only
        model.set_attn_implementation(implementation)
    return model


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_decoder_passes_the_probe(kind, implementation):
    model = made(kind, implementation)
    hf.check_rewindable(model, kind)
    assert check_forward(PluggedForward(model, 64), model) < 1e-4
    window = hf.sliding_window(model.config)
    assert window == (8 if "sliding" in kind else None), "the probe gives the window back"


@pytest.mark.parametrize("kind", [k for k in KINDS if "sliding" in k])
def test_a_deep_tree_over_a_sliding_window_sees_by_position_not_by_slot(kind):
    model = made(kind)
    plain, target = ModelTarget(model), lm(model)
    prompt = list(range(12))
    row = target.open(prompt[:-1])
    target.prefill(row, prompt[:-1])
    draft = Draft(tuple(range(20, 32)), (-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))  # two interleaved branches, six deep
    logits = target.score([row], [prompt[-1]], [draft])[0].logits
    for node in range(-1, 12):
        path = [draft.tokens[i] for i in draft.path(node)]
        torch.testing.assert_close(logits[node + 1], plain.next_logits([*prompt, *path]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [k for k in KINDS if "sliding" in k])
def test_sliding_windows_are_exact_far_beyond_the_window(kind):
    model = made(kind)
    plain, params = ModelTarget(model), SamplingParams(temperature=0, max_new_tokens=40)
    run = engine(lm(model), model_drafter(made(kind)), max_draft=5, max_batch=2)
    for prompt in ([1, 2, 3], list(range(20))):
        assert run.generate([prompt], params)[0].token_ids == reference(plain, prompt, params)


class Broken(PluggedForward):
    """A forward with one thing wrong, as a model that reads masks or positions differently would have."""

    fault = ""

    def __call__(self, blocks, want):
        original = masks.arrange
        try:
            import draftproof.models.plugged as plugged

            plugged.arrange = lambda *a: self.spoil(original(*a))
            return super().__call__(blocks, want)
        finally:
            plugged.arrange = original

    def spoil(self, current):
        mask, positions = current.mask, current.positions
        if self.fault == "chain mask for a tree":
            first = current.span - current.ids.shape[1]
            size = current.ids.shape[1]
            mask = mask.clone()
            mask[0, 0, :, first:] = torch.ones(size, size, dtype=torch.bool).tril()
        if self.fault == "slot as position":
            positions = current.slots
        if self.fault == "padding seen by the past":
            mask = torch.ones_like(mask)
        if self.fault == "past unseen":
            mask = mask & (torch.arange(mask.shape[-1]) > 0)
        return masks.Pass(**{**vars(current), "mask": mask, "positions": positions})


@pytest.mark.parametrize(
    "fault", ["chain mask for a tree", "slot as position", "padding seen by the past", "past unseen"]
)
def test_the_probe_refuses_a_forward_that_reads_masks_or_positions_wrongly(fault):
    model = tiny_llama(0)
    forward = Broken(model, 64)
    check_forward(forward, model)
    forward.fault = fault
    with pytest.raises(ModelError, match="cannot be run exactly over slots") as caught:
        check_forward(forward, model, "tiny")
    assert "tiny (LlamaForCausalLM)" in str(caught.value) and "\n" not in str(caught.value)


def test_the_probe_refuses_a_window_that_is_ignored():
    model = made("mistral sliding")
    forward = PluggedForward(model, 64)
    forward.__class__ = type("Ignoring", (PluggedForward,), {"window": property(lambda s: None, lambda s, v: None)})
    with pytest.raises(ModelError, match="cannot be run exactly"):
        check_forward(forward, model)


@pytest.mark.parametrize("config", [tf.MambaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2)], ids=["mamba"])
def test_h15_a_model_that_cannot_be_rewound_is_refused_by_layer_name(config):
    with pytest.raises(ModelError, match="cannot be rewound: layer 0 is linear_attention"):
        hf.check_rewindable(tiny_model(config), "mamba")


def test_lengths_beyond_which_rotary_embeddings_change_are_the_limit():
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert hf.max_length(tf.LlamaConfig(**SMALL, rope_parameters=dynamic)) == 64
    long = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 16,
    }
    assert hf.max_length(tf.Phi3Config(**SMALL, original_max_position_embeddings=16, rope_parameters=long)) == 16


def test_a_ragged_pass_has_every_token_where_it_belongs():
    """One chain of three after four, one tree of four after one: ids, positions, slots and sight."""
    current = arrange([Block(0, 4, [7, 8, 9]), Block(1, 1, [1, 2, 3, 4], (-1, 0, 0, 2))], max_position=6)
    assert current.ids.tolist() == [[7, 8, 9, 0], [1, 2, 3, 4]]
    assert current.positions.tolist() == [[4, 5, 6, 6], [1, 2, 2, 3]]
    assert current.slots.tolist() == [[4, 5, 6, 7], [1, 2, 3, 4]]
    assert (current.span, current.start, current.rows) == (8, None, (0, 1))
    sees = [[[s for s in range(8) if row[s]] for row in rows] for rows in current.mask[:, 0].tolist()]
    assert sees[0] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 7]]
    assert sees[1] == [[0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 3, 4]]
    window = [[[s for s in range(8) if row[s]] for row in rows] for rows in current.window(2)[:, 0].tolist()]
    assert window[0][:3] == [[3, 4], [4, 5], [5, 6]]
    assert window[1] == [[0, 1], [1, 2], [1, 3], [3, 4]]


def test_common_prefix():
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2, 3], [1, 2]) == common_prefix((1, 2), [1, 2, 4]) == 2
    assert common_prefix([1, 2, 3], [1, 5, 3]) == 1


def test_rows_are_refused_when_all_are_taken_and_reused_by_longest_prefix():
    target = lm(tiny_llama(0), num_rows=2)
    first, second = target.open([1, 2, 3]), target.open([7])
    with pytest.raises(ModelError, match="all 2 cache rows are in use"):
        target.open([1])
    target.prefill(first, [1, 2, 3])
    target.prefill(second, [7, 8])
    target.free(second)
    target.free(first)
    assert target.open([7, 8, 9]) == second and target.open([1, 2]) == first


def lean(model, num_rows: int) -> CachedLM:
    return CachedLM(LeanForward(copy.deepcopy(model), 64, "dense"), num_rows)


@pytest.mark.parametrize("made_by", [lm, lean])
def test_a_prefix_that_any_row_holds_is_copied_and_nobodys_text_is_given_up_for_it(made_by):
    model = tiny_llama(0)
    target = made_by(model, num_rows=3)
    target.tap((1,))
    system, fed = [5, 6, 7, 8], []
    texts = [[*system, *random.Random(i).choices(range(20, 128), k=8)] for i in range(3)]
    target.forward = Spy(target.forward, fed)
    for text, expected in zip(texts, (12, 8, 8)):
        fed.clear()
        row = target.open(text)
        target.prefill(row, text)
        assert sum(fed) == expected
        alone = made_by(model, num_rows=1)
        alone.tap((1,))
        alone.prefill(alone.open(()), text)
        torch.testing.assert_close(target.features(row), alone.features(0), rtol=1e-4, atol=1e-5)
        logits, expected_logits = target.extend([row], [[9]]), alone.extend([0], [[9]])
        torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-5)
        target.free(row)
    fed.clear()
    for text in texts:
        target.prefill(target.open(text), text)
    assert not fed and target.num_busy == 3, "all three are still there"


def test_a_prompt_with_several_continuations_is_read_once():
    fed = []
    running = engine(lm(tiny_llama(0)), NoDrafter())
    running.target.forward = Spy(running.target.forward, fed)
    prompt = random.Random(4).choices(range(128), k=30)
    running.generate([prompt] * 4, SamplingParams(temperature=0, max_new_tokens=5))
    assert fed == [29, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("drafter", ["none", "model"])
@pytest.mark.parametrize("change", ["longer", "an edited token", "shorter", "another text"])
def test_h23_a_second_turn_on_warm_rows_equals_a_cold_one(drafter, change):
    model, small = tiny_llama(0), tiny_llama(1)
    plain = ModelTarget(model)
    first = random.Random(1).choices(range(128), k=20)
    params = SamplingParams(temperature=0, max_new_tokens=15)

    def run():
        return engine(lm(model), NoDrafter() if drafter == "none" else model_drafter(small), max_draft=4)

    warm = run()
    answer = warm.generate([first], params)[0].token_ids
    second = [*first, *answer, 9, 8, 7, 6, 5]
    if change == "an edited token":
        second[8] = (second[8] + 1) % 128
    elif change == "shorter":
        second = second[:12]
    elif change == "another text":
        second = second[::-1]
    held = common_prefix(warm.target.held(0), second)
    fed = []
    forward = warm.target.forward
    warm.target.forward = Spy(forward, fed)
    result = warm.generate([second], params)[0].token_ids
    assert result == run().generate([second], params)[0].token_ids == reference(plain, second, params)
    assert sum(fed) < len(second) + 15 * 5 - held + 1
    if change == "longer":
        assert held >= len(first) + len(answer) - 1 and fed[0] <= len(second) - held


class Spy:
    """Notes how many tokens each pass feeds to its first row."""

    def __init__(self, forward, fed):
        self.inner, self.fed, self.chunk = forward, fed, forward.chunk
        self.cache, self.vocab_size, self.max_length = forward.cache, forward.vocab_size, forward.max_length
        self.taps = forward.taps

    def __call__(self, blocks, want):
        self.fed.append(len(blocks[0].tokens))
        return self.inner(blocks, want)


def test_h23_an_engine_with_a_drafter_may_use_rows_warmed_without_one_and_the_reverse():
    model = tiny_llama(0)
    target, plain = lm(model), ModelTarget(model)
    without, with_one = engine(target, NoDrafter()), engine(target, model_drafter(tiny_llama(1)), max_draft=4)
    params = SamplingParams(temperature=0, max_new_tokens=10)
    text = [3, 1, 4]
    for run in (without, with_one, without, with_one):
        answer = run.generate([text], params)[0].token_ids
        assert answer == reference(plain, text, params)
        text = [*text, *answer, 2]


class PositionSpy(Spy):
    def __call__(self, blocks, want):
        self.fed += [block.start + len(block.tokens) - 1 for block in blocks]
        return self.inner(blocks, want)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("length", [10, 60, 64, 100])
def test_h13_a_text_longer_than_the_drafters_window_goes_on_without_drafts(kind, length):
    model, small = tiny_llama(9), made(kind)  # the drafter knows 64 positions, the target 256
    plain, params = ModelTarget(model), SamplingParams(temperature=0, max_new_tokens=120)
    prompt = random.Random(length).choices(range(128), k=length)
    drafter = model_drafter(small)
    positions: list[int] = []
    drafter.lm.forward = PositionSpy(drafter.lm.forward, positions)
    run = engine(lm(model), drafter, max_draft=4)
    result = run.generate([prompt], params)[0]
    assert result.token_ids == reference(plain, prompt, params)
    assert max(positions, default=0) <= 63
    assert (result.stats.num_drafted > 0) == (length <= 64)
    assert result.stats.num_drafted < 4 * 60


def test_h13_the_drafters_window_can_be_set_lower():
    drafter = model_drafter(tiny_llama(1), max_length=20)
    run = engine(lm(tiny_llama(0)), drafter, max_draft=4)
    result = run.generate([[1, 2, 3]], SamplingParams(temperature=0, max_new_tokens=60))[0]
    assert 0 < result.stats.num_drafted <= 4 * 18 and max(map(len, drafter.lm._held)) <= 20


@pytest.mark.parametrize("sizes", [(160, 152), (152, 160), (160, 160), (140, 152)], ids=str)
def test_h11_padded_vocabularies_of_one_family(sizes):
    """The tokenizer has 140 ids; embeddings are padded differently. Ids from 140 on are never proposed."""
    big, little = sizes
    target_model, small = tiny_llama(0, vocab_size=big), tiny_llama(1, vocab_size=little)
    plain = ModelTarget(target_model)
    drafter = model_drafter(small, vocab_size=big, common=140)
    run = engine(lm(target_model), drafter, max_draft=4)
    expected = reference(plain, [1, 2, 3], GREEDY)
    assert run.generate([[1, 2, 3]], GREEDY)[0].token_ids == expected
    proposed = []
    propose = drafter.propose
    drafter.propose = lambda requests: [proposed.append(d) or d for d in propose(requests)]
    for seed in range(20):
        run.generate([[1, 2, 3]], SamplingParams(max_new_tokens=20, seed=seed))
    assert max(token for draft in proposed for token in draft.tokens) < 140
    assert all(float(d.probs.to_dense()[:, 140:].sum()) == 0 for d in proposed if d.tokens)


def test_h11_a_sampled_law_over_padded_vocabularies_is_exact():
    from draftproof import sampling
    from draftproof.verify.law import exact_law

    target_model, small = tiny_llama(0, vocab_size=20), tiny_llama(1, vocab_size=16)
    target = CachedLM(PluggedForward(target_model.double(), 64), 1)
    small_lm = CachedLM(PluggedForward(small.double(), 64), 1)
    from draftproof.drafters.draft_model import ModelDrafter

    params = SamplingParams(max_new_tokens=2, top_k=4, temperature=2.0)

    def run(source):
        drafter = ModelDrafter(small_lm, 20, 14)
        made = engine(target, drafter, max_draft=1, make_source=lambda seed, index: source)
        return made.generate([[1, 2]], params)[0].token_ids[0]

    got = exact_law(run)
    p = sampling.probs(ModelTarget(target_model).next_logits([1, 2]).double()[None], params)
    distance = sum(abs(got.get(i, 0) - p.prob(0, i)) for i in range(20)) / 2
    assert distance < 1e-6, "transformers' norms compute in float32, so the pass itself rounds"


def test_the_cache_grows_without_losing_what_it_holds():
    model = tiny_llama(0, max_position_embeddings=2048)
    target, plain = lm(model, num_rows=3), ModelTarget(model)
    prompt = random.Random(2).choices(range(128), k=250)
    run = engine(target, NoDrafter(), max_batch=3)
    params = SamplingParams(temperature=0, max_new_tokens=20)
    results = run.generate([prompt, prompt[:5], prompt * 3], params)
    assert target.forward.cache.capacity >= 770
    for text, result in zip((prompt, prompt[:5], prompt * 3), results):
        assert result.token_ids == reference(plain, text, params)
