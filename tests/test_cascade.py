"""Cascades: who is chosen and why, what is learnt from past rounds, and that a skipped drafter catches up."""

from __future__ import annotations

import random

import pytest

from draftproof import SamplingParams
from draftproof.audit.exact import engine_distance
from draftproof.drafters import catalog
from draftproof.drafters.cascade import CascadeDrafter, build, num_accepted
from draftproof.drafters.context import DraftContext
from draftproof.drafters.early_exit import EarlyExitDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.offer import Offer, discount
from draftproof.drafters.suffix import Memory, SuffixDrafter
from draftproof.models.cached_lm import CachedLM
from draftproof.models.lean import LeanForward
from draftproof.sampling import SeededSource
from draftproof.testing import (
    AlwaysWrong,
    ChainTarget,
    LawDrafter,
    OracleDrafter,
    RandomTable,
    SilentDrafter,
)
from draftproof.types import Draft, DraftRequest
from engines import GREEDY, ModelTarget, engine, lm, model_drafter, reference
from tiny import tiny_llama


class Offering:
    """Offers one chain of `tokens` to every sequence and expects as much of it as it is told."""

    name = "offering"

    def __init__(self, tokens, expected):
        self.tokens, self.expected = tokens, expected

    def offers(self, requests):
        return [Offer(Draft.chain(self.tokens[: r.max_nodes]), self.expected) for r in requests]

    def propose(self, requests):
        return [offer.draft for offer in self.offers(requests)]

    def release(self, sequence_id):
        pass


def request(tokens=(1, 2), sequence_id=0, max_nodes=8):
    return DraftRequest(sequence_id, tuple(tokens), 1, GREEDY, SeededSource(0), max_nodes)


CHAIN = ChainTarget([(i + 1) % 97 for i in range(97)], 97)


def test_a_strong_offer_is_taken_without_asking_the_model_and_a_weak_one_is_not():
    for expected, chosen in ((0.5, "test"), (7.0, "offering")):
        model = OracleDrafter(CHAIN)
        cascade = CascadeDrafter([Offering([9, 9, 9], expected), model])
        (draft,) = cascade.propose([request()])
        assert dict(cascade.chosen) == {chosen: 1}
        assert len(model.requests) == (chosen == "test")
        assert draft.tokens == ((9, 9, 9) if chosen == "offering" else tuple(range(3, 11)))


def test_the_best_of_several_offers_wins_and_the_first_among_equals():
    first, second = Offering([1], 1.0), Offering([2], 2.0)
    assert CascadeDrafter([first, second]).propose([request()])[0].tokens == (2,)
    second.expected = 1.0
    assert CascadeDrafter([first, second]).propose([request()])[0].tokens == (1,)


def test_cost_decides_between_equal_promises():
    """An offer of 3 tokens for nothing is worth 4 tokens a pass; 8 for c a token are worth 9 / (1 + 8 c)."""
    for cost, chosen in ((0.15, "test"), (0.16, "offering")):
        cascade = CascadeDrafter([Offering([9] * 3, 3.0), OracleDrafter(CHAIN)], [0.0, cost])
        cascade.propose([request()])
        assert dict(cascade.chosen) == {chosen: 1}


def test_each_member_is_asked_once_a_round_for_the_sequences_it_serves():
    model = OracleDrafter(CHAIN)
    calls = []
    propose = model.propose
    model.propose = lambda requests: calls.append([r.id for r in requests]) or propose(requests)
    cascade = CascadeDrafter([SuffixDrafter(), model])
    repeated = [*range(30), *range(20)]
    requests = [request([1, 2], 0), request(repeated, 1), request([5], 2), request(repeated, 3, max_nodes=2)]
    drafts = cascade.propose(requests)
    assert calls == [[0, 2]]
    assert [d.tokens[0] for d in drafts] == [3, 20, 6, 20] and drafts[3].num_nodes == 2
    assert cascade.chosen == {"test": 2, "suffix": 2}


def test_a_drafter_that_keeps_failing_is_left_and_tried_again_later():
    run = engine(CHAIN, cascade := CascadeDrafter([AlwaysWrong(CHAIN), OracleDrafter(CHAIN)], [0.2, 0.2]))
    bad, good = cascade.members
    bad.name, good.name = "bad", "good"
    params = SamplingParams(temperature=0, max_new_tokens=600)
    result = run.generate([[0]], params)[0]
    assert result.token_ids == reference(CHAIN, [0], params)
    assert cascade.chosen["bad"] >= 1 and cascade.chosen["good"] > 5 * cascade.chosen["bad"]


