"""Drafters by name, prompt lookup, and what a draft model says of its own law."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof import SamplingParams, sampling
from draftproof.drafters import catalog
from draftproof.drafters.context import DraftContext
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter, NgramIndex
from draftproof.drafters.none import NoDrafter
from draftproof.errors import DraftproofError, OptionError
from draftproof.models import shrink
from draftproof.models.cached_lm import CachedLM
from draftproof.sampling import SeededSource
from draftproof.testing import SilentDrafter
from draftproof.types import EMPTY_DRAFT, DraftRequest
from engines import ModelTarget, engine, lm, model_drafter, reference
from tiny import tiny_llama

CONTEXT = DraftContext(vocab_size=128)


def ask(drafter, tokens, max_nodes=4, sequence_id=0, **settings):
    params = SamplingParams(**settings)
    request = DraftRequest(sequence_id, tuple(tokens), 1, params, SeededSource(0), max_nodes)
    return drafter.propose([request])[0]


def slow_lookup(tokens, num, sizes):
    """The definition: longest suffix seen before, most recent, then what followed it, going on periodically."""
    for n in sizes:
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                longer = list(tokens)
                for i in range(num):
                    longer.append(longer[end + i])
                return longer[len(tokens) :]
    return []


@pytest.mark.parametrize("seed", range(40))
def test_the_index_finds_what_the_definition_finds_as_the_text_grows(seed):
    chance = random.Random(seed)
    tokens = [chance.randrange(3) for _ in range(60)]
    low, high = sorted((chance.randint(1, 4), chance.randint(1, 6)))
    index, size = NgramIndex(low, high), 0
    while size < 60:
        size = min(60, size + chance.randint(1, 5))
        index.follow(tokens[:size])
        assert index.lookup(7) == slow_lookup(tokens[:size], 7, range(high, low - 1, -1))


def test_the_index_heals_after_the_text_was_changed_behind_its_back():
    index = NgramIndex(1, 3)
    index.follow([1, 2, 3, 1, 2])
    index.follow([1, 2, 9])
    assert index.lookup(2) == []
    index.follow([1, 2, 9, 1, 2])
    assert index.lookup(3) == [9, 1, 2]


def test_ngram_drafts_are_point_masses_within_the_budget():
    drafter = NgramDrafter(2, 3)
    draft = ask(drafter, [1, 2, 3, 4, 1, 2], max_nodes=3)
    assert (draft.tokens, draft.drawn, draft.probs) == ((3, 4, 1), "fixed", None)
    assert ask(drafter, [1, 2, 3, 4, 1, 2], max_nodes=0) is EMPTY_DRAFT
    assert ask(drafter, [5], sequence_id=1) is EMPTY_DRAFT
    for n in ((0, 2), (3, 2)):
        with pytest.raises(OptionError, match="shortest <= longest"):
            NgramDrafter(*n)


def test_a_draft_models_q_is_the_law_its_tokens_were_drawn_from():
    """q of each position equals the processed law of a plain pass over the same prefix, penalties included."""
    model = tiny_llama(1)
    plain = ModelTarget(model)
    settings = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4}
    draft = ask(model_drafter(model), [1, 2, 3, 2], max_nodes=5, **settings)
    assert draft.drawn == "independent" and draft.num_nodes == 5
    for i in range(5):
        tokens = [1, 2, 3, 2, *draft.tokens[:i]]
        law = sampling.probs(plain.next_logits(tokens)[None], SamplingParams(**settings), tokens, 1)
        torch.testing.assert_close(draft.probs.to_dense(i), law.to_dense(0), rtol=1e-3, atol=1e-5)
        assert draft.probs.prob(i, draft.tokens[i]) > 0
    greedy = ask(model_drafter(model), [1, 2, 3, 2], max_nodes=5, temperature=0)
    assert greedy.drawn == "fixed" and greedy.tokens[0] == int(plain.next_logits([1, 2, 3, 2]).argmax())


def test_drafting_stops_after_an_end_of_text_id_which_stays_in_the_draft():
    model = tiny_llama(1)
    free = ask(model_drafter(model), [1, 2, 3], max_nodes=6, temperature=0).tokens
    drafter = model_drafter(model)
    drafter._eos_ids = frozenset([free[2]])
    assert ask(drafter, [1, 2, 3], max_nodes=6, temperature=0).tokens == free[: free.index(free[2]) + 1]


def test_several_requests_are_drafted_together_as_if_alone():
    together, alone = model_drafter(tiny_llama(1)), model_drafter(tiny_llama(1))
    texts = [[1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11]]
    budgets = [4, 0, 2]
    greedy = SamplingParams(temperature=0)
    requests = [DraftRequest(i, t, 1, greedy, SeededSource(i), n) for i, (t, n) in enumerate(zip(texts, budgets))]
    drafts = together.propose(requests)
    assert [d.num_nodes for d in drafts] == budgets
    assert [d.tokens for d in drafts] == [alone.propose([r])[0].tokens for r in requests]


class OwnDrafter(SilentDrafter):
    """A user's class, named by a dotted path."""

    def __init__(self, context):
        super().__init__()
        self.context = context


