"""Shapes of trees against brute force on small cases: every tree, every subset, every budget."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from draftproof.drafters.growth import (
    Costs,
    DynamicPlan,
    FixedPlan,
    Growing,
    RankAcceptance,
    TreeOption,
    best_budget,
    best_nodes,
    expected_length,
    layered,
    optimal,
    plan,
    subtree,
)
from draftproof.errors import OptionError
from draftproof.types import Draft

VECTORS = [(0.7, 0.2, 0.05), (0.4, 0.35, 0.2), (0.9,), (0.3, 0.3, 0.3), (1.0, 0.0), (0.05, 0.04, 0.03)]


def all_shapes(num):
    return itertools.product(*(range(-1, i) for i in range(num)))


def depth(parents):
    return max(Draft((0,) * len(parents), tuple(parents)).depths, default=0)


@pytest.mark.parametrize("acceptance", VECTORS, ids=str)
def test_the_optimal_shape_is_the_best_of_all_shapes(acceptance):
    for num in range(1, 7):
        lengths = [(expected_length(shape, acceptance), depth(shape)) for shape in all_shapes(num)]
        for limit in (None, 1, 2, 3):
            best = max((length for length, deep in lengths if limit is None or deep <= limit), default=0)
            shape = optimal(acceptance, num, limit)
            assert limit is None or depth(shape) <= limit
            assert len(shape) <= num
            if limit is None or len(shape) == num:
                assert expected_length(shape, acceptance) == pytest.approx(best, abs=1e-12)
            else:  # brute force over smaller trees too
                smaller = max(
                    expected_length(s, acceptance) for n in range(num + 1) for s in all_shapes(n) if depth(s) <= limit
                )
                assert expected_length(shape, acceptance) == pytest.approx(smaller, abs=1e-12)


def test_the_expected_length_is_one_plus_the_chance_of_every_path():
    parents = (-1, -1, 0, 0, 2)  # children of the root: 0 and 1; of 0: 2 and 3; of 2: 4
    assert expected_length(parents, (0.6, 0.3)) == pytest.approx(1 + 0.6 + 0.3 + 0.36 + 0.18 + 0.216)
    assert expected_length((), (0.5,)) == 1
    assert expected_length((-1, -1), (0.5,)) == 1.5, "ranks beyond the last are never accepted"


def test_a_chain_is_optimal_when_only_first_children_are_accepted():
    assert optimal((0.8,), 5) == (-1, 0, 1, 2, 3)
    assert optimal((0.5, 0.5), 2, 1) == (-1, -1)


def brute_budget(acceptance, costs, most):
    """Every shape of every size, at what its round takes."""
    best = 1 / costs.verifying(1)
    for num in range(1, most + 1):
        for shape in all_shapes(num):
            time = depth(shape) * costs.draft + costs.verifying(num + 1)
            best = max(best, expected_length(shape, acceptance) / time)
    return best


@pytest.mark.parametrize("acceptance", VECTORS, ids=str)
@pytest.mark.parametrize("draft", [0.0, 0.2, 0.6])
def test_the_budget_is_the_one_with_the_most_tokens_per_time(acceptance, draft):
    for table in (((1, 1.0), (2, 1.02), (4, 1.1), (8, 1.6)), ((1, 1.0), (8, 8.0)), ((1, 1.0),)):
        costs = Costs(table, draft)
        num, deep = best_budget(acceptance, costs, 5)
        shape = optimal(acceptance, num, deep)
        got = expected_length(shape, acceptance) / (deep * draft + costs.verifying(num + 1))
        assert got == pytest.approx(brute_budget(acceptance, costs, 5), abs=1e-12)


def test_a_target_that_pays_for_every_token_gets_no_draft():
    assert best_budget((0.6, 0.2), Costs(((1, 1.0), (2, 2.0)), 0.3), 8) == (0, 0)
    shape = plan(
        TreeOption("optimal"), 8, drawn=True, acceptance=RankAcceptance(), costs=Costs(((1, 1.0), (2, 2.0)), 0.3)
    )
    assert shape.expand(Growing()) == {}


def test_costs_between_measurements_lie_on_a_line():
    costs = Costs(((1, 1.0), (2, 1.2), (4, 2.0)))
    assert [costs.verifying(m) for m in (1, 2, 3, 4, 6)] == pytest.approx([1.0, 1.2, 1.6, 2.0, 2.8])


def test_costs_are_read_from_what_bench_writes(tmp_path):
    rows = [
        {"role": "target", "v": {"1": 1.0, "4": 1.2, "16": 1.5}},
        {"role": "drafter", "c": 0.25, "v": {"1": 1.0}},
    ]
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"costs": rows}))
    expected = Costs(((1, 1.0), (4, 1.2), (16, 1.5)), 0.25)
    assert Costs.read(str(file)) == Costs.read(file) == Costs.read({"costs": rows}) == expected


@pytest.mark.parametrize("bad", ["/no/such/file", {}, {"costs": []}, {"costs": [{"role": "target", "v": {}}]}, [], 3])
def test_what_is_no_cost_document_is_refused_in_one_line(bad):
    with pytest.raises(OptionError, match="bench --costs --json"):
        Costs.read(bad)


def test_given_shapes_are_laid_out_layer_by_layer():
    assert layered((2, 1), 10) == (-1, -1, 0, 1)
    assert layered((4, 2, 1), 20) == (*(-1,) * 4, 0, 0, 1, 1, 2, 2, 3, 3, *range(4, 12))
    assert layered((1, 1, 1), 2) == (-1, 0)
    assert layered((3,), 0) == ()
    assert layered((2, 2), 3) == (-1, -1, 0), "of equal ranks the shallower, then the earlier"


@pytest.mark.parametrize("widths", [(3, 2, 2), (2, 2, 2, 2), (1, 3, 1), (5,), (50, 50, 50)])
@pytest.mark.parametrize("most", [1, 2, 5, 9, 14])
def test_a_shape_too_large_keeps_the_nodes_of_smallest_ranks(widths, most):
    parents = layered(widths, most)
    draft = Draft((0,) * len(parents), parents)
    full = 1
    total = sum(full := full * w for w in widths)
    assert len(parents) == min(total, most)

    def ranks(children):
        return {child: rank for group in children for rank, child in enumerate(group)}

    rank = ranks(draft.children)
    sums = sorted(sum(rank[i] for i in draft.path(node)) for node in range(len(parents)))
    every = sorted(
        (sum(path), len(path))
        for n in range(1, len(widths) + 1)
        for path in itertools.product(*(range(min(w, most)) for w in widths[:n]))
    )
    assert sums == [s for s, _ in every[:most]]


@pytest.mark.parametrize("seed", range(30))
def test_the_best_nodes_are_the_best_subtree(seed):
    """Against every subset that holds each node's parent."""
    chance = random.Random(seed)
    parents = [chance.randrange(-1, i) for i in range(8)]
    values: list[float] = []
    for parent in parents:
        values.append(chance.choice([0.1, 0.5, 0.5, 0.9, 1.0]) * (values[parent] if parent >= 0 else 1.0))
    for num in range(9):
        subsets = [
            nodes
            for nodes in itertools.combinations(range(8), num)
            if all(parents[n] < 0 or parents[n] in nodes for n in nodes)
        ]
        kept = best_nodes(values, num)
        assert tuple(kept) in subsets
        assert sum(values[n] for n in kept) == pytest.approx(max(sum(values[n] for n in nodes) for nodes in subsets))
        assert all(parent < i for i, parent in enumerate(subtree(parents, kept)))


