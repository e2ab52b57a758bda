"""The token rule, case by case: what it accepts, what it emits, what it refuses, and its closed forms."""

import math

import pytest
import torch
from scipy.stats import chi2

from draftproof.sampling import SeededSource, probs
from draftproof.testing import RandomTable
from draftproof.types import EMPTY_DRAFT, Draft, Probs, SamplingParams
from draftproof.verify import (
    EnumeratingSource,
    acceptance_law,
    acceptance_rate,
    argmax_chain,
    chain_survival,
    exact_law,
    expected_tokens,
    geometric_survival,
    sampled_chain,
    target_rows,
    token_rule,
)

VOCAB = 3


def rows(*laws):
    return Probs.dense(torch.tensor(laws, dtype=torch.float64))


def accepted_law(target, propose):
    """The exact law of the number of accepted tokens."""

    def run(source):
        draft = propose((), source)
        return len(token_rule(draft, target_rows(target, (), draft), source).path)

    return exact_law(run)


@pytest.mark.parametrize(
    ("tokens", "path", "next_token", "next_from"),
    [
        ([1, 2, 0], (0, 1, 2), 1, "bonus"),
        ([1, 2, 2], (0, 1), 0, "residual"),
        ([1, 0, 0], (0,), 2, "residual"),
        ([0, 2, 0], (), 1, "residual"),
        ([], (), 1, "bonus"),
    ],
)
def test_greedy_accepts_the_longest_agreeing_prefix(tokens, path, next_token, next_from):
    logits = torch.zeros(len(tokens) + 1, VOCAB)
    for row, best in enumerate([1, 2, 0, 1][: len(tokens) + 1]):
        logits[row, best] = 5
    draft = Draft.chain(tokens)
    result = token_rule(draft, probs(logits, SamplingParams(temperature=0), draft=draft), SeededSource(0))
    assert (result.path, result.next_token, result.next_from) == (path, next_token, next_from)
    assert result.num_drafted == len(tokens)


def test_greedy_needs_no_chance_even_for_sampled_drafts():
    draft = Draft.chain([0, 1], rows([0.6, 0.4, 0.0], [0.1, 0.8, 0.1]), "independent")
    law = exact_law(lambda source: token_rule(draft, Probs.one_hot([0, 2, 1], VOCAB), source))
    assert [(verdict.path, verdict.next_token) for verdict in law] == [((0,), 2)]


def test_an_empty_draft_is_plain_decoding():
    law = exact_law(lambda source: token_rule(EMPTY_DRAFT, rows([0.2, 0.3, 0.5]), source).next_token)
    assert law == pytest.approx({0: 0.2, 1: 0.3, 2: 0.5}, abs=1e-15)


def test_equal_laws_accept_everything_surely():
    for seed in range(5):
        p = RandomTable(VOCAB, seed, zeros=0.3)
        assert accepted_law(p, sampled_chain(p, 3)) == pytest.approx({3: 1.0}, abs=1e-14)


