"""How much each rule accepts: closed forms, values worked out by hand, and bounds that no rule can pass."""

import itertools
from collections import Counter

import pytest
import torch
from scipy.optimize import linprog

from draftproof.testing import RandomTable
from draftproof.types import Draft
from draftproof.verify import (
    argmax_chain,
    auto_rule,
    block_rule,
    chain_survival,
    emitted_law,
    exact_law,
    expected_tokens,
    extended,
    path_chances,
    sampled_chain,
    target_rows,
    token_rule,
    traversal_rule,
    tree_of,
)

SEEDS = range(4)


def length(target, propose, rule):
    """Expected tokens of one round."""
    return sum(len(text) * probability for text, probability in emitted_law(target, propose, rule).items())


def text_law(law, num_tokens):
    return extended({(): 1.0}, law, num_tokens)


def num_shared(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def transport_bound(target, drafts, num_tokens):
    """The most tokens any rule can give that keeps the target's law: the best coupling of drafts and texts, plus one.

    Args:
        drafts: (probability, its paths as tuples of tokens) of each draft that can be drawn.
    """
    texts = text_law(target, num_tokens)
    gain = [max((num_shared(path, text) for path in paths), default=0) for _, paths in drafts for text in texts]
    size = len(drafts), len(texts)
    index = torch.arange(len(gain)).reshape(size)
    sums = torch.zeros(size[0] + size[1], len(gain))
    for i in range(size[0]):
        sums[i, index[i]] = 1
    for j in range(size[1]):
        sums[size[0] + j, index[:, j]] = 1
    margins = [probability for probability, _ in drafts] + list(texts.values())
    best = linprog([-g for g in gain], A_eq=sums.numpy(), b_eq=margins, method="highs")
    assert best.status == 0
    return 1 - best.fun


def drawn_drafts(propose):
    """(probability, paths) of every draft."""
    found = []

    def run(source):
        draft = propose((), source)
        found.append([tuple(draft.tokens[i] for i in draft.path(node)) for node in range(draft.num_nodes)])
        return len(found)

    return list(zip(exact_law(run).values(), found))


def test_the_values_worked_out_by_hand():
    """p = (1/3, 2/3), q = (2/3, 1/3), K = 2: accepted 10/9 by tokens, 11/9 in blocks, 12/9 the bound."""
    p, q = (lambda _: [1 / 3, 2 / 3]), (lambda _: [2 / 3, 1 / 3])
    propose = sampled_chain(q, 2)
    assert length(p, propose, token_rule) - 1 == pytest.approx(10 / 9, abs=1e-14)
    assert length(p, propose, block_rule) - 1 == pytest.approx(11 / 9, abs=1e-14)
    assert transport_bound(p, drawn_drafts(propose), 2) - 1 == pytest.approx(12 / 9, abs=1e-9)
    r = {0: 1 / 2, 1: 2.0}
    chances = {
        text: path_chances(torch.tensor([r[x] for x in text])).tolist() for text in [(0, 0), (0, 1), (1, 0), (1, 1)]
    }
    assert chances == {
        (0, 0): pytest.approx([1 / 2, 1 / 4]),
        (0, 1): pytest.approx([1 / 2, 1.0]),
        (1, 0): pytest.approx([1.0, 1 / 2]),
        (1, 1): pytest.approx([1.0, 1.0]),
    }
    pairs = extended(emitted_law(p, propose, block_rule), p, 2)
    assert pairs == pytest.approx({(0, 0): 1 / 9, (0, 1): 2 / 9, (1, 0): 2 / 9, (1, 1): 4 / 9}, abs=1e-14)


def reached(target, propose, rule):
    """Probability of each drafted path, and that it was drafted and accepted (and maybe more with it)."""
    drafted, accepted = Counter(), Counter()
    found = []
    chances = exact_law(lambda source: found.append(propose((), source)) or len(found))
    for draft, chance in zip(found, chances.values()):
        p = target_rows(target, (), draft)
        paths = {node: tuple((i, draft.tokens[i]) for i in draft.path(node)) for node in range(draft.num_nodes)}
        for path in paths.values():
            drafted[path] += chance
        for verification, w in exact_law(lambda source, d=draft, p=p: rule(d, p, source)).items():
            for node in verification.path:
                accepted[paths[node]] += chance * w
    return drafted, accepted


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", [block_rule, traversal_rule])
def test_a_path_in_a_chain_is_accepted_with_the_closed_form(seed, rule):
    """P(tau >= i | x^i) = a_i for every drafted prefix, over all that may have been drafted after it."""
    p, q = RandomTable(3, seed, 0.2), RandomTable(3, seed + 100, 0.2)
    drafted, accepted = reached(p, sampled_chain(q, 4), rule)
    assert len(drafted) > 50
    mean = [0.0] * 4
    for path, chance in drafted.items():
        text = tuple(token for _, token in path)
        a = 1.0
        for i, token in enumerate(text):
            a = min(1.0, a * float(p(text[:i])[token] / q(text[:i])[token]))
        assert accepted[path] == pytest.approx(chance * a, abs=1e-13)
        mean[len(text) - 1] += chance * a
    assert mean == pytest.approx(chain_survival(p, q, 4, verifier="block"), abs=1e-13)


@pytest.mark.parametrize("rule", [token_rule, traversal_rule])
@pytest.mark.parametrize("drawn", ["independent", "without_replacement"])
def test_the_contract_of_a_subtree(rule, drawn):
    """The root's children are accepted with min(1, p_j(x)/q_j(x)) after those before them have failed, whatever hangs
    below them: the same for both rules.
    """
    p, q = RandomTable(3, 1), RandomTable(3, 2)
    found = {}

    def run(source):
        draft = tree_of(q, (-1, -1, 0, 1), drawn)((), source)
        verification = rule(draft, target_rows(p, (), draft), source)
        return draft.tokens[:2], verification.path[:1]

    for (tokens, path), chance in exact_law(run).items():
        found.setdefault(tokens, Counter())[path] += chance
    assert len(found) == (9 if drawn == "independent" else 6)
    for tokens, entered in found.items():
        total = sum(entered.values())
        first = min(1.0, float(p(())[tokens[0]] / q(())[tokens[0]]))
        left, q_2 = (p(()) - q(())).clamp(min=0), q(()).clone()
        if drawn == "without_replacement":
            q_2[tokens[0]] = 0
        second = min(1.0, float(left[tokens[1]] / left.sum() / (q_2[tokens[1]] / q_2.sum())))
        assert entered[(0,)] == pytest.approx(first * total, abs=1e-13)
        assert entered[(1,)] == pytest.approx((1 - first) * second * total, abs=1e-13)


@pytest.mark.parametrize(("vocab_size", "num"), [(2, 1), (2, 2), (2, 3), (3, 2), (4, 2), (3, 3)])
def test_token_is_at_most_block_is_at_most_the_transport_bound(vocab_size, num):
    for seed in SEEDS[:2] if vocab_size**num > 16 else SEEDS:
        p, q = RandomTable(vocab_size, seed), RandomTable(vocab_size, seed + 100)
        propose = sampled_chain(q, num)
        token, block = length(p, propose, token_rule), length(p, propose, block_rule)
        assert token == pytest.approx(expected_tokens(chain_survival(p, q, num)), abs=1e-13)
        assert block == pytest.approx(expected_tokens(chain_survival(p, q, num, verifier="block")), abs=1e-13)
        assert token <= block + 1e-13
        assert block <= transport_bound(p, drawn_drafts(propose), num) + 1e-9
        if num == 1:
            assert token == pytest.approx(block, abs=1e-14)
    assert num == 1 or block > token + 1e-3  # the last example of each size gains


@pytest.mark.parametrize("parents", [(-1, -1, 0), (-1, 0, 0), (-1, 0, 0, -1), (-1, 0, 1, 1)], ids=str)
@pytest.mark.parametrize("drawn", ["fixed", "independent", "without_replacement", "hybrid"])
def test_on_trees_token_is_at_most_traversal_is_at_most_the_transport_bound(parents, drawn):
    gains = []
    for seed in SEEDS:
        p, q = RandomTable(2 if len(parents) > 3 else 3, seed), RandomTable(2 if len(parents) > 3 else 3, seed + 100)
        propose = tree_of(q, parents, drawn)
        token, traversal = length(p, propose, token_rule), length(p, propose, traversal_rule)
        bound = transport_bound(p, drawn_drafts(propose), max(Draft((0,) * len(parents), parents).depths))
        assert token <= traversal + 1e-13
        assert traversal <= bound + 1e-9
        gains.append(traversal - token)
        if drawn == "fixed":
            assert token == pytest.approx(traversal, abs=1e-13) == pytest.approx(bound, abs=1e-9)
    if drawn == "independent" and parents[1] == 0:
        assert max(gains) > 1e-3


def cut_bound(p, q, num, drawn):
    """The most any rule accepts at one node: the least over sets B of p(B) + 1 - P(all children in B)."""
    drafts = drawn_drafts(tree_of(lambda _: q, (-1,) * num, drawn))
    best = 1.0
    for size in range(len(p)):
        for chosen in itertools.combinations(range(len(p)), size):
            inside = sum(w for w, paths in drafts if all(path[0] in chosen for path in paths))
            best = min(best, float(p[list(chosen)].sum()) + 1 - inside)
    return best


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("vocab_size", [3, 4, 5])
def test_hybrid_and_fixed_siblings_reach_the_best_any_rule_can(vocab_size, num):
    for seed in range(5):
        p, q = RandomTable(vocab_size, seed)(()), RandomTable(vocab_size, seed + 100)(())
        bounds, accepted = {}, {}
        for drawn in ("fixed", "hybrid", "independent", "without_replacement"):
            bounds[drawn] = cut_bound(p, q, num, drawn)
            accepted[drawn] = length(lambda _, p=p: p, tree_of(lambda _, q=q: q, (-1,) * num, drawn), auto_rule) - 1
            assert accepted[drawn] <= bounds[drawn] + 1e-12
        assert accepted["hybrid"] == pytest.approx(bounds["hybrid"], abs=1e-12)
        assert accepted["fixed"] == pytest.approx(bounds["fixed"], abs=1e-12)
        assert accepted["without_replacement"] >= accepted["independent"] - 1e-12
        if num == vocab_size:
            assert accepted["without_replacement"] == pytest.approx(1, abs=1e-12)


def test_the_closed_form_of_a_hybrid_node():
    """Accepted: p(H) + the sum outside H of min(p, q'), q' the draft's law outside H."""
    p, q = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.5, 0.1, 0.15, 0.25]], dtype=torch.float64)
    got = length(lambda _: p, tree_of(lambda _: q, (-1, -1), "hybrid"), auto_rule) - 1
    assert got == pytest.approx(0.4 + min(0.3, 0.2) + min(0.2, 0.3) + min(0.1, 0.5), abs=1e-14)


