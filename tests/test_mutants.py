"""Broken verifiers and drafters, each of which the exact audit must catch.

An audit is credible only if it fails on what is wrong. Every mutant is paired with the example on which it shows: there
the true rule is exact to 1e-12 and the mutant is off by more than 1e-6.
"""

import math
from itertools import accumulate
from operator import mul
from typing import get_args

import pytest
import torch

from draftproof.sampling import draw
from draftproof.testing import RandomTable
from draftproof.types import EMPTY_DRAFT, Draft, Drawn, Probs, Verification
from draftproof.verify import (
    argmax_chain,
    block_rule,
    distance_from_target,
    emitted_law,
    excess,
    extended,
    path_chances,
    residual,
    sampled_chain,
    token_probs,
    token_rule,
    total_variation,
    traversal_rule,
    tree_of,
)
from recursion import Recursion

EXACT, CAUGHT = 1e-12, 1e-6
P, Q = RandomTable(3, 1), RandomTable(3, 2)
P_TREE, Q_TREE, TREE = RandomTable(4, 1), RandomTable(4, 11), (-1, -1, 0, 0)


def variant(
    ratio=lambda p_x, q_x: p_x / q_x,
    replacement=lambda p, q, row: residual(p, q, row)[0],
    replacement_row=lambda i: i,
    bonus_row=lambda n: n,
):
    """The token rule with one part replaced."""

    def verify(draft, p, source):
        n = draft.num_nodes
        q = draft.probs if draft.drawn != "fixed" else Probs.one_hot(draft.tokens, p.vocab_size)
        chances = zip(token_probs(p, range(n), draft.tokens), token_probs(q, range(n), draft.tokens))
        for i, (p_x, q_x) in enumerate(chances):
            if not source.bernoulli(ratio(p_x, q_x), "accept"):
                token = draw(replacement(p, q, replacement_row(i)), 0, source, "residual")
                return Verification(tuple(range(i)), token, "residual", n)
        return Verification(tuple(range(n)), draw(p, bonus_row(n), source, "bonus"), "bonus", n)

    return verify


def row_of_p(p, q, row):
    return Probs(p.values[row : row + 1], None if p.ids is None else p.ids[row : row + 1], p.vocab_size)


def absolute_difference(p, q, row):
    return Probs.dense((p.to_dense(row) - q.to_dense(row)).abs()[None])


def shared_uniform(draft, p, source):
    """The uniform that refused the token also picks its replacement (K = 1): given refusal it lies in [p/q, 1).

    That leftover is a finite mixture over the residual's tokens, so a categorical draw expresses it exactly.
    """
    (p_x,), (q_x,) = token_probs(p, [0], draft.tokens), token_probs(draft.probs, [0], draft.tokens)
    if not source.bernoulli(p_x / q_x, "accept"):
        edges = residual(p, draft.probs, 0)[0].values[0].cumsum(0).tolist()
        parts = [max(0.0, min(1.0, high) - max(p_x / q_x, low)) for low, high in zip([0.0, *edges], edges)]
        return Verification((), source.categorical(torch.tensor(parts, dtype=torch.float64), "accept"), "residual", 1)
    return Verification((0,), draw(p, 1, source, "bonus"), "bonus", 1)


def blocks(
    chances=lambda ratios: path_chances(torch.tensor(ratios, dtype=torch.float64)).tolist(),
    last=lambda a, ratios: a,
    test=lambda mass, a: mass / (mass + 1 - a) if mass + 1 - a > 0 else 1.0,
    scale=lambda a: a,
    longest=lambda passed: max(passed, default=0),
):
    """Block verification as published (2403.10444), every position tested, with one part replaced."""

    def verify(draft, p, source):
        n, q = draft.num_nodes, draft.probs
        q = Probs.one_hot(draft.tokens, p.vocab_size) if draft.drawn == "fixed" else q
        ratios = [a / b for a, b in zip(token_probs(p, range(n), draft.tokens), token_probs(q, range(n), draft.tokens))]
        a = [1.0, *chances(ratios)]
        tests = [test(float(excess(p, q, i, scale(a[i])).sum()), a[i]) for i in range(1, n)]
        tests.append(last(a[n], ratios))
        tau = longest([i + 1 for i, chance in enumerate(tests) if source.bernoulli(chance, "accept")])
        if tau == n:
            return Verification(tuple(range(n)), draw(p, n, source, "bonus"), "bonus", n)
        token = draw(residual(p, q, tau, scale(a[tau]))[0], 0, source, "residual")
        return Verification(tuple(range(tau)), token, "residual", n)

    return verify