class Useless:
    def __init__(self, context):
        pass


def test_drafters_are_found_by_name_argument_and_dotted_path():
    assert isinstance(catalog.build("none", CONTEXT), NoDrafter)
    found = catalog.build("ngram:3-7", CONTEXT)
    assert (found.min_n, found.max_n) == (3, 7)
    assert catalog.build("ngram:1", CONTEXT).min_n == 1


def test_a_users_class_is_built_from_its_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "drafts.py").write_text(
        "from test_drafters import OwnDrafter, Useless\nfrom draftproof.drafters.none import NoDrafter\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = catalog.build("acme.drafts:OwnDrafter", CONTEXT)
    assert own.context is CONTEXT and own.name == "test"
    with pytest.raises(OptionError, match="propose is missing"):
        catalog.build("acme.drafts:Useless", CONTEXT)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown drafter ''"),
        ("ngrams", "unknown drafter 'ngrams': use none, ngram, suffix, model, medusa, eagle, self"),
        ("suffix:trees", "suffix takes tree, shared or tree-shared, not 'trees'"),
        ("suffix,", "unknown drafter ''"),
        ("ngram,modl:x", "unknown drafter 'modl:x'"),
        ("self", "needs a number of layers, as in self:8, not ''"),
        ("self:0.5", "needs a number of layers"),
        ("self:2", "self:2 needs a target of the Llama family"),
        ("none:1", "takes no argument"),
        ("ngram:x", "ngram takes LONGEST"),
        ("ngram:5-2", "shortest <= longest"),
        ("ngram:0", "shortest <= longest"),
        ("model", "needs a model"),
        ("model:", "needs a model"),
        ("model:/no/such/folder", "/no/such/folder"),
        ("no.such.module:Thing", "cannot be imported"),
        ("draftproof.types:Thing", "has no 'Thing'"),
        ("draftproof.drafters.catalog:TABLE", "must be a class"),
        ("draftproof.drafters.context:DraftContext.refuse", "has no"),
    ],
)
def test_a_bad_drafter_is_one_clear_line(spec, message):
    with pytest.raises(DraftproofError, match=message) as caught:
        catalog.build(spec, CONTEXT)
    assert "\n" not in str(caught.value)


def test_a_drafter_that_proposes_nothing_works_in_the_engine():
    run = engine(lm(tiny_llama(0)), catalog.build("none", CONTEXT))
    assert run.generate([[1]], SamplingParams(max_new_tokens=3, seed=0))[0].stats.num_rounds == 3


