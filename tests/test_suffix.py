"""Suffix drafting: the automaton against a brute-force count, drafts and their estimates, who sees whose text."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from draftproof import SamplingParams
from draftproof.drafters import catalog
from draftproof.drafters.automaton import BREAK, SuffixAutomaton
from draftproof.drafters.context import DraftContext
from draftproof.drafters.offer import discount
from draftproof.drafters.suffix import Memory, SuffixDrafter, grow
from draftproof.errors import OptionError
from draftproof.sampling import SeededSource
from draftproof.testing import ChainTarget
from draftproof.types import EMPTY_DRAFT, DraftRequest
from engines import engine, reference


def ask(drafter, tokens, max_nodes=8, sequence_id=0, num_prompt=1, **settings):
    params = SamplingParams(**settings)
    request = DraftRequest(sequence_id, tuple(tokens), num_prompt, params, SeededSource(0), max_nodes)
    return drafter.propose([request])[0]


def text_of(tokens, depth=32):
    text = SuffixAutomaton(depth)
    text.extend(tokens)
    return text


def ends(text, string):
    """Brute force: where a string ends in a text."""
    return [end for end in range(len(string), len(text) + 1) if text[end - len(string) : end] == string]


def counted(text, string):
    """Brute force: token to how often it followed a string, and how long the text was when it did last."""
    following = {}
    for end in ends(text, string):
        if end < len(text):
            count, _ = following.get(text[end], (0, 0))
            following[text[end]] = count + 1, end + 1
    return following


@pytest.mark.parametrize("seed", range(60))
def test_contexts_and_counts_equal_a_brute_force_search_as_the_text_grows(seed):
    """Random and periodic strings over 1 to 4 ids, with breaks; contexts from the text's end and from elsewhere."""
    chance = random.Random(seed)
    size, depth, ids = chance.randint(1, 60), chance.randint(2, 9), range(chance.randint(1, 4))
    whole = chance.choices(ids, k=size)
    if seed % 2:
        whole = (whole[: chance.randint(1, 5)] * 60)[:size]
    whole = [BREAK if chance.random() < 0.05 else token for token in whole]
    automaton = SuffixAutomaton(depth)
    for size in range(1, len(whole) + 1):
        text = whole[:size]
        automaton.extend(text[-1:])
        query = text if chance.random() < 0.5 else chance.choices(ids, k=12)
        window = query[1 - depth :]
        known = next(n for n in range(len(window), -1, -1) if ends(text, window[len(window) - n :]))
        context = automaton.longest(query)
        assert context.size == known
        while context is not None and context.size:
            string = window[len(window) - context.size :]
            expected = counted(text, string)
            total, followers = automaton.followers(context)
            assert total == sum(count for count, _ in expected.values())
            expected.pop(BREAK, None)
            assert {f.token: (f.count, f.last) for f in followers} == expected
            for token in expected:
                assert automaton.longer(context, token) == automaton.longest([*string, token])
            shorter = automaton.shorter(context)
            for n in range(context.size - 1, shorter.size if shorter else 0, -1):
                assert ends(text, string[len(string) - n :]) == ends(text, string), "no context was passed over"
            context = shorter


def test_a_long_prompt_has_at_most_two_states_a_token():
    for text in (random.Random(0).choices(range(2), k=8192), [7] * 8192, list(range(100)) * 82):
        assert len(text_of(text)._next) <= 2 * len(text)


def test_a_path_is_estimated_by_discounted_counts_and_ends_at_the_floor():
    text = text_of([1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3, 4, 7, 2, 3])
    context = text.longest([1, 2, 3])
    first, second = (2 - discount(3)) / 3, 1 / 2 - discount(4) / 2  # 4 followed twice out of 3, then 7 (the later) once
    chain = grow(text, context, 2)
    assert chain.draft.tokens == (4, 7) and chain.draft.is_chain and chain.draft.drawn == "fixed"
    assert chain.expected == pytest.approx(first + first * second)
    assert grow(text, context, 2, floor=first * second * 1.01).draft.tokens == (4,)
    assert grow(text, context, 2, floor=first * 1.01).draft is EMPTY_DRAFT
    assert grow(text, context, 0).draft is EMPTY_DRAFT


def test_a_longer_match_gives_a_longer_draft():
    def drafted(size):
        start = list(range(100, 100 + size))
        return ask(SuffixDrafter(), [*start, *range(40), 50, *start], max_nodes=40).num_nodes

    lengths = [drafted(size) for size in (1, 2, 4, 8, 16)]
    assert lengths[0] >= 1 and all(a < b for a, b in pairwise(lengths)), lengths