def cap_only_where_exceeded(ratios):
    """The cap of a step stays 1 unless its joint ratio sets a new maximum, as in another public script."""
    a, joint, highest = [], 1.0, 1.0
    for ratio in ratios:
        joint *= ratio
        cap = joint if joint > highest else 1.0
        highest = max(highest, joint)
        a.append(min(1.0, joint / cap))
    return a


def until_the_first_failure(passed):
    return next((i for i in range(len(passed) + 1) if i + 1 not in passed), 0)


VERIFIERS = {
    "always accept": variant(ratio=lambda p_x, q_x: 1.0),
    "accept with q / p": variant(ratio=lambda p_x, q_x: q_x / p_x),
    "accept with p alone": variant(ratio=lambda p_x, q_x: p_x),
    "typical acceptance by a threshold on p": variant(ratio=lambda p_x, q_x: float(p_x > 0.3)),
    "lenient ratio": variant(ratio=lambda p_x, q_x: p_x / (0.8 * q_x)),
    "residual from p": variant(replacement=row_of_p),
    "residual from |p - q|": variant(replacement=absolute_difference),
    "residual of the next position": variant(replacement_row=lambda i: min(i + 1, 1)),
    "residual of the first position": variant(replacement_row=lambda i: 0),
    "bonus from the row before": variant(bonus_row=lambda n: n - 1),
    "bonus from the first row": variant(bonus_row=lambda n: 0),
}

BLOCKS = {
    "HSD's public code: uncapped joint ratio in the last test": blocks(last=lambda a, ratios: math.prod(ratios)),
    "caps left at 1 below the maximum": blocks(chances=cap_only_where_exceeded),
    "product of capped ratios": blocks(chances=lambda r: list(accumulate((min(1.0, x) for x in r), mul))),
    "uncapped products throughout": blocks(chances=lambda ratios: list(accumulate(ratios, mul))),
    "residual of the token rule in a block": blocks(scale=lambda a: 1.0),
    "test without the 1 - a": blocks(test=lambda mass, a: min(1.0, mass)),
    "test with a alone": blocks(test=lambda mass, a: a),
    "stops at the first failure": blocks(longest=until_the_first_failure),
}


class NoRenormalising(Recursion):
    """Siblings drawn without replacement: removed from q, which is not made a law again."""

    def law(self, node, tokens, j):
        return [0.0 if y in tokens[:j] else value for y, value in enumerate(self.q[node + 1])]


class SortedOrder(Recursion):
    """Tests siblings by falling draft probability, whatever the order they were drawn in."""

    def order(self, node, p):
        return sorted(super().order(node, p), key=lambda child: -self.q[node + 1][self.draft.tokens[child]])


class OrderByTarget(Recursion):
    """Tests siblings by falling target probability."""

    def order(self, node, p):
        return sorted(super().order(node, p), key=lambda child: -p[self.draft.tokens[child]])


class OrderByAge(Recursion):
    """Tests siblings in the reverse of the order they were drawn in."""

    def order(self, node, p):
        return super().order(node, p)[::-1]


class SameTarget(Recursion):
    """Goes on with p after a failure, instead of the residual."""

    def refuse(self, w, p, q):
        return p, super().refuse(w, p, q)[1]


class SameChance(Recursion):
    """Leaves w as it was after a failure."""

    def refuse(self, w, p, q):
        return super().refuse(w, p, q)[0], w


class UnscaledResidual(Recursion):
    """(p - q)+ where (w p - q)+ is owed."""

    def refuse(self, w, p, q):
        return super().refuse(1.0, p, q)[0], super().refuse(w, p, q)[1]