def shrunk(seed, layers=None, outputs=None, **options):
    """A draft model with fewer layers and outputs, through both forwards' own loading path."""
    from draftproof.models.forwards import make_forward
    from test_lean import loaded

    model = tiny_llama(seed, num_hidden_layers=6)
    if layers is not None:
        shrink.keep_layers(model, layers)
    kept = None
    if outputs is not None:
        kept = shrink.frequent_ids(outputs, 120, [[5, 5, 99, 99, 99, 7]], always=[110])
        shrink.keep_outputs(model, kept)
    forward = make_forward(loaded(model), weights="dense", **options)
    return ModelDrafter(CachedLM(forward, 2), 128, 120, kept=kept), kept


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
@pytest.mark.parametrize(
    "settings", [{}, {"top_p": 0.8}, {"repetition_penalty": 1.4}, {"logit_bias": {3: 2.0}}], ids=str
)
def test_a_reduced_vocabulary_renormalises_the_law_over_the_kept_tokens(lean, settings):
    drafter, kept = shrunk(1, outputs=20, lean=lean)
    assert len(kept) == 20 and {5, 7, 99, 110} <= set(kept) and kept == sorted(kept)
    draft = ask(drafter, [1, 2, 3], max_nodes=4, temperature=0.7, **settings)
    plain = ModelTarget(tiny_llama(1, num_hidden_layers=6))
    for i, token in enumerate(draft.tokens):
        tokens = [1, 2, 3, *draft.tokens[:i]]
        logits = plain.next_logits(tokens)
        outside = torch.ones(128, dtype=torch.bool)
        outside[kept] = False
        logits = logits.masked_fill(outside, -torch.inf)
        law = sampling.probs(logits[None], SamplingParams(temperature=0.7, **settings), tokens, 1)
        torch.testing.assert_close(draft.probs.to_dense(i), law.to_dense(0), rtol=1e-3, atol=1e-5)
        assert token in kept


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
def test_fewer_layers_are_the_first_and_the_last_of_the_model(lean):
    drafter, _ = shrunk(1, layers=4, lean=lean)
    model = tiny_llama(1, num_hidden_layers=6)
    model.model.layers = torch.nn.ModuleList([model.model.layers[i] for i in (0, 1, 2, 5)])
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = i
    model.config.num_hidden_layers = 4
    plain, tokens = ModelTarget(model), [1, 2, 3]
    draft = ask(drafter, tokens, max_nodes=4, temperature=0)
    for token in draft.tokens:
        assert token == int(plain.next_logits(tokens)[:120].argmax())
        tokens.append(token)


def test_shrunk_drafters_never_change_the_text():
    plain = ModelTarget(tiny_llama(9))
    params = SamplingParams(temperature=0, max_new_tokens=40)
    expected = reference(plain, [1, 2, 3], params)
    for options in ({"layers": 1}, {"outputs": 3}, {"layers": 2, "outputs": 30}):
        drafter, _ = shrunk(9, **options)
        assert engine(lm(plain.model), drafter, max_draft=4).generate([[1, 2, 3]], params)[0].token_ids == expected


@pytest.mark.parametrize("num", [0, 7, 2.5, True, -1])
def test_an_impossible_number_of_layers_is_one_line(num):
    with pytest.raises(OptionError, match="whole number from 1 to the drafter's 6"):
        shrink.keep_layers(tiny_llama(0, num_hidden_layers=6), num)


def test_a_confident_chain_is_long_and_an_unsure_one_ends_after_the_token_that_made_it_so():
    """The stop is the first position where the product of the drafter's top probabilities is below the threshold."""
    model = tiny_llama(1)
    plain = ModelTarget(model)
    for threshold in (0.05, 0.3, 0.9):
        drafter = model_drafter(model)
        drafter._confidence = threshold
        tokens, survival, expected = [1, 2, 3], 1.0, []
        while len(expected) < 8 and survival >= threshold:
            law = torch.softmax(plain.next_logits(tokens), -1)
            survival *= float(law.max())
            expected.append(int(law.argmax()))
            tokens.append(expected[-1])
        assert ask(drafter, [1, 2, 3], max_nodes=8, temperature=0).tokens == tuple(expected)
    assert ask(drafter, [1, 2, 3], max_nodes=8, temperature=0.8, sequence_id=1).num_nodes == 8, "sampled: not applied"
