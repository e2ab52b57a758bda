"""Every rule x every way of drawing, by enumeration of the production code: what comes out has the target's law.

Float64 over all outcomes: no sampling noise, nothing can flake. The rules also agree, path by path and token by token,
with the recursion written over plain lists (`recursion.py`).
"""

import pytest

from draftproof.api import VERIFIERS
from draftproof.audit.laws import PAIRS, processed
from draftproof.audit.mutants import EXACT
from draftproof.audit.recursion import Recursion
from draftproof.audit.rules import CHAINS, DRAWN, SETTINGS, TREES, is_chain
from draftproof.testing import RandomTable
from draftproof.types import Draft, Probs
from draftproof.verify import (
    argmax_chain,
    auto_rule,
    block_rule,
    distance_from_target,
    exact_law,
    sampled_chain,
    target_rows,
    token_rule,
    traversal_rule,
    tree_of,
)


def legal(name, parents):
    return name != "block" or is_chain(parents)


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("parents", CHAINS, ids=len)
def test_chains_emit_the_target_law(parents, name, drawn):
    """K up to 4, V up to 5 (both at once below), zero mass among them."""
    for vocab_size, zeros in ((3, 0.4), (5 if len(parents) < 4 else 2, 0.2)):
        p, q = RandomTable(vocab_size, 1, zeros), RandomTable(vocab_size, 2, zeros)
        assert distance_from_target(p, tree_of(q, parents, drawn), VERIFIERS[name]) < EXACT


@pytest.mark.parametrize("rule", [token_rule, block_rule, traversal_rule])
def test_the_longest_chains_over_the_largest_vocabulary(rule):
    p, q = RandomTable(5, 3, 0.2), RandomTable(5, 4)
    assert distance_from_target(p, sampled_chain(q, 4), rule) < EXACT


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "block"])
@pytest.mark.parametrize("shape", TREES)
def test_trees_emit_the_target_law(shape, name, drawn):
    for vocab_size, zeros in ((3, 0.0), (3, 0.4), (4 if len(TREES[shape]) < 5 else 2, 0.2)):
        p, q = RandomTable(vocab_size, 1, zeros), RandomTable(vocab_size, 2, zeros)
        assert distance_from_target(p, tree_of(q, TREES[shape], drawn), VERIFIERS[name]) < EXACT


@pytest.mark.parametrize("drawn", DRAWN)
def test_three_children_over_five_tokens(drawn):
    p, q = RandomTable(5, 1), RandomTable(5, 2)
    for name in ("token", "traversal"):
        assert distance_from_target(p, tree_of(q, (-1, -1, -1, 1), drawn), VERIFIERS[name]) < EXACT


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("pair", PAIRS)
def test_awkward_pairs_of_laws_emit_the_target_law(pair, drawn):
    p, q = PAIRS[pair]
    for parents in ((-1, 0), (-1, -1, 0, 0)):
        for name, rule in VERIFIERS.items():
            if legal(name, parents):
                assert distance_from_target(p, tree_of(q, parents, drawn), rule) < EXACT
    assert distance_from_target(p, tree_of(q, (-1, -1), drawn), auto_rule, rounds=2) < EXACT


@pytest.mark.parametrize("drawn", DRAWN)
def test_two_consecutive_rounds_emit_the_target_law(drawn):
    p, q = RandomTable(3, 5, 0.3), RandomTable(3, 25, 0.3)
    for parents in ((-1, 0, 1), (-1, -1, 0)):
        for name, rule in VERIFIERS.items():
            if legal(name, parents):
                assert distance_from_target(p, tree_of(q, parents, drawn), rule, rounds=2, prefix=(1, 2)) < EXACT


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("drawn", DRAWN)
def test_processed_laws_pass_through_the_production_distribution(params, drawn):
    p, q = processed(RandomTable(4, 1), params), processed(RandomTable(4, 2), params)
    assert distance_from_target(p, tree_of(q, (-1, 0), drawn), block_rule) < EXACT
    for rule in (token_rule, traversal_rule):
        assert distance_from_target(p, tree_of(q, (-1, -1, 0, 0), drawn), rule) < EXACT