class UnscaledOffer(Recursion):
    """Accepts with min(1, p/q), forgetting w."""

    def accept(self, w, p_x, q_x):
        return min(1.0, p_x / q_x)


class LeafIsSure(Recursion):
    """A visit without children left always succeeds."""

    def visit(self, node, w, p):
        return super().visit(node, 1.0 if w > 0 and not self.draft.children[node + 1] else w, p)


def claiming(drawn):
    """Reads the draft as drawn another way."""

    def verify(draft, p, source):
        paths = [tuple(draft.tokens[j] for j in draft.path(i)) for i in range(-1, draft.num_nodes)]
        q = Probs.stack([Probs.dense(Q_TREE(path)[None]) for path in paths])
        return traversal_rule(Draft(draft.tokens, draft.parents, q, drawn), p, source)

    return verify


TREES = {
    "without replacement, earlier siblings not removed": (claiming("independent"), "without_replacement"),
    "without replacement, q not renormalised": (NoRenormalising(), "without_replacement"),
    "without replacement, q not renormalised, token by token": (NoRenormalising(at_once=True), "without_replacement"),
    "without replacement, tested in sorted order": (SortedOrder(), "without_replacement"),
    "without replacement, tested in sorted order, token by token": (SortedOrder(at_once=True), "without_replacement"),
    "without replacement, siblings in the target's order": (OrderByTarget(), "without_replacement"),
    "independent, siblings in the target's order": (OrderByTarget(), "independent"),
    "without replacement, last drawn tested first": (OrderByAge(), "without_replacement"),
    "softmax stated for deterministic top-k children": (claiming("independent"), "fixed"),
    "softmax without replacement stated for top-k children": (claiming("without_replacement"), "fixed"),
    "hybrid, fixed siblings not left out of q": (claiming("independent"), "hybrid"),
    "hybrid taken for without replacement": (claiming("without_replacement"), "hybrid"),
    "same p after a failure": (SameTarget(), "independent"),
    "same p after a failure of a fixed child": (SameTarget(), "fixed"),
    "same p after a failure, token by token": (SameTarget(at_once=True), "independent"),
    "same w after a failure": (SameChance(), "independent"),
    "residual without w": (UnscaledResidual(), "independent"),
    "offer without w": (UnscaledOffer(), "independent"),
    "leaves always succeed": (LeafIsSure(), "independent"),
}


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


def misreporting(drawn_from, stated):
    """Draws from one law and states another."""

    def propose(prefix, source):
        draft = sampled_chain(drawn_from, 2)(prefix, source)
        rows = [stated(prefix + draft.tokens[:i]) for i in range(2)]
        return Draft.chain(draft.tokens, torch.stack(rows), "independent")

    return propose


def at_temperature(law, temperature):
    return lambda prefix: (law(prefix).log() / temperature).softmax(-1)


def top_2(law):
    def truncated(prefix):
        values, ids = law(prefix).topk(2)
        return torch.zeros_like(law(prefix)).scatter_(0, ids, values / values.sum())

    return truncated


def dropping_unlikely_tokens(prefix, source):
    """Draws a token, finds it improbable, and withholds it: what is kept no longer follows q."""
    draft = sampled_chain(Q, 2)(prefix, source)
    for i, token in enumerate(draft.tokens):
        if draft.probs.prob(i, token) < 0.4:
            kept = Probs.dense(draft.probs.values[:i])
            return Draft.chain(draft.tokens[:i], kept, "independent") if i else EMPTY_DRAFT
    return draft


def stating_softmax_for_an_argmax(prefix, source):
    """Chooses the most likely token and claims to have drawn it."""
    tokens = argmax_chain(Q, 2)(prefix, source).tokens
    return Draft.chain(tokens, torch.stack([Q(prefix + tokens[:i]) for i in range(2)]), "independent")


def claiming_a_point_mass(prefix, source):
    """Draws a token but takes it back when it is unlikely, and declares the rest chosen without randomness."""
    return Draft.chain(dropping_unlikely_tokens(prefix, source).tokens)