def grow(plan, law):
    """Expand by a law from a path of tokens to (token, probability) pairs, best first."""
    tree = Growing()
    while expanded := plan.expand(tree):
        assert set(expanded) <= set(tree.layers[-1])
        tree.add_layer({node: law(tuple(tree.path(node)))[:num] for node, num in expanded.items()})
    return tree


def random_law(seed, size):
    def law(path):
        chance = random.Random(f"{seed}/{path}")
        weights = [chance.random() ** 4 for _ in range(size)]
        return sorted(((t, w / sum(weights)) for t, w in enumerate(weights)), key=lambda pair: -pair[1])

    return law


@pytest.mark.parametrize("seed", range(20))
def test_a_wide_dynamic_tree_is_the_most_probable_subtree_of_all(seed):
    """With every node expanded, EAGLE-2's tree is the set of most probable prefixes: no other tree of that size has
    a larger sum of path products."""
    law, size, num = random_law(seed, 3), 3, 6
    plan = DynamicPlan(3**4, num)
    tree = grow(plan, law)
    got = {tuple(tree.path(node)): tree.values[node] for node in plan.kept(tree)}
    every = {}
    for length in range(1, num + 1):
        for path in itertools.product(range(size), repeat=length):
            value = 1.0
            for i, token in enumerate(path):
                value *= dict(law(path[:i]))[token]
            every[path] = value
    best = dict(sorted(every.items(), key=lambda item: -item[1])[:num])
    assert got.keys() == best.keys()
    assert list(got.values()) == pytest.approx([best[path] for path in got])


