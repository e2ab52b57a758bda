"""Self-speculation: the target's first layers draft in its own cache, and leave its passes as they are."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof import SamplingParams, sampling
from draftproof.drafters import catalog
from draftproof.drafters.context import DraftContext
from draftproof.drafters.early_exit import EarlyExitDrafter
from draftproof.errors import OptionError
from draftproof.models.cached_lm import CachedLM
from draftproof.models.forwards import make_forward
from draftproof.sampling import SeededSource
from draftproof.types import Draft, DraftRequest
from draftproof.verify.law import exact_law, total_variation
from engines import GREEDY, ModelTarget, engine, lm, reference
from test_cascade import Counting
from test_lean import FAMILY, loaded, randomised
from tiny import tiny_llama


def target_of(model, num_rows=4, **options):
    return CachedLM(make_forward(loaded(model), **options), num_rows)


def opened(target, text):
    """A row of the target that holds all but the last token."""
    row = target.open(text[:-1])
    target.prefill(row, text[:-1])
    return row


def request(text, row, sequence_id=0, max_nodes=5, **settings):
    source = SeededSource(sequence_id)
    return DraftRequest(sequence_id, tuple(text), 1, SamplingParams(**settings), source, max_nodes, row=row)


def first_layers(model, num):
    """transformers' own model without the other layers."""
    model.model.layers = model.model.layers[:num]
    model.config.num_hidden_layers = num
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:num]
    return ModelTarget(model)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "llama with tied embeddings"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_drafts_are_those_of_the_models_first_layers(kind, num_layers):
    target = target_of(randomised(FAMILY[kind]))
    plain = first_layers(randomised(FAMILY[kind]), num_layers)
    drafter = EarlyExitDrafter(target.forward, num_layers)
    texts = [[1, 2, 3, 4], [9], random.Random(0).choices(range(128), k=30)]
    settings = [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3}, {"temperature": 0.5}]
    requests = [request(t, opened(target, t), i, **s) for i, (t, s) in enumerate(zip(texts, settings))]
    for asked, draft in zip(requests, drafter.propose(requests)):
        assert draft.num_nodes == 5
        tokens = list(asked.tokens)
        for i, token in enumerate(draft.tokens):
            law = sampling.probs(plain.next_logits(tokens)[None], asked.params, tokens, 1)
            if asked.params.greedy:
                assert draft.drawn == "fixed" and token == int(law.to_dense(0).argmax())
            else:
                torch.testing.assert_close(draft.probs.to_dense(i), law.to_dense(0), rtol=1e-3, atol=1e-4)
            tokens.append(token)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_drafting_leaves_what_the_row_holds_and_the_next_pass_bit_for_bit_as_they_were(num_layers):
    text, draft_tokens = random.Random(1).choices(range(128), k=40), [5, 6, 7]
    outputs = []
    for drafting in (False, True):
        target = target_of(tiny_llama(3, num_hidden_layers=3))
        row = opened(target, text)
        held = [tensor[:, :39].clone() for pair in target.forward.cache.row(row) for tensor in pair]
        if drafting:
            drafter = EarlyExitDrafter(target.forward, num_layers)
            assert drafter.propose([request(text, row, max_nodes=8, temperature=0)])[0].num_nodes == 8
        after = [tensor[:, :39] for pair in target.forward.cache.row(row) for tensor in pair]
        assert list(target.held(row)) == text[:-1] and all(map(torch.equal, held, after))
        outputs.append(target.score([row], text[-1:], [Draft.chain(draft_tokens)])[0].logits)
        target.keep(row, 40, (0, 1))
        outputs[-1] = torch.cat([outputs[-1], target.extend([row], [[3, 4]])])
    assert torch.equal(*outputs)


def test_weights_and_cache_are_the_targets_own():
    target = target_of(tiny_llama(0, num_hidden_layers=4))
    part = target.forward.early_exit(2)
    assert part.cache is target.forward.cache
    assert part._layers[0].qkv is target.forward._layers[0].qkv and part._head is target.forward._head
    assert (part.num_layers, target.forward.num_layers) == (2, 4)
    assert 0 < EarlyExitDrafter(target.forward, 2).cost < EarlyExitDrafter(target.forward, 4).cost == 1


