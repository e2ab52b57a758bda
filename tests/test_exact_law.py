"""The product's central claim by enumeration: what the production verifier emits has exactly the target's law.

Every test compares in float64 over all outcomes, so there is no sampling noise and nothing can flake.
"""

import random

import pytest
import torch

from draftproof.audit.laws import PAIRS, point, processed
from draftproof.audit.mutants import EXACT
from draftproof.audit.rules import SETTINGS
from draftproof.sampling import SeededSource
from draftproof.testing import RandomTable
from draftproof.types import Draft
from draftproof.verify import (
    EnumeratingSource,
    argmax_chain,
    distance_from_target,
    emitted_law,
    exact_law,
    extended,
    sampled_chain,
    token_rule,
    total_variation,
)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("vocab_size", [2, 3, 4])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_sampled_chains_emit_the_target_law(vocab_size, num_tokens, zeros):
    p, q = RandomTable(vocab_size, 1, zeros), RandomTable(vocab_size, 2, zeros)
    assert distance_from_target(p, sampled_chain(q, num_tokens), token_rule) < EXACT


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_point_mass_chains_emit_the_target_law(seed, num_tokens):
    p, q = RandomTable(4, seed, 0.3), RandomTable(4, seed + 50)
    assert distance_from_target(p, argmax_chain(q, num_tokens), token_rule) < EXACT


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_greedy_is_the_one_hot_case(num_tokens):
    table, q = RandomTable(3, 1), RandomTable(3, 2)
    greedy = point(table)
    for propose in (sampled_chain(q, num_tokens), argmax_chain(q, num_tokens), argmax_chain(table, num_tokens)):
        assert distance_from_target(greedy, propose, token_rule, rounds=2) < EXACT


@pytest.mark.parametrize("name", PAIRS)
def test_awkward_pairs_of_laws_emit_the_target_law(name):
    p, q = PAIRS[name]
    assert distance_from_target(p, sampled_chain(q, 2), token_rule) < EXACT
    assert distance_from_target(p, sampled_chain(q, 1), token_rule, rounds=2) < EXACT


@pytest.mark.parametrize("seed", range(2))
def test_two_consecutive_rounds_emit_the_target_law(seed):
    p, q = RandomTable(2, seed), RandomTable(2, seed + 20)
    assert distance_from_target(p, sampled_chain(q, 3), token_rule, rounds=2) < EXACT
    p, q = RandomTable(3, seed, 0.3), RandomTable(3, seed + 20, 0.3)
    assert distance_from_target(p, sampled_chain(q, 2), token_rule, rounds=2, prefix=(1, 2)) < EXACT


def test_stopping_after_an_unlikely_token_keeps_the_law_when_the_token_is_verified():
    """The length may depend on drawn tokens as long as every one of them is handed over."""
    p, q = RandomTable(3, 1), RandomTable(3, 2)

    def propose(prefix, source):
        draft = Draft((), ())
        for length in (1, 2, 3):
            full = sampled_chain(q, length)
            draft = full(prefix, Fixed(draft.tokens, source))
            if float(q(prefix + draft.tokens[:-1])[draft.tokens[-1]]) < 0.4:
                break
        return draft

    assert distance_from_target(p, propose, token_rule) < EXACT


class Fixed:
    """Repeats tokens already drawn, then draws on."""

    def __init__(self, tokens, source):
        self.tokens, self.source = list(tokens), source

    def categorical(self, weights, stream):
        return self.tokens.pop(0) if self.tokens else self.source.categorical(weights, stream)


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_processed_laws_pass_through_the_production_distribution(params):
    """p and q both come from `sampling.probs`, so p is the law after the processors, sparse where they make it so."""
    p, q = processed(RandomTable(3, 1), params), processed(RandomTable(3, 2), params)
    assert distance_from_target(p, sampled_chain(q, 2), token_rule) < EXACT


def test_rational_laws_come_out_as_computed_by_hand():
    """p = (1/3, 2/3), q = (2/3, 1/3), K = 2."""
    law = emitted_law(lambda _: [1 / 3, 2 / 3], sampled_chain(lambda _: [2 / 3, 1 / 3], 2), token_rule)
    truth = {(0, 0): 1 / 9, (0, 1): 2 / 9, (1, 0): 2 / 9, (1, 1): 4 / 9}
    assert total_variation(extended(law, lambda _: [1 / 3, 2 / 3], 2), truth) < 1e-15
    assert law[(1,)] == pytest.approx(1 / 3)  # rejected at once: 2/3 * 1/2, and the residual is all on token 1


def test_enumeration_visits_every_combination_once():
    def run(source):
        if source.bernoulli(0.25, "accept"):
            return "yes", source.categorical(torch.tensor([1.0, 0.0, 3.0]), "draft")
        return "no", 0

    seen = []
    law = exact_law(run, lambda outcome, prob, choices: seen.append((outcome, prob, len(choices))))
    assert law == {("yes", 0): 0.0625, ("yes", 2): 0.1875, ("no", 0): 0.75}
    assert seen == [(("yes", 0), 0.0625, 2), (("yes", 2), 0.1875, 2), (("no", 0), 0.75, 1)]


def test_certain_chances_do_not_branch():
    def run(source):
        return (
            source.bernoulli(0.0, "a"),
            source.bernoulli(-1.0, "a"),
            source.bernoulli(1.0, "a"),
            source.bernoulli(2.0, "a"),
            source.categorical(torch.tensor([0.0, 5.0]), "b"),
        )

    assert exact_law(run) == {(False, False, True, True, 1): 1.0}


def test_weights_are_normalised_by_their_own_sum():
    assert exact_law(lambda source: source.categorical(torch.tensor([2.0, 6.0]), "a")) == {0: 0.25, 1: 0.75}


@pytest.mark.parametrize("weights", [[0.0, 0.0], [float("nan"), 1.0], [-1.0, 2.0]])
def test_weights_that_are_no_law_are_refused(weights):
    with pytest.raises(ValueError, match="cannot draw"):
        EnumeratingSource().categorical(torch.tensor(weights), "a")


def test_hidden_chance_is_noticed():
    """Code that takes chance from elsewhere does not repeat itself under replay."""
    hidden = random.Random(1)

    def run(source):
        return source.bernoulli(0.5 + 0.1 * hidden.random(), "accept")

    with pytest.raises(RuntimeError, match="other chance"):
        exact_law(run)


def test_extension_continues_short_texts_and_cuts_long_ones():
    law = extended({(0,): 0.5, (1, 1, 1): 0.5}, lambda prefix: [0.25, 0.75], 2)
    assert law == pytest.approx({(0, 0): 0.125, (0, 1): 0.375, (1, 1): 0.5})


def test_production_and_enumerating_source_agree_on_what_is_certain():
    source = SeededSource(1)
    assert not any(source.bernoulli(0.0, "accept") for _ in range(1000))
    assert all(source.bernoulli(1.0, "accept") for _ in range(1000))