def test_the_most_frequent_continuation_wins_and_the_latest_among_equals():
    assert ask(SuffixDrafter(floor=0), [2, 3, 9, 2, 4, 8, 2, 3, 7, 2, 4, 6, 2, 3, 5, 2], 1).tokens == (3,)
    assert ask(SuffixDrafter(floor=0), [1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 1).tokens == (4,)


def test_a_frequent_short_context_can_beat_a_longer_one_seen_once():
    once, often = [7, 1, 2, 30, 31], [1, 2, 40, 41] * 12
    tokens = [*once, 5, *often, 6, 7, 1, 2]
    assert ask(SuffixDrafter(), tokens, 2).tokens == (40, 41)


def test_a_period_goes_on_for_as_long_as_it_is_asked_for():
    assert ask(SuffixDrafter(), [1, 2, 3] * 8, 20).tokens == ((1, 2, 3) * 7)[:20]


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_is_the_best_first_one_over_the_brute_force_estimates(seed):
    """Of all paths that the text knows, the tree has those of the highest path products, each once."""
    chance = random.Random(seed)
    tokens = chance.choices(range(3), k=50)
    text = text_of(tokens)
    context = text.longest(tokens[-2:])
    string = tokens[len(tokens) - context.size :]

    def children(path):
        at = [*string, *path]
        while at and not counted(tokens, at):
            at = at[1:]
        following = counted(tokens, at)
        total = sum(count for count, _ in following.values())
        return {token: (count - discount(len(at))) / total for token, (count, _) in following.items()}

    products = {(): 1.0}
    for _ in range(5):
        longest = max(map(len, products))
        for path in [p for p in products if len(p) == longest]:
            products.update({(*path, t): products[path] * p for t, p in children(path).items()})
    del products[()]
    offer = grow(text, context, 5, width=8)
    draft = offer.draft
    paths = [tuple(draft.tokens[node] for node in draft.path(i)) for i in range(draft.num_nodes)]
    best = sorted(products.values(), reverse=True)[:5]
    assert len(set(paths)) == draft.num_nodes == 5
    assert [products[path] for path in paths] == pytest.approx(best)
    assert offer.expected == pytest.approx(sum(best))


def test_the_estimates_are_an_expectation_under_the_discounted_counts():
    """Each node's children keep some probability back, so no estimate promises more than can come."""
    tokens = random.Random(1).choices(range(4), k=200)
    text = text_of(tokens)
    offer = grow(text, text.longest(tokens), 30, width=8)
    assert 0 < offer.expected < max(offer.draft.depths)


def test_the_drafter_heals_after_the_text_was_changed_behind_its_back():
    drafter = SuffixDrafter(floor=0)
    ask(drafter, [1, 2, 3, 4, 1, 2])
    assert ask(drafter, [1, 2, 9, 1, 2], 1).tokens == (9,)
    assert ask(drafter, [5]) is EMPTY_DRAFT
    assert ask(drafter, [1, 2, 3, 1, 2], 0) is EMPTY_DRAFT


OUTPUT = [20, 21, 22, 23, 24, 25, 26, 27]


def answered(drafter, sequence_id, caller, output=OUTPUT):
    """One whole sequence of a caller."""
    ask(drafter, [1, *output], sequence_id=sequence_id, caller=caller)
    drafter.release(sequence_id)


def test_earlier_outputs_help_the_same_caller_and_nobody_else():
    drafter = catalog.build("suffix:shared", DraftContext())
    answered(drafter, 0, "ann")
    answered(drafter, 1, None)
    start = [2, *OUTPUT[:5]]
    assert ask(drafter, start, 3, sequence_id=2, caller="ann").tokens == tuple(OUTPUT[5:8])
    for sequence_id, caller in ((3, "bob"), (4, None)):
        assert ask(drafter, start, 3, sequence_id=sequence_id, caller=caller) is EMPTY_DRAFT


def test_without_the_option_nothing_is_remembered():
    for spec in ("suffix", "suffix:tree"):
        drafter = catalog.build(spec, DraftContext())
        answered(drafter, 0, "ann")
        assert ask(drafter, OUTPUT[:5], sequence_id=1, caller="ann") is EMPTY_DRAFT


def test_prompts_are_not_remembered_and_running_sequences_do_not_see_each_other():
    drafter = SuffixDrafter(memory=Memory())
    ask(drafter, [*OUTPUT, 9], sequence_id=0, num_prompt=8, caller="ann")
    assert ask(drafter, OUTPUT[:5], sequence_id=1, caller="ann") is EMPTY_DRAFT, "still running"
    drafter.release(0)
    assert ask(drafter, OUTPUT[:5], sequence_id=2, caller="ann") is EMPTY_DRAFT, "it was in the prompt"


def test_no_draft_runs_from_one_output_into_the_next():
    drafter = SuffixDrafter(memory=Memory(), floor=0)
    answered(drafter, 0, "ann")
    answered(drafter, 1, "ann", [50, 51, 52])
    assert ask(drafter, [3, *OUTPUT[:6]], 8, sequence_id=2, caller="ann").tokens == (26, 27)


def test_a_memory_is_bounded_and_forgets_the_oldest_first():
    memory = Memory(max_tokens=40, max_callers=2)
    for i in range(100):
        memory.add("ann", [1000 + i] * 7)
        assert memory.of("ann").num_tokens <= 40
    assert memory.of("ann").longest([1099]).size == 1 and memory.of("ann").longest([1000]).size == 0
    memory.add("ann", list(range(500)))
    assert memory.of("ann").longest(range(500)).size == 20, "of a long one its end"
    memory.add("bob", [1])
    memory.of("ann")
    memory.add("cat", [1])
    assert memory.of("bob") is None and memory.of("ann") is not None and memory.of("cat") is not None


def test_a_caller_must_have_a_name():
    for caller in ("", 5):
        with pytest.raises(OptionError, match="caller must be None or a non-empty string"):
            SamplingParams(caller=caller)


def test_in_the_engine_a_second_answer_of_the_same_caller_is_drafted_from_the_first():
    target = ChainTarget([(5 * i + 3) % 97 for i in range(97)], 97)
    run = engine(target, SuffixDrafter(memory=Memory()), max_draft=8)
    params = [SamplingParams(temperature=0, max_new_tokens=60, caller=caller) for caller in ("ann", "ann", "bob")]
    results = [run.generate([[7]], p)[0] for p in params]
    expected = reference(target, [7], params[0])
    assert [r.token_ids for r in results] == [expected] * 3
    first, second, other = (r.stats.num_accepted for r in results)
    assert first == other and second > first + 20