def dropping_by_the_product(prefix, source):
    """Withholds the second token where the product of all drawn probabilities, its own among them, is small."""
    draft = sampled_chain(Q, 2)(prefix, source)
    survival = draft.probs.prob(0, draft.tokens[0]) * draft.probs.prob(1, draft.tokens[1])
    keep = 2 if survival > 0.1 else 1
    return Draft.chain(draft.tokens[:keep], Probs.dense(draft.probs.values[:keep]), "independent")


def dropping_by_goodput(prefix, source):
    """Keeps as many drawn tokens as promise most per pass where passes are padded (algorithms 1.5): 1, or all 3."""
    draft = sampled_chain(Q, 3)(prefix, source)
    survival = list(accumulate((draft.probs.prob(i, token) for i, token in enumerate(draft.tokens)), mul))
    keep = max(range(4), key=lambda num: (1 + sum(survival[:num])) / (1.0, 1.0, 1.2, 1.2)[num])
    return Draft.chain(draft.tokens[:keep], Probs.dense(draft.probs.values[:keep]), "independent")


def pruned(prefix, source):
    """Draws two siblings without replacement and withholds the less likely one."""
    draft = tree_of(Q, (-1, -1), "without_replacement")(prefix, source)
    best = max(draft.tokens, key=lambda token: draft.probs.prob(0, token))
    return Draft((best,), (-1,), draft.probs, "without_replacement")


DRAFTERS = {
    "q stated at another temperature": misreporting(at_temperature(Q, 0.7), Q),
    "q stated without the drafter's top-k": misreporting(top_2(Q), Q),
    "q rounded to bfloat16 before it is stated": misreporting(Q, lambda prefix: Q(prefix).bfloat16().double()),
    "q of the wrong context": misreporting(Q, lambda prefix: Q(prefix[:-1] if prefix else (0,))),
    "drawn token dropped for its low probability": dropping_unlikely_tokens,
    "softmax stated for an argmax": stating_softmax_for_an_argmax,
    "drawn token dropped for the product up to it": dropping_by_the_product,
    "drawn tokens dropped where goodput is best": dropping_by_goodput,
    "drawn sibling pruned by its score": pruned,
}


CASES = {
    **{name: (rule, P, sampled_chain(Q, 2), token_rule) for name, rule in VERIFIERS.items()},
    **{name: (rule, P, sampled_chain(Q, 3), block_rule) for name, rule in BLOCKS.items()},
    **{name: (rule, P_TREE, tree_of(Q_TREE, TREE, drawn), traversal_rule) for name, (rule, drawn) in TREES.items()},
    "a uniform shared by acceptance and residual": (
        shared_uniform,
        RandomTable(4, 5),
        sampled_chain(RandomTable(4, 6), 1),
        token_rule,
    ),
}


def shortfall(name):
    """How far the mutant is from the target's law; the sound rule on the sound draft is exact."""
    if name in DRAFTERS:
        return max(distance_from_target(P, DRAFTERS[name], rule) for rule in (token_rule, traversal_rule))
    rule, p, propose, sound = CASES[name]
    assert distance_from_target(p, propose, sound) < EXACT
    return distance_from_target(p, propose, rule)


@pytest.mark.parametrize("name", [*CASES, *DRAFTERS])
def test_a_mutant_is_caught(name):
    assert shortfall(name) > CAUGHT


def test_the_score_is_complete(capsys):
    """Printed, so that a reader of the tests' output sees what the audit is worth."""
    found = {name: shortfall(name) for name in (*CASES, *DRAFTERS)}
    caught = [name for name, distance in found.items() if distance > CAUGHT]
    faintest = min(found, key=lambda name: found[name])
    with capsys.disabled():
        print(f"\nmutants caught by enumeration: {len(caught)} of {len(found)} (faintest: {faintest}, ", end="")
        print(f"total variation {found[faintest]:.1e})")
    assert len(caught) == len(found) >= 48


@pytest.mark.parametrize("rule", [token_rule, block_rule, traversal_rule])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_that_misstates_its_draw_is_caught_by_every_rule(name, rule):
    assert distance_from_target(P, sampled_chain(Q, 2), rule) < EXACT
    assert distance_from_target(P, DRAFTERS[name], rule) > CAUGHT


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