def test_where_nothing_is_accepted_most_rounds_draft_nothing():
    cascade = CascadeDrafter([SilentDrafter(), AlwaysWrong(CHAIN)], [0.0, 0.2])
    cascade.members[1].name = "wrong"
    run = engine(CHAIN, cascade)
    run.add([0], SamplingParams(temperature=0, max_new_tokens=300))
    tried = []
    for _ in range(300):
        before = cascade.chosen["wrong"]
        run.step()
        tried.append(cascade.chosen["wrong"] > before)
    assert 0 < sum(tried) < 300 / 4 and any(tried[:5]) and any(tried[200:]), "tried again now and then"


def test_overrated_offers_lose_their_credit_for_that_sequence_only():
    liar = Offering([9] * 8, 8.0)
    cascade = CascadeDrafter([liar, OracleDrafter(CHAIN)])
    tokens = [20]
    for _ in range(8):
        draft = cascade.propose([request(tokens)])[0]
        accepted = 8 if draft.tokens[0] != 9 else 0
        tokens = [*tokens, *draft.tokens[:accepted], (tokens[-1] + accepted + 1) % 97]
    assert cascade.chosen == {"offering": 3, "test": 5}
    cascade.propose([request([0], sequence_id=1)])
    assert cascade._histories[1].member == 0, "another sequence begins anew"


def test_a_round_that_failed_and_is_repeated_counts_once():
    cascade = CascadeDrafter([Offering([3, 4], 2.0), SilentDrafter()], [0, 1])
    cascade.propose([request([1, 2])])
    cascade.propose([request([1, 2])])
    cascade.propose([request([1, 2, 3, 9])])
    record = cascade._histories[0].records[0]
    assert (record.promised, record.drafted, record.accepted) == (2.0, 2, 1)


def test_accepted_tokens_are_read_off_the_text_for_chains_and_trees():
    assert num_accepted(Draft.chain([1, 2, 3]), [1, 2, 9]) == 2
    assert num_accepted(Draft.chain([1]), [1, 1]) == 1
    assert num_accepted(Draft((), ()), [4]) == 0
    tree = Draft((1, 2, 5, 6), (-1, -1, 1, 2))
    assert [num_accepted(tree, tokens) for tokens in ([2, 5, 6, 7], [1, 5], [3])] == [3, 1, 0]


def test_ngram_expects_what_a_context_seen_once_is_worth():
    drafter = NgramDrafter(2, 3)
    (offer,) = drafter.offers([request([1, 2, 3, 4, 1, 2], max_nodes=2)])
    first, second = 1 - discount(2), 1 - discount(3)
    assert offer.draft.tokens == (3, 4) and offer.expected == pytest.approx(first + first * second)
    assert drafter.offers([request([1], sequence_id=1)])[0].expected == 0


class Counting:
    """A forward that counts the tokens it is fed."""

    def __init__(self, forward):
        self.forward, self.num_fed = forward, 0

    def __call__(self, blocks, want):
        self.num_fed += sum(len(block.tokens) for block in blocks)
        return self.forward(blocks, want)

    def __getattr__(self, name):
        return getattr(self.forward, name)


@pytest.mark.parametrize("missed", [0, 1, 5, 70])
def test_a_skipped_draft_model_catches_up_by_comparing_prefixes(missed):
    """The tokens it missed are fed once, when it is next chosen; what it drafts is what a fresh one drafts."""
    drafter, text = model_drafter(tiny_llama(1)), random.Random(0).choices(range(128), k=80)
    drafter.propose([request(text[: 80 - missed])])
    held = len(drafter.lm.held(0)) if not missed else 80 - missed  # the drafts it fed itself do not agree with the text
    drafter.lm.forward = counting = Counting(drafter.lm.forward)
    (draft,) = drafter.propose([request(text)])
    assert draft.tokens == model_drafter(tiny_llama(1)).propose([request(text)])[0].tokens
    assert counting.num_fed == (80 - min(held, 79)) + 8 - 1, "the missed tokens and the drafted ones but the last"


def test_release_and_forget_reach_every_member():
    suffix, model = SuffixDrafter(memory=Memory()), model_drafter(tiny_llama(1))
    cascade = CascadeDrafter([suffix, model])
    params = SamplingParams(temperature=0, max_new_tokens=20, caller="ann")
    engine(lm(tiny_llama(9)), cascade).generate([[1, 2, 3], [4]], params)
    assert not suffix._sequences and not cascade._histories and not model._rows
    assert model.lm.num_busy == 0 and cascade.lm is model.lm
    assert suffix.memory.of("ann") is not None
    cascade.forget()
    assert suffix.memory.of("ann") is None
    assert not hasattr(CascadeDrafter([suffix, NgramDrafter()]), "lm")