@pytest.mark.parametrize("rule", [token_rule, block_rule, traversal_rule])
def test_a_length_that_depends_on_drawn_tokens_keeps_the_law(rule):
    """Draws go on until an unlikely token was drawn; every one of them is handed over."""
    p, q = RandomTable(3, 1), RandomTable(3, 2)

    def propose(prefix, source):
        tokens, rows = [], []
        for _ in range(3):
            drafted = sampled_chain(q, 1)((*prefix, *tokens), source)
            tokens += drafted.tokens
            rows.append(drafted.probs.row(0))
            if rows[-1].prob(0, tokens[-1]) < 0.4:
                break
        return Draft.chain(tokens, Probs.stack(rows), "independent")

    assert distance_from_target(p, propose, rule) < EXACT


@pytest.mark.parametrize("rule", [token_rule, traversal_rule])
def test_a_tree_may_grow_where_the_draft_is_sure(rule):
    """Topology as a function of prefix and draft laws, drawn parents included: a second level below likely tokens."""
    p, q = RandomTable(3, 1), RandomTable(3, 2)

    def propose(prefix, source):
        first = tree_of(q, (-1, -1), "without_replacement")(prefix, source)
        tokens, parents = list(first.tokens), [-1, -1]
        rows = [first.probs.row(0), *(Probs.dense(q((*prefix, token))[None]) for token in first.tokens)]
        for node, token in enumerate(first.tokens):
            if float(q(prefix)[token]) > 0.3:
                tokens += sampled_chain(q, 1)((*prefix, token), source).tokens
                parents.append(node)
        return Draft(tokens, parents, Probs.stack(rows), "without_replacement")

    assert distance_from_target(p, propose, rule) < EXACT


def outcomes(rule, draft, p):
    law = exact_law(lambda source: rule(draft, p, source))
    return {outcome: probability for outcome, probability in law.items() if probability > 1e-15}


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("at_once", [True, False], ids=["token", "traversal"])
@pytest.mark.parametrize("parents", [*TREES.values(), CHAINS[3]], ids=[*TREES, "chain"])
def test_the_core_is_the_recursion_path_by_path(parents, at_once, drawn):
    p, q = RandomTable(3, 11, 0.2), RandomTable(3, 12, 0.2)
    rule = token_rule if at_once else traversal_rule
    for draft in drafts(tree_of(q, parents, drawn)):
        rows = target_rows(p, (), draft)
        assert outcomes(rule, draft, rows) == pytest.approx(outcomes(Recursion(at_once), draft, rows), abs=1e-13)


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("seed", range(3))
def test_block_verification_is_the_recursion_on_a_chain_path_by_path(seed, drawn):
    p, q = RandomTable(3, seed, 0.2), RandomTable(3, seed + 50, 0.2)
    for draft in drafts(tree_of(q, CHAINS[4], drawn)):
        rows = target_rows(p, (), draft)
        assert outcomes(block_rule, draft, rows) == pytest.approx(outcomes(Recursion(), draft, rows), abs=1e-13)


def drafts(propose):
    """Every draft that can be drawn."""
    found = []
    exact_law(lambda source: found.append(propose((), source)))
    return found


def test_auto_takes_the_best_rule_for_what_was_drawn():
    p, q = RandomTable(3, 1), RandomTable(3, 2)
    for parents, drawn, rule in (
        (CHAINS[3], "fixed", token_rule),
        ((-1, -1, 0), "fixed", token_rule),
        (CHAINS[3], "independent", block_rule),
        (CHAINS[3], "hybrid", block_rule),
        ((-1, 0, 0), "independent", traversal_rule),
        ((-1, 0, 0), "without_replacement", traversal_rule),
        ((-1, 0, 0), "hybrid", traversal_rule),
    ):
        for draft in drafts(tree_of(q, parents, drawn)):
            rows = target_rows(p, (), draft)
            assert outcomes(auto_rule, draft, rows) == pytest.approx(outcomes(rule, draft, rows), abs=1e-14)


@pytest.mark.parametrize("name", VERIFIERS)
def test_h04_a_drafter_that_always_says_the_same_changes_nothing(name):
    """p = (.6, .4), token 1 proposed always, as a point mass or as a law: its share stays .4, exactly."""
    p = lambda _: [0.6, 0.4]  # noqa: E731
    for propose in (argmax_chain(lambda _: [0.0, 1.0], 4), sampled_chain(lambda _: [0.0, 1.0], 4)):
        assert distance_from_target(p, propose, VERIFIERS[name]) < EXACT
