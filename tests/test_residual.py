"""Residual arithmetic: dense and sparse agree, and nothing divides by zero."""

import pytest
import torch

from draftproof.types import Probs
from draftproof.verify import acceptance_rate, excess, residual, token_probs


def sparse(row, order=None, padding=0):
    """A dense row `[V]` as sparse, ids in any order, with padding entries of value 0."""
    row = torch.tensor(row, dtype=torch.float64)
    ids = row.nonzero()[:, 0] if order is None else torch.tensor(order)
    ids = torch.cat([ids, torch.zeros(padding, dtype=torch.long)])
    values = row[ids].clone()
    values[len(ids) - padding :] = 0
    return Probs(values[None], ids[None], len(row))


def dense(row):
    return Probs.dense(torch.tensor([row], dtype=torch.float64))


def forms(row):
    return [dense(row), sparse(row), sparse(row, padding=3)]


PAIRS = {
    "overlapping": ([0.5, 0.3, 0.2, 0.0], [0.2, 0.2, 0.2, 0.4]),
    "disjoint": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75]),
    "q inside p": ([0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]),
    "p inside q": ([0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_combination_of_dense_and_sparse_gives_the_formula(name):
    p, q = (torch.tensor(row, dtype=torch.float64) for row in PAIRS[name])
    expected = (p - q).clamp(min=0)
    for p_form in forms(PAIRS[name][0]):
        for q_form in forms(PAIRS[name][1]):
            result, mass = residual(p_form, q_form, 0)
            assert torch.allclose(result.to_dense(0), expected / expected.sum(), atol=1e-15)
            assert mass == pytest.approx(float(expected.sum()), abs=1e-15)
            assert float(excess(p_form, q_form, 0).sum()) == pytest.approx(mass, abs=1e-15)
            assert result.values.shape == p_form.values.shape


def test_arguments_are_left_as_they_were():
    for p in forms(PAIRS["overlapping"][0]):
        for q in forms(PAIRS["overlapping"][1]):
            before = p.values.clone(), q.values.clone()
            residual(p, q, 0)
            assert torch.equal(p.values, before[0])
            assert torch.equal(q.values, before[1])


def test_equal_laws_fall_back_to_p():
    row = [0.1, 0.2, 0.7]
    for p in forms(row):
        for q in forms(row):
            assert torch.equal(residual(p, q, 0)[0].to_dense(0), p.to_dense(0))


def test_a_rounded_point_mass_falls_back_to_itself():
    p = Probs(torch.tensor([[0.99999994]]), torch.tensor([[2]]), 4)
    law, mass = residual(p, Probs.one_hot([2], 4), 0)
    assert mass == 0
    assert law.to_dense(0).nonzero().flatten().tolist() == [2]


def test_laws_rounded_to_bfloat16_still_give_a_law():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        p, q = torch.rand(2, 1, 1000, generator=generator).pow(8).softmax(-1).bfloat16().float()
        for pair in ((p, q), (p, p), (p, p * 1.01)):
            law, _ = residual(*map(Probs.dense, pair), 0)
            assert bool((law.values >= 0).all())
            assert torch.isfinite(law.values).all()
            assert float(law.values.sum()) == pytest.approx(float(p.sum()) if pair[1] is not q else 1, abs=1e-5)


def test_scale_weighs_p_before_the_difference():
    p, q = PAIRS["overlapping"]
    for form in forms(p):
        weights = excess(form, dense(q), 0, scale=0.5)
        assert float(weights.sum()) == pytest.approx(0.05)


def test_mixed_precision_keeps_the_precision_of_p():
    p, q = PAIRS["overlapping"]
    for form in forms(q):
        narrow = Probs(form.values.float(), form.ids, form.vocab_size)
        assert residual(dense(p), narrow, 0)[0].values.dtype == torch.float64


def test_excess_of_a_wide_sparse_row_matches_the_dense_one():
    """Above the size where ids are compared pairwise, another branch looks q up."""
    generator = torch.Generator().manual_seed(1)
    p, q = torch.rand(2, 1, 5000, generator=generator, dtype=torch.float64).softmax(-1)
    wide = [
        Probs(x[:, order], order[None], 5000) for x, order in ((p, torch.arange(5000).flip(0)), (q, torch.arange(5000)))
    ]
    assert torch.allclose(residual(*wide, 0)[0].to_dense(0), residual(Probs.dense(p), Probs.dense(q), 0)[0].values[0])


def test_token_probs_reads_dense_and_sparse_alike():
    for law in forms([0.5, 0.3, 0.2, 0.0]):
        assert token_probs(law, [0, 0, 0], [3, 0, 2]) == [0.0, 0.5, 0.2]
        assert token_probs(law, [], []) == []


def test_acceptance_rate_is_one_minus_the_total_variation():
    for p, q in PAIRS.values():
        expected = 1 - sum(abs(a - b) for a, b in zip(p, q)) / 2
        for p_form in forms(p):
            for q_form in forms(q):
                assert float(acceptance_rate(p_form, q_form)) == pytest.approx(expected, abs=1e-15)