def test_a_dynamic_tree_of_width_one_is_the_chain_that_confidence_ends():
    law = random_law(3, 4)
    for threshold in (0.0, 0.2, 0.6):
        tree = grow(DynamicPlan(1, 6, threshold), law)
        survival, length = 1.0, 0
        while length < 6 and survival >= threshold:
            survival *= law(tuple(tree.tokens[:length]))[0][1]
            length += 1
        assert tree.parents == list(range(-1, length - 1))


def test_a_layer_that_can_add_nothing_is_not_drafted():
    flat = [(t, 0.2) for t in range(5)]
    tree = grow(DynamicPlan(5, 5), lambda path: flat)
    assert len(tree.layers) == 2, "five nodes of 0.2 already; no node below them is worth more"


def test_a_fixed_plan_follows_its_shape_and_does_without_missing_children():
    shape = (-1, -1, 0, 0, 1, 3)
    tree = grow(FixedPlan(shape), lambda path: [(0, 0.5), (1, 0.5)])
    assert tuple(tree.parents) == (-1, -1, 0, 0, 1, 3)
    single = grow(FixedPlan(shape), lambda path: [(7, 1.0)])
    assert single.parents == [-1, 0], "node 0 has one child instead of two, and that one's place has none below"


@pytest.mark.parametrize("seed", range(10))
def test_fixed_plans_reproduce_any_shape_in_layer_order(seed):
    chance = random.Random(seed)
    shape = tuple(chance.randrange(-1, i) for i in range(12))
    tree = grow(FixedPlan(shape), lambda path: [(t, 0.1) for t in range(12)])
    paths = lambda draft: sorted(tuple(draft.tokens[i] for i in draft.path(n)) for n in range(12))  # noqa: E731
    ranked = [0] * 12
    for group in Draft((0,) * 12, shape).children:
        for rank, child in enumerate(group):
            ranked[child] = rank
    assert paths(Draft(tuple(tree.tokens), tuple(tree.parents))) == paths(Draft(tuple(ranked), shape))


def test_rank_acceptance_counts_the_children_that_were_reached():
    known = RankAcceptance()
    before = known.estimate()
    tokens, parents = (5, 6, 7, 8), (-1, -1, 0, 0)
    for _ in range(2000):
        known.observe(tokens, parents, [5, 8, 3])  # first child, then second child, then a leaf
    shares = known.estimate()
    assert shares[:2] == pytest.approx((0.5, 0.5), abs=0.01) and shares[2] <= before[2]
    for _ in range(20000):
        known.observe(tokens, parents, [9])
    assert max(known.estimate()[:2]) < 0.1
    assert sorted(shares, reverse=True) == list(shares)


def test_a_drawn_tree_is_never_dynamic_because_nodes_would_be_dropped():
    made = plan(TreeOption("dynamic"), 6, drawn=True, acceptance=RankAcceptance())
    assert isinstance(made, FixedPlan)
    assert isinstance(plan(TreeOption("dynamic"), 6, drawn=False, acceptance=RankAcceptance()), DynamicPlan)


def test_options_are_read():
    assert TreeOption.parse(None) is TreeOption.parse("chain") is None
    assert TreeOption.parse("4,2,1") == TreeOption("static", (4, 2, 1))
    assert TreeOption.parse("dynamic:3").width == 3
    assert TreeOption.parse("optimal").kind == "optimal"


@pytest.mark.parametrize("bad", ["", "4,0", "4,,1", "dynamic:0", "dynamic:x", "optimal:3", "best", "-1"])
def test_other_options_are_refused_in_one_line(bad):
    with pytest.raises(OptionError, match="draft_tree must be chain, dynamic, optimal"):
        TreeOption.parse(bad)