@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_layers_accept_every_greedy_token(dtype, k):
    target = target_of(tiny_llama(9).to(dtype), bitwise=True)
    params = SamplingParams(temperature=0, max_new_tokens=100)
    run = engine(target, EarlyExitDrafter(target.forward, 2), max_draft=k)
    stats = run.generate([[1, 2, 3]], params)[0].stats
    assert stats.num_accepted == stats.num_drafted > 0
    assert stats.num_rounds == -(-100 // (k + 1))


def test_all_layers_accept_every_sampled_token_where_passes_are_bit_exact():
    """Draft and target have the same law bit for bit, and min(1, p / q) = 1."""
    target = target_of(tiny_llama(9), bitwise=True)
    params = SamplingParams(temperature=0.8, top_p=0.95, max_new_tokens=100, seed=1)
    stats = engine(target, EarlyExitDrafter(target.forward, 2), max_draft=4).generate([[1, 2, 3]], params)[0].stats
    assert stats.num_accepted == stats.num_drafted > 0


@pytest.mark.parametrize(
    "case", [{"k": 2}, {"k": 3, "temperature": 0.7, "top_k": 3}, {"k": 2, "presence_penalty": 0.6}]
)
def test_the_law_is_exact_with_self_drafting(case):
    """Enumerated through a float64 Llama over four tokens; norms round to float32, so passes agree to about 1e-7."""
    settings = dict(case)
    k = settings.pop("k")
    params = SamplingParams(max_new_tokens=3, **settings)
    model = tiny_llama(5, vocab_size=4, initializer_range=0.5).double()
    plain = ModelTarget(tiny_llama(5, vocab_size=4, initializer_range=0.5).double())
    plain.dtype = torch.float64
    target = target_of(model, 1, weights="dense", bitwise=False)

    def law(drafter):
        def run(source):
            made = engine(target, drafter, max_draft=k, make_source=lambda seed, index: source)
            return tuple(made.generate([[0]], params)[0].token_ids)

        return exact_law(run)

    expected = {}
    for text in [(a, b, c) for a in range(4) for b in range(4) for c in range(4)]:
        weight = 1.0
        for i in range(3):
            row = sampling.probs(plain.next_logits((0, *text[:i]))[None], params, (0, *text[:i]), 1)
            weight *= row.prob(0, text[i])
        expected[text] = weight
    assert total_variation(law(EarlyExitDrafter(target.forward, 1)), expected) < 1e-6


def test_greedy_text_is_the_plain_one_and_no_prompt_is_fed_twice():
    plain = ModelTarget(tiny_llama(9))
    target = target_of(tiny_llama(9))
    drafter = EarlyExitDrafter(target.forward, 1)
    drafter._forward = counting = Counting(drafter._forward)
    prompts = [[1, 2, 3] * 20, [4], random.Random(1).choices(range(128), k=30)]
    results = engine(target, drafter, max_draft=4).generate(prompts, GREEDY)
    assert [r.token_ids for r in results] == [reference(plain, p, GREEDY) for p in prompts]
    assert counting.num_fed == sum(r.stats.num_drafted for r in results)


def test_a_chain_ends_with_the_text_and_where_it_is_unsure():
    target = target_of(tiny_llama(9))
    text = [1, 2, 3]
    row = opened(target, text)
    tokens = EarlyExitDrafter(target.forward, 1).propose([request(text, row, temperature=0)])[0].tokens
    ended = EarlyExitDrafter(target.forward, 1, frozenset([tokens[1]]))
    assert ended.propose([request(text, row, temperature=0)])[0].tokens == tokens[: tokens.index(tokens[1]) + 1]
    unsure = EarlyExitDrafter(target.forward, 1, confidence=1.0)
    assert unsure.propose([request(text, row, temperature=0)])[0].tokens == tokens[:1]
    assert unsure.propose([request(text, row, temperature=0, max_nodes=0)])[0].num_nodes == 0


def test_n_continuations_and_a_full_context_draft_in_their_own_rows():
    target = target_of(tiny_llama(9, max_position_embeddings=40), bitwise=True)
    params = SamplingParams(temperature=0.9, max_new_tokens=100, seed=3, n=3)
    texts = [
        [r.token_ids for r in engine(target, drafter, max_draft=5, max_batch=size).generate([[1, 2, 3]], params)]
        for drafter in (EarlyExitDrafter(target.forward, 1),)
        for size in (1, 3)
    ]
    assert texts[0] == texts[1] and all(len(text) == 37 for text in texts[0])
    assert len(set(map(tuple, texts[0]))) == 3


def test_what_cannot_be_had_is_refused_in_one_line():
    context = DraftContext("tiny", target=target_of(tiny_llama(0)))
    assert catalog.build("self:2", context).name == "self:2"
    for spec in ("self:0", "self:3"):
        with pytest.raises(OptionError, match=f"{spec} must name 1 to 2 layers of tiny"):
            catalog.build(spec, context)
    with pytest.raises(OptionError, match="needs a target of the Llama family in our own forward, which tiny is not"):
        catalog.build("self:1", DraftContext("tiny", target=lm(tiny_llama(0))))


def test_load_gives_the_drafter_its_target(tmp_path):
    import draftproof as dp
    from tiny import TEXT_VOCAB, save_tiny

    folder = save_tiny(tmp_path / "model", tiny_llama(4, vocab_size=TEXT_VOCAB))
    plain = dp.load(str(folder))
    params = SamplingParams(temperature=0, max_new_tokens=30)
    expected = plain.generate(["abc abc", "x"], params)
    for spec in ("self:1", "suffix,self:2"):
        for made in (dp.load(plain, spec, adaptive=False), dp.load(str(folder), spec, adaptive=False)):
            assert [r.token_ids for r in made.generate(["abc abc", "x"], params)] == [r.token_ids for r in expected]
            assert made.config["drafter"] == spec
