"""Every loss against a slow reference written from its formula, and its gradient against finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from draftproof.training.losses import LOSSES, Law, alpha, divergence, top_law, whole_law

V, N = 11, 6
VOCAB = torch.tensor([0, 2, 3, 5, 7, 8, 10])


def target_logits(seed: int = 0) -> torch.Tensor:
    made = 2.0 * torch.randn(N, V, generator=torch.Generator().manual_seed(seed))
    made[1, 4] = 30.0  # a row whose mass the draft does not know
    made[2, 5] = 40.0  # a row that is one token
    return made


def law(kind: str) -> Law:
    """The teacher's law as a draft of all tokens, of seven, or of seven by their three likeliest, sees it."""
    logits, said = target_logits(), torch.tensor([0, 4, 5, 2, 9, 10])
    found = whole_law(logits, said, None if kind == "all" else VOCAB)
    found = top_law(found, 3) if kind == "listed" else found
    floats = {name: getattr(found, name) for name in ("p", "rest", "p_said")}
    return Law(**{**vars(found), **{k: None if v is None else v.double() for k, v in floats.items()}})


def draft_logits(kind: str, seed: int = 1) -> torch.Tensor:
    size = V if kind == "all" else len(VOCAB)
    return torch.randn(N, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def columns(kind: str, row: int, logits: torch.Tensor) -> tuple[list[float], list[float]]:
    """p and q of one row as plain numbers, by the definitions: the draft's tokens, unlisted ones in one bucket."""
    exact = [math.exp(z) for z in target_logits()[row].tolist()]
    p_all = [value / sum(exact) for value in exact]
    known = list(range(V)) if kind == "all" else VOCAB.tolist()
    own = [math.exp(z) for z in logits[row].tolist()]
    p, q = [p_all[token] for token in known], [value / sum(own) for value in own]
    if kind != "listed":
        return p, q
    listed = sorted(range(len(p)), key=lambda i: -p[i])[:3]
    others = [i for i in range(len(p)) if i not in listed]
    bucket = sum(p[i] for i in others), sum(q[i] for i in others)
    return [*(p[i] for i in listed), bucket[0]], [*(q[i] for i in listed), bucket[1]]


def reference(name: str, p: list[float], q: list[float]) -> float:
    """The formula, one token at a time."""
    mass = sum(p)
    even = [x / mass for x in p]

    def relative(a: list[float], b: list[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b) if x > 0)

    accepted = sum(min(x, y) for x, y in zip(p, q))
    middle = [(x + y) / 2 for x, y in zip(even, q)]
    weight = math.exp(-3 * accepted)
    return {
        "kl": mass * relative(even, q),
        "rkl": sum(y * math.log(y / max(x, 1e-8)) for x, y in zip(even, q)),
        "jsd": (relative(even, middle) + relative(q, middle)) / 2,
        "tv": 1 - accepted,
        "nla": -math.log(max(accepted, 1e-8)),
        "lk": weight * mass * relative(even, q) + (1 - weight) * (1 - accepted),
    }[name]


@pytest.mark.parametrize("kind", ["all", "reduced", "listed"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula(name, kind):
    logits = draft_logits(kind)
    found = divergence(name)(*law(kind).pair(logits))
    expected = [reference(name, *columns(kind, row, logits.detach())) for row in range(N)]
    assert found.tolist() == pytest.approx(expected, rel=2e-5, abs=2e-6)  # the teacher's law is float32


@pytest.mark.parametrize("kind", ["all", "reduced", "listed"])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "lk"])
def test_a_gradient_is_that_of_finite_differences(name, kind):
    given = law(kind)
    assert torch.autograd.gradcheck(lambda z: divergence(name)(*given.pair(z)), draft_logits(kind), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["all", "reduced", "listed"])
def test_the_hybrids_gradient_is_a_mixture_whose_weight_is_a_constant(kind):
    given, logits = law(kind), draft_logits(kind)

    def gradient(name: str, weight: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((divergence(name)(*given.pair(logits)) * weight).sum(), logits)[0]

    weight = (-3 * alpha(*given.pair(logits)).detach()).exp()
    whole = torch.ones(N, dtype=torch.float64)
    torch.testing.assert_close(gradient("lk", whole), gradient("kl", weight) + gradient("tv", 1 - weight))


def test_the_gradient_of_acceptance_is_the_closed_form():
    given, logits = law("reduced"), draft_logits("reduced")
    accepted = alpha(*given.pair(logits))
    found = torch.autograd.grad(accepted.sum(), logits)[0]
    q = logits.detach().softmax(-1)
    below = (q < given.p).double()
    torch.testing.assert_close(found, q * (below - (q * below).sum(-1, keepdim=True)))
    nla = torch.autograd.grad(divergence("nla")(*given.pair(logits)).sum(), logits)[0]
    possible = accepted > 1e-8  # elsewhere it is held at a constant
    torch.testing.assert_close(nla[possible], (-found / accepted[:, None])[possible])


def test_with_one_certain_token_nla_and_kl_are_cross_entropy():
    logits, said = draft_logits("all"), torch.arange(N)
    p = torch.nn.functional.one_hot(said, V).double()
    entropy = torch.nn.functional.cross_entropy(logits, said, reduction="none")
    for name in ("kl", "nla"):
        torch.testing.assert_close(divergence(name)(p, logits.log_softmax(-1)), entropy)


@pytest.mark.parametrize("name", LOSSES)
def test_impossible_tokens_on_either_side_give_finite_losses_and_gradients(name):
    p = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]], dtype=torch.float64)
    logits = torch.tensor([[0.0, 800.0, -800.0]] * 3, dtype=torch.float64, requires_grad=True)
    found = divergence(name)(p, logits.log_softmax(-1))
    found.sum().backward()
    assert bool(found.isfinite().all()) and bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_least_where_the_draft_says_what_the_target_says(name):
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)[None]
    at_best = divergence(name)(p, p.log())
    chance = torch.Generator().manual_seed(0)
    for _ in range(50):
        other = torch.randn(1, 3, generator=chance, dtype=torch.float64).log_softmax(-1)
        assert divergence(name)(p, other) >= at_best - 1e-12
    assert float(at_best) == pytest.approx(0, abs=1e-12)


def test_the_law_names_tokens_by_the_drafts_numbers():
    found = law("reduced")
    assert found.best.tolist()[1:3] == [-1, 3]  # token 4 is unknown, token 5 is the fourth
    assert found.said.tolist() == [0, -1, 3, 1, -1, 6]
    whole = law("all")
    torch.testing.assert_close(found.p, whole.p[:, VOCAB])
    torch.testing.assert_close(found.p_said, whole.p_said)
    listed = law("listed")
    torch.testing.assert_close(listed.p.sum(-1) + listed.rest, found.p.sum(-1))
