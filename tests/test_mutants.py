"""Broken verifiers, drafters and engines, each of which the exact audit must catch.

An audit is credible only if it fails on what is wrong. Every mutant is paired with the example on which it shows: there
the true rule is exact to 1e-12 and the mutant is off by more than 1e-6.
"""

import math
from typing import get_args

import pytest

from draftproof.audit.mutants import CAUGHT, EXACT, MUTANTS, Score
from draftproof.audit.mutants.chains import blocks, variant
from draftproof.audit.mutants.drafters import DRAFTERS, claiming_a_point_mass
from draftproof.audit.mutants.mutant import P_TREE, Q_TREE, TREE, P, Q
from draftproof.audit.mutants.trees import claiming
from draftproof.audit.recursion import Recursion
from draftproof.testing import RandomTable
from draftproof.types import Drawn
from draftproof.verify import (
    block_rule,
    distance_from_target,
    emitted_law,
    extended,
    sampled_chain,
    token_rule,
    total_variation,
    traversal_rule,
    tree_of,
)


def test_the_unchanged_variants_are_the_true_rules():
    """So each mutant above differs from the truth in the one part it names."""
    for num in (1, 2, 3):
        draft = sampled_chain(Q, num)
        assert emitted_law(P, draft, variant()) == pytest.approx(emitted_law(P, draft, token_rule), abs=1e-15)
        assert emitted_law(P, draft, blocks()) == pytest.approx(emitted_law(P, draft, block_rule), abs=1e-14)
    for drawn in get_args(Drawn):
        draft = tree_of(Q_TREE, TREE, drawn)
        assert emitted_law(P_TREE, draft, Recursion()) == pytest.approx(
            emitted_law(P_TREE, draft, traversal_rule), abs=1e-14
        )
        if drawn != "fixed":
            assert emitted_law(P_TREE, draft, claiming(drawn)) == emitted_law(P_TREE, draft, traversal_rule)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_and_its_sound_part_is_not(mutant):
    assert mutant.sound() < EXACT
    assert mutant.broken() > CAUGHT


def test_the_score_counts_a_mutant_only_where_the_sound_part_is_exact():
    assert Score("seen", 0.1, 1e-17).caught
    assert not Score("unseen", 1e-17, 1e-17).caught
    assert not Score("seen for another reason", 0.1, 1e-3).caught
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 54


@pytest.mark.parametrize("rule", [token_rule, block_rule, traversal_rule])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_that_misstates_its_draw_is_caught_by_every_rule(name, rule):
    assert distance_from_target(P, sampled_chain(Q, 2), rule) < EXACT
    assert distance_from_target(P, DRAFTERS[name][0], rule) > CAUGHT


def test_a_drawn_token_declared_fixed_is_still_exact():
    """A point mass is exact whatever token it names, drawn or not, kept or dropped: only acceptance suffers."""
    assert distance_from_target(P, claiming_a_point_mass, token_rule) < EXACT


def test_fixed_siblings_tested_before_the_drawn_one_are_exact_but_accept_less():
    """Not a mutant: the order is free as long as each law is what it was; the core's order is the best one."""

    class FixedFirst(Recursion):
        def order(self, node, p):
            children = super().order(node, p)
            return [*children[1:], *children[:1]]

        def law(self, node, tokens, j):
            last = len(tokens) - 1
            return super().law(node, [tokens[last], *tokens[:last]], 0 if j == last else j + 1)

    p, q = RandomTable(4, 1), RandomTable(4, 2)
    propose = tree_of(q, (-1, -1, 0), "hybrid")
    lengths = []
    for rule in (FixedFirst(), traversal_rule):
        assert distance_from_target(p, propose, rule) < EXACT
        lengths.append(sum(len(text) * w for text, w in emitted_law(p, propose, rule).items()))
    assert lengths[0] < lengths[1] - 1e-3


def test_the_public_hsd_test_hides_from_first_tokens_and_is_caught_on_pairs():
    """p = (.6, .4), q = (.3, .7), K = 2: first tokens come out right, pairs are off by 0.09."""
    p, q = (lambda prefix: [0.6, 0.4]), (lambda prefix: [0.3, 0.7])
    mutant = blocks(last=lambda a, ratios: math.prod(ratios))
    propose = sampled_chain(q, 2)
    assert distance_from_target(p, propose, block_rule) < EXACT
    assert distance_from_target(p, propose, blocks()) < EXACT
    assert distance_from_target(p, propose, mutant, length=1) < EXACT
    assert distance_from_target(p, propose, mutant, length=2) == pytest.approx(0.09, abs=1e-12)
    pairs = extended(emitted_law(p, propose, mutant), p, 2)
    stated = {(0, 0): 0.27, (0, 1): 0.33, (1, 0): 0.24, (1, 1): 0.16}
    assert total_variation(pairs, stated) < EXACT