def test_disjoint_supports_accept_nothing():
    p, q = (lambda prefix: [0.5, 0.5, 0.0, 0.0]), (lambda prefix: [0.0, 0.0, 0.3, 0.7])
    assert accepted_law(p, sampled_chain(q, 3)) == pytest.approx({0: 1.0}, abs=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_accepted_length_follows_the_closed_form(seed):
    """P(tau >= k) is the sum over chains of the product of min(p, q), whatever K is."""
    p, q = RandomTable(VOCAB, seed, zeros=0.2), RandomTable(VOCAB, seed + 100, zeros=0.2)
    survival = chain_survival(p, q, 3)
    for num_tokens in (1, 2, 3):
        law = accepted_law(p, sampled_chain(q, num_tokens))
        expected = acceptance_law(survival[:num_tokens])
        assert [law.get(k, 0.0) for k in range(num_tokens + 1)] == pytest.approx(expected, abs=1e-13)
        assert 1 + sum(k * w for k, w in law.items()) == pytest.approx(expected_tokens(survival[:num_tokens]))


def test_a_point_mass_is_accepted_with_its_probability_under_p():
    p, q = RandomTable(VOCAB, 1), RandomTable(VOCAB, 2)
    law = accepted_law(p, argmax_chain(q, 1))
    token = int(q(()).argmax())
    assert law[1] == pytest.approx(float(p(())[token]), abs=1e-15)


def test_one_law_everywhere_gives_the_geometric_length():
    p, q = [1 / 3, 2 / 3], [2 / 3, 1 / 3]
    alpha = float(acceptance_rate(rows(p), rows(q)))
    survival = chain_survival(lambda prefix: p, lambda prefix: q, 2)
    assert survival == pytest.approx(geometric_survival(alpha, 2), abs=1e-15)
    assert expected_tokens(survival) == pytest.approx((1 - alpha**3) / (1 - alpha))
    assert sum(survival) == pytest.approx(10 / 9)


def test_laws_of_point_masses_are_ignored():
    """A draft chosen without randomness may carry scores; they say nothing about how it was drawn."""
    p = rows([0.5, 0.3, 0.2], [0.1, 0.1, 0.8])
    plain, scored = Draft.chain([1]), Draft.chain([1], rows([0.9, 0.1, 0.0]))
    laws = [exact_law(lambda source, d=draft: token_rule(d, p, source)) for draft in (plain, scored)]
    assert laws[0] == laws[1]


@pytest.mark.parametrize("num_rows", [1, 3])
def test_p_must_have_one_row_more_than_the_draft(num_rows):
    with pytest.raises(ValueError, match=f"2, not {num_rows}"):
        token_rule(Draft.chain([0]), rows(*[[0.5, 0.5]] * num_rows), SeededSource(0))


@pytest.mark.parametrize("token", [-1, 2])
def test_ids_outside_the_vocabulary_are_refused(token):
    with pytest.raises(ValueError, match="ids below 2"):
        token_rule(Draft.chain([token]), rows([0.5, 0.5], [0.5, 0.5]), SeededSource(0))


def test_a_drawn_token_without_probability_is_refused():
    draft = Draft.chain([0], rows([0.0, 1.0]), "independent")
    with pytest.raises(ValueError, match="token 0 has probability 0"):
        token_rule(draft, rows([0.5, 0.5], [0.5, 0.5]), SeededSource(0))


def test_laws_over_other_vocabularies_are_refused():
    draft = Draft.chain([0], rows([0.5, 0.5, 0.0]), "independent")
    with pytest.raises(ValueError, match="2 ids, not 3"):
        token_rule(draft, rows([0.5, 0.5], [0.5, 0.5]), SeededSource(0))


def test_each_kind_of_chance_has_its_own_stream():
    streams = set()
    p, q = RandomTable(VOCAB, 1), RandomTable(VOCAB, 2)

    def run(source):
        draft = sampled_chain(q, 1)((), source)
        return token_rule(draft, target_rows(p, (), draft), source).next_from

    exact_law(run, lambda outcome, prob, choices: streams.add((outcome, *(choice.stream for choice in choices))))
    assert streams == {("residual", "draft", "accept", "residual"), ("bonus", "draft", "accept", "bonus")}


def test_sparse_and_dense_laws_take_the_same_decisions():
    p = rows([0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.0, 0.75], [0.1, 0.0, 0.3, 0.6])
    q = rows([0.25, 0.5, 0.25, 0.0], [0.0, 0.5, 0.5, 0.0])
    thin_p, thin_q = (Probs(*(part.flip(-1) for part in law.values.topk(3)), 4) for law in (p, q))
    for tokens in ([0, 1], [1, 2], [2, 1]):
        laws = []
        for p_form, q_form in ((p, q), (p, thin_q), (thin_p, q), (thin_p, thin_q)):
            draft = Draft.chain(tokens, q_form, "independent")
            laws.append(exact_law(lambda source, d=draft, law=p_form: token_rule(d, law, source)))
        assert all(law == pytest.approx(laws[0], abs=1e-14) for law in laws[1:])


def test_seeded_draws_follow_the_target_law():
    """Monte-Carlo over the production source, 30 000 rounds of K = 2: Pearson's test over all 27 three-token texts.

    False alarm probability 1e-9 for a random seed; the seed is fixed, so the outcome is too.
    """
    p, q = RandomTable(VOCAB, 5), RandomTable(VOCAB, 6)
    num_runs, counts, source = 30_000, {}, SeededSource(12)
    propose = sampled_chain(q, 2)
    for _ in range(num_runs):
        draft = propose((), source)
        result = token_rule(draft, target_rows(p, (), draft), source)
        text = (*(draft.tokens[i] for i in result.path), result.next_token)
        while len(text) < 3:
            text += (source.categorical(p(text), "extend"),)
        counts[text] = counts.get(text, 0) + 1
    expected = {
        (a, b, c): num_runs * float(p(())[a] * p((a,))[b] * p((a, b))[c])
        for a in range(VOCAB)
        for b in range(VOCAB)
        for c in range(VOCAB)
    }
    assert min(expected.values()) > 5
    assert set(counts) <= set(expected)
    statistic = sum((counts.get(text, 0) - e) ** 2 / e for text, e in expected.items())
    assert statistic < chi2.isf(1e-9, len(expected) - 1)


def test_the_same_seed_gives_the_same_verdict():
    p, q = RandomTable(VOCAB, 5), RandomTable(VOCAB, 6)

    def run(seed):
        source = SeededSource(seed)
        draft = sampled_chain(q, 3)((), source)
        return draft.tokens, token_rule(draft, target_rows(p, (), draft), source)

    assert run(3) == run(3)
    assert len({run(seed) for seed in range(20)}) > 1


def test_a_fresh_enumerating_source_starts_at_probability_one():
    assert math.isclose(EnumeratingSource().probability, 1.0)
