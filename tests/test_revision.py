"""A text said again with changes: the place in the old text survives a change, and a known change is expected again."""

from __future__ import annotations

import random
import time

import pytest

from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.revision import Revision
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.sampling import SeededSource
from draftproof.types import DraftRequest, SamplingParams

OLD = [100 + i for i in range(60)]  # no token twice, so that nothing but the place can help
for name in (5, 17, 18, 31, 44, 53):
    OLD[name] = 7
SEPARATOR = [1, 2]


def rounds(old, new, max_nodes=8, make=SuffixDrafter):
    """Greedy rounds until `new` has been said after `old`, by perfect knowledge of what the target says."""
    drafter, said, count = make(), 0, 0
    while said < len(new):
        text = (*old, *SEPARATOR, *new[:said])
        request = DraftRequest(0, text, len(old), SamplingParams(temperature=0), SeededSource(0), max_nodes)
        draft = drafter.propose([request])[0]
        good = 0
        while good < draft.num_nodes and said + good < len(new) and draft.tokens[good] == new[said + good]:
            good += 1
        said, count = said + good + 1, count + 1
    return count


def renamed(replacement):
    return [token for old in OLD for token in (replacement if old == 7 else [old])]


@pytest.mark.parametrize(
    ("new", "most"),
    [
        (list(OLD), 3 + 8),  # three words until the place is known, then nine tokens a round
        (renamed([70]), 3 + 8 + 2),  # one round is cut short by the first change, one by the pair side by side
        (renamed([70, 71, 72]), 3 + 9 + 5),  # and a longer name is no place one for one
        ([*OLD[:20], *OLD[32:]], 3 + 6 + 3),  # a passage left out
        ([*OLD[:20], 900, 901, 902, 903, *OLD[20:]], 3 + 8 + 6),  # words put in between
    ],
    ids=["the same", "renamed", "renamed to three tokens", "shorter", "longer"],
)
def test_changes_cost_a_round_or_two_each_and_only_once(new, most):
    assert rounds(OLD, new) <= most


def test_a_known_change_is_in_the_draft():
    drafter = SuffixDrafter()
    text = (*OLD, *SEPARATOR, *renamed([70])[:12])
    request = DraftRequest(0, text, len(OLD), SamplingParams(temperature=0), SeededSource(0), 8)
    assert drafter.propose([request])[0].tokens == (*OLD[12:17], 70, 70, OLD[19])


def test_a_change_is_expected_again_at_once():
    """Right after the first 70 for 7, before anything confirms the place."""
    text, revision = [*OLD, *SEPARATOR, *renamed([70])[:6]], Revision(len(OLD))
    revision.follow(text)
    assert revision.proposal(text, 14, 0.0)[0] == renamed([70])[6:20]


def test_a_prompt_that_resembles_itself_has_taught_no_change():
    """30 in the place of 20 is a change in an output, but not where one part of a prompt is like another."""
    old = [10, 11, 12, 20, 13, 14, 40, 41, 42, 20, 43, 44, 10, 11, 12, 30, 13, 14]
    text = [*old, 40, 41, 42]
    found = {}
    for num_prompt in (0, len(old)):
        revision = Revision(num_prompt)
        revision.follow(text)
        found[num_prompt], _ = revision.proposal(text, 3, 0.0)
    assert found == {0: [30, 43, 44], len(old): [20, 43, 44]}


@pytest.mark.parametrize("make", [SuffixDrafter, NgramDrafter, lambda eos_ids: SuffixDrafter(8, eos_ids=eos_ids)])
def test_nothing_follows_the_end_of_a_text(make):
    """Not the tokens between two messages of a chat, neither after the end nor in its place."""
    prompt = (*range(100, 120), 9, 1, 2, 3)
    for said, expected in ((15, {115, 116, 117, 118, 119, 9}), (20, {9})):
        for strange in ((), (77,)):
            text = (*prompt, *range(100, 100 + said), *strange)
            request = DraftRequest(0, text, len(prompt), SamplingParams(temperature=0), SeededSource(0), 12)
            drafted = make(eos_ids=frozenset({9})).propose([request])[0].tokens
            if not strange:
                assert set(drafted) == expected and len(drafted) == len(expected)
            else:
                assert not {1, 2, 3} & set(drafted)


def test_words_are_replaced_as_a_whole():
    """Two old tokens that became three; each of the two alone stays as it is."""
    old = [10, 11, 12, 5, 6, 13, 14, 15, 16, 5, 17, 18, 6, 19, 20, 5, 6, 21, 22, 23]
    new = [10, 11, 12, 7, 8, 9, 13, 14, 15]
    revision = Revision()
    revision.follow([*old, *SEPARATOR, *new])
    found, _ = revision.proposal([*old, *SEPARATOR, *new], 20, 0.0)
    assert found[:10] == [16, 5, 17, 18, 6, 19, 20, 7, 8, 9]


def test_reading_in_pieces_is_reading_at_once():
    """What is proposed depends on the text alone, not on how it arrived."""
    chance = random.Random(3)
    for _ in range(200):
        old = [chance.randrange(12) for _ in range(chance.randrange(5, 60))]
        new = [chance.randrange(12) if chance.random() < 0.2 else token for token in old if chance.random() > 0.1]
        text, revision, read = [*old, 99, *new], Revision(), 0
        while read < len(text):
            read = min(len(text), read + chance.randrange(1, 6))
            revision.follow(text[:read])
            fresh = Revision()
            fresh.follow(text[:read])
            num, floor = chance.randrange(1, 10), chance.choice([0.0, 0.1])
            proposal, survival = revision.proposal(text[:read], num, floor)
            assert (proposal, survival) == fresh.proposal(text[:read], num, floor)
            assert len(proposal) == len(survival) <= num and all(floor <= s <= 1 for s in survival)


def test_what_has_been_left_for_long_is_followed_no_more():
    revision = Revision()
    text = [*OLD, *SEPARATOR, *OLD[:10], *range(500, 520)]
    revision.follow(text)
    assert revision.proposal(text, 8, 0.0) == ([], [])


def test_a_long_text_is_read_in_linear_time():
    """A generous bound for a slow machine: about 5 us a token on an idle core."""
    chance = random.Random(0)
    text = [chance.randrange(50) for _ in range(20_000)]
    started = time.perf_counter()
    Revision().follow(text)
    assert time.perf_counter() - started < 4
