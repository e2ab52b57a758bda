"""A real language model, SmolLM2-135M-Instruct: fetched once through the product's own sources."""

from __future__ import annotations

import pytest

import draftproof as dp

pytestmark = pytest.mark.real

PROMPTS = [
    [{"role": "user", "content": "Rename x to total and print the code again:\nx = 0\nfor i in items:\n    x += i\n"}],
    [{"role": "user", "content": "Why is the sky blue?"}],
    "The three primary colours are",
]
GREEDY = dp.SamplingParams(temperature=0, max_new_tokens=48)


@pytest.fixture(scope="module")
def plain():
    return dp.load("smollm2-135m", dtype="float32", max_batch=4)


@pytest.fixture(scope="module")
def expected(plain):
    return plain.generate(PROMPTS, GREEDY)


def test_plain_decoding_equals_transformers_own_generate(plain, expected):
    """The same weights through `generate`, which knows nothing of our cache, masks or step."""
    import torch

    from draftproof.models.hf import load_model

    model, tokenizer = load_model("smollm2-135m", dtype="float32").model, plain.codec.tokenizer
    for prompt, result in zip(PROMPTS, expected):
        ids = plain.codec.encode(prompt) if isinstance(prompt, str) else plain.codec.encode_chat(prompt)
        whole = model.generate(
            torch.tensor([ids]), max_new_tokens=48, do_sample=False, pad_token_id=0, eos_token_id=sorted(plain.eos_ids)
        )[0].tolist()
        assert whole[len(ids) :] == result.token_ids
        assert tokenizer.decode(whole[len(ids) :], skip_special_tokens=True) == result.text


@pytest.mark.parametrize("drafter", ["ngram:1-4", "model:smollm2-135m", "self:20", "suffix,model:smollm2-135m"])
def test_greedy_text_with_a_drafter_equals_plain_text_alone_and_batched(plain, expected, drafter):
    engine = dp.load(plain, drafter, max_draft=5, draft_weights="packed", adaptive=False)
    together = engine.generate(PROMPTS, GREEDY)
    assert [r.token_ids for r in together] == [r.token_ids for r in expected]
    assert [r.text for r in together] == [r.text for r in expected]
    alone = [engine.generate([prompt], GREEDY)[0] for prompt in PROMPTS]
    assert [r.token_ids for r in alone] == [r.token_ids for r in expected]
    if drafter.startswith("model:"):
        assert all(r.stats.acceptance_rate == 1 for r in alone), "a model accepts its own drafts"


def test_sampled_text_depends_on_the_seed_alone(plain):
    engine = dp.load(plain, "model:smollm2-135m", max_draft=3, draft_weights="packed", adaptive=False)
    params = [dp.SamplingParams(temperature=0.9, top_p=0.9, seed=s, max_new_tokens=24) for s in (1, 2, 3)]
    together = engine.generate(PROMPTS, params)
    alone = [engine.generate([p], s)[0] for p, s in zip(PROMPTS, params)]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert all(r.stats.acceptance_rate == 1 for r in together), "p = q accepts everything"


@pytest.fixture(scope="module")
def qwen():
    """Where Qwen2.5-Coder 1.5B lies in the cache folder (1.1 GB; not fetched for this)."""
    from draftproof.models import store

    if not (store.models_dir() / "qwen2.5-coder-1.5b").is_dir():
        pytest.skip("qwen2.5-coder-1.5b is not in the cache folder")
    return dp.load("qwen2.5-coder-1.5b", max_batch=2)


@pytest.fixture(scope="module")
def of_qwen(qwen):
    return qwen.generate(PROMPTS[:2], dp.SamplingParams(temperature=0, max_new_tokens=24))


@pytest.mark.parametrize("mode", ["auto", "string"])
def test_smollm2_drafts_for_qwen_across_their_tokenizers(qwen, of_qwen, mode):
    engine = dp.load(qwen, "model:smollm2-135m", max_draft=4, cross_vocab=mode, adaptive=False)
    results = engine.generate(PROMPTS[:2], dp.SamplingParams(temperature=0, max_new_tokens=24))
    assert qwen.config["bitwise"]
    assert [r.token_ids for r in results] == [r.token_ids for r in of_qwen]
    assert sum(r.stats.num_accepted for r in results) >= 10, "most of the repeated code is guessed"
    sampled = engine.generate(PROMPTS[1], dp.SamplingParams(temperature=0.8, max_new_tokens=24, seed=1))[0]
    assert sampled.stats.num_drafted > 0
