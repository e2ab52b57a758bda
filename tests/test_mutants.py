"""Broken verifiers and drafters, each of which the exact audit must catch.

An audit is credible only if it fails on what is wrong. Every mutant is paired with the example on which it shows: there
the true rule is exact to 1e-12 and the mutant is off by more than 1e-6.
"""

import math

import pytest
import torch

from draftproof.sampling import draw
from draftproof.testing import RandomTable
from draftproof.types import EMPTY_DRAFT, Draft, Probs, Verification
from draftproof.verify import (
    argmax_chain,
    distance_from_target,
    emitted_law,
    excess,
    extended,
    residual,
    sampled_chain,
    token_probs,
    token_rule,
    total_variation,
)

EXACT, CAUGHT = 1e-12, 1e-6
P, Q = RandomTable(3, 1), RandomTable(3, 2)


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


def joint_ratio_last(capped):
    """Block verification (2403.10444). Uncapped: the last test uses the joint ratio, as in HSD's public code."""

    def verify(draft, p, source):
        n, q = draft.num_nodes, draft.probs
        ratios = [a / b for a, b in zip(token_probs(p, range(n), draft.tokens), token_probs(q, range(n), draft.tokens))]
        a = [1.0]
        for ratio in ratios:
            a.append(min(1.0, a[-1] * ratio))
        tests = []
        for i in range(1, n):
            mass = float(excess(p, q, i, a[i]).sum())
            tests.append(mass / (mass + 1 - a[i]) if mass + 1 - a[i] > 0 else 1.0)
        tests.append(a[n] if capped else math.prod(ratios))
        tau = max([i + 1 for i, chance in enumerate(tests) if source.bernoulli(chance, "accept")], default=0)
        if tau == n:
            return Verification(tuple(range(n)), draw(p, n, source, "bonus"), "bonus", n)
        token = source.categorical(excess(p, q, tau, a[tau]), "residual")
        return Verification(tuple(range(tau)), token, "residual", n)

    return verify


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
    "uncapped joint ratio in the last test": joint_ratio_last(capped=False),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_broken_verifier_is_caught(name):
    assert distance_from_target(P, sampled_chain(Q, 2), token_rule) < EXACT
    assert distance_from_target(P, sampled_chain(Q, 2), VERIFIERS[name]) > CAUGHT


def test_the_unchanged_variant_is_the_true_rule():
    """So each mutant above differs from the truth in the one part it names."""
    draft = sampled_chain(Q, 2)
    assert emitted_law(P, draft, variant()) == pytest.approx(emitted_law(P, draft, token_rule), abs=1e-15)


def test_a_uniform_shared_by_acceptance_and_residual_is_caught():
    p, q = RandomTable(4, 5), RandomTable(4, 6)
    assert distance_from_target(p, sampled_chain(q, 1), token_rule) < EXACT
    assert distance_from_target(p, sampled_chain(q, 1), shared_uniform) > CAUGHT


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


DRAFTERS = {
    "q stated at another temperature": misreporting(at_temperature(Q, 0.7), Q),
    "q stated without the drafter's top-k": misreporting(top_2(Q), Q),
    "q rounded to bfloat16 before it is stated": misreporting(Q, lambda prefix: Q(prefix).bfloat16().double()),
    "q of the wrong context": misreporting(Q, lambda prefix: Q(prefix[:-1] if prefix else (0,))),
    "drawn token dropped for its low probability": dropping_unlikely_tokens,
    "softmax stated for an argmax": stating_softmax_for_an_argmax,
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_that_misstates_its_draw_is_caught(name):
    assert distance_from_target(P, sampled_chain(Q, 2), token_rule) < EXACT
    assert distance_from_target(P, argmax_chain(Q, 2), token_rule) < EXACT
    assert distance_from_target(P, DRAFTERS[name], token_rule) > CAUGHT


def test_a_drawn_token_declared_fixed_is_still_exact():
    """A point mass is exact whatever token it names, drawn or not, kept or dropped: only acceptance suffers."""
    assert distance_from_target(P, claiming_a_point_mass, token_rule) < EXACT


def test_the_uncapped_joint_ratio_hides_from_first_tokens_and_is_caught_on_pairs():
    """p = (.6, .4), q = (.3, .7), K = 2: first tokens come out right, pairs are off by 0.09."""
    p, q = (lambda prefix: [0.6, 0.4]), (lambda prefix: [0.3, 0.7])
    mutant = joint_ratio_last(capped=False)
    propose = sampled_chain(q, 2)
    assert distance_from_target(p, propose, token_rule) < EXACT
    assert distance_from_target(p, propose, joint_ratio_last(capped=True)) < EXACT
    assert distance_from_target(p, propose, mutant, length=1) < EXACT
    assert distance_from_target(p, propose, mutant, length=2) == pytest.approx(0.09, abs=1e-12)
    pairs = extended(emitted_law(p, propose, mutant), p, 2)
    stated = {(0, 0): 0.27, (0, 1): 0.33, (1, 0): 0.24, (1, 1): 0.16}
    assert total_variation(pairs, stated) < EXACT