def test_cascades_are_parsed_and_costs_come_from_the_weights_read():
    found = catalog.build("suffix:tree,ngram:3-7", DraftContext())
    assert isinstance(found, CascadeDrafter) and found.name == "suffix:tree,ngram"
    assert [type(member) for member in found.members] == [SuffixDrafter, NgramDrafter]
    assert found.costs == [0, 0]
    target = CachedLM(LeanForward(tiny_llama(0, num_hidden_layers=4), 64, "dense"), 1)
    small = CachedLM(LeanForward(tiny_llama(0, num_hidden_layers=1), 64, "dense"), 1)
    from draftproof.drafters.draft_model import ModelDrafter

    members = [SuffixDrafter(), ModelDrafter(small, 128, 128), EarlyExitDrafter(target.forward, 4), SilentDrafter()]
    share = small.forward.num_bytes / target.forward.num_bytes
    assert build(members, DraftContext(target=target)).costs == [0, share, 1, 0.2]
    assert 0.2 < share < 0.5


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6, "top_k": 2}, {"repetition_penalty": 1.5}], ids=str)
def test_the_law_is_exact_whoever_is_chosen(settings):
    """Enumerated: where a token came before suffix has something to offer, elsewhere the sampled drafter is chosen."""
    p, q = RandomTable(3, 1), RandomTable(3, 2)
    params = SamplingParams(max_new_tokens=4, **settings)
    chosen = set()

    class Watched(CascadeDrafter):
        def propose(self, requests):
            drafts = super().propose(requests)
            chosen.update(draft.drawn for draft in drafts if draft.num_nodes)
            return drafts

    class Fresh:
        """Cascades learn, so each enumerated outcome begins with a new one."""

        name = "fresh"

        def propose(self, requests):
            if len(requests[0].tokens) == 1:
                self.inner = Watched([SuffixDrafter(floor=0), LawDrafter(q, 2)], [0.0, 0.9])
            return self.inner.propose(requests)

        def release(self, sequence_id):
            self.inner.release(sequence_id)

    assert engine_distance(p, Fresh(), params, max_draft=2) < 1e-12
    assert chosen == {"fixed", "independent"}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("settings", [{}, {"top_p": 0.7}], ids=str)
def test_the_law_is_exact_with_suffix_drafts(shared, settings):
    p = RandomTable(3, 7, 0.2)
    memory = Memory() if shared else None
    if memory:
        memory.add("ann", [0, 1, 2, 0, 1, 1, 2, 2, 0, 0])
    params = SamplingParams(max_new_tokens=4, caller="ann", **settings)

    class Frozen(SuffixDrafter):
        """What one enumerated outcome answers is not there in the next."""

        def release(self, sequence_id):
            self._sequences.clear()

    drafter = Frozen(floor=0, memory=memory)
    assert engine_distance(p, drafter, params, max_draft=3) < 1e-12


def test_a_seed_fixes_a_sampled_text_whatever_shares_the_batch_of_a_cascade():
    model = tiny_llama(9)
    run = engine(lm(model), CascadeDrafter([SuffixDrafter(), model_drafter(tiny_llama(1))]), max_draft=4, max_batch=4)
    params = [SamplingParams(temperature=0.3, max_new_tokens=40, seed=s) for s in range(4)]
    prompts = [[1, 2, 3] * 4, [4], [5, 6] * 8, [10, 11]]
    together = run.generate(prompts, params)
    assert [run.generate([p], s)[0].token_ids for p, s in zip(prompts, params)] == [r.token_ids for r in together]


def test_greedy_text_with_a_cascade_is_the_plain_one_and_both_kinds_are_used():
    plain = ModelTarget(tiny_llama(9))
    cascade = CascadeDrafter([SuffixDrafter(), model_drafter(tiny_llama(1), num_rows=4)])
    prompts = [[1, 2, 3] * 6, [4], random.Random(1).choices(range(128), k=30)]
    results = engine(lm(plain.model), cascade, max_draft=4).generate(prompts, GREEDY)
    assert [r.token_ids for r in results] == [reference(plain, p, GREEDY) for p in prompts]
    assert cascade.chosen["suffix"] and cascade.chosen["model"]