def test_blocks_gain_nothing_on_point_masses():
    """All ratios are p(x) <= 1, so a_i is their product: the same law of accepted tokens."""
    p, q = RandomTable(3, 1), RandomTable(3, 2)
    laws = []
    for rule in (token_rule, block_rule, traversal_rule):
        propose = argmax_chain(q, 3)
        laws.append(emitted_law(p, propose, rule))
    assert laws[1] == pytest.approx(laws[0], abs=1e-14)
    assert laws[2] == pytest.approx(laws[0], abs=1e-14)


@pytest.mark.parametrize("rule", [token_rule, block_rule, traversal_rule])
def test_equal_laws_accept_all_and_disjoint_ones_nothing(rule):
    p = RandomTable(3, 1, 0.3)
    assert length(p, sampled_chain(p, 3), rule) == pytest.approx(4, abs=1e-13)
    apart = lambda _: [0.0, 0.0, 1.0]  # noqa: E731
    assert length(lambda _: [0.4, 0.6, 0.0], sampled_chain(apart, 3), rule) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_accepted_does_not_depend_on_how_much_is_drafted(seed):
    p, q = RandomTable(3, seed), RandomTable(3, seed + 100)
    for rule, verifier in ((token_rule, "token"), (block_rule, "block")):
        for num in (1, 2, 3):
            law = emitted_law(p, sampled_chain(q, num), rule)
            survival = [sum(w for text, w in law.items() if len(text) > k) for k in range(1, num + 1)]
            assert survival == pytest.approx(chain_survival(p, q, 3, verifier=verifier)[:num], abs=1e-13)


def test_path_chances_survive_ratios_that_underflow():
    """A walk that falls by 1e-200 twice and comes back is where it was."""
    ratios = torch.tensor([1e-200, 1e-200, 1e200, 1e200, 1e200, 0.5, 0.0, 1e300], dtype=torch.float64)
    expected = [1e-200, 0.0, 1e-200, 1.0, 1.0, 0.5, 0.0, 0.0]
    assert path_chances(ratios).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-300)
    batch = torch.stack([ratios, torch.ones(8, dtype=torch.float64)])
    assert torch.equal(path_chances(batch)[1], torch.ones(8, dtype=torch.float64))
