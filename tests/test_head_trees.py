"""Trees of EAGLE and Medusa heads: a slow reference's children and laws, exact text, paths kept, mixed batches."""

from __future__ import annotations

import random

import pytest
import torch
from scipy.stats import binom

import draftproof as dp
import test_self_drafted
from draftproof import sampling
from draftproof.drafters import catalog
from draftproof.drafters.cascade import CascadeDrafter
from draftproof.drafters.context import DraftContext
from draftproof.drafters.growth import layered
from draftproof.drafters.none import NoDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.models.cached_lm import CachedLM
from draftproof.models.lean import LeanForward
from draftproof.models.plugged import PluggedForward
from draftproof.sampling import SeededSource
from draftproof.types import DraftRequest, SamplingParams
from draftproof.verify.law import exact_law, total_variation
from engines import ModelTarget, engine, reference
from heads import V, medusa, save
from test_draft_trees import PerText
from test_heads import KINDS, Checking, build, expected_logits, request, target_model
from tiny import save_tiny

EAGLES = ["eagle1", "eagle1 with 2 layers", "eagle3 original", "eagle3 speculators, normed output"]
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15, 16]]


@pytest.fixture(scope="module")
def plain() -> ModelTarget:
    return ModelTarget(target_model())


def path_tokens(draft, node):
    return [draft.tokens[i] for i in draft.path(node)]


@pytest.mark.parametrize("kind", EAGLES)
def test_a_greedy_trees_children_are_the_references_most_likely(tmp_path, plain, kind):
    """Over rounds with growing, cut and changed text: what was guessed before never shows."""
    target, drafter = build(kind, tmp_path / "head", draft_tree="3,2,1")
    base = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    for text in (base[:5], base[:6], base, [*base[:7], 99, 98], base[:2], [8, 8]):
        draft = drafter.propose([request(target, text, num=15)])[0]
        assert draft.parents == layered((3, 2, 1), 15) and draft.drawn == "fixed" and draft.probs is None
        for parent in sorted(set(draft.parents)):
            children = [draft.tokens[i] for i in draft.children[parent + 1]]
            best = expected_logits(kind, plain, text, path_tokens(draft, parent)).topk(len(children) + 1)
            for child, token, gap in zip(children, best.indices.tolist(), -best.values.diff()):
                assert child == token or gap < 1e-4, f"{text}, below node {parent}"


@pytest.mark.parametrize("kind", ["eagle1", "eagle3 original"])
def test_a_dynamic_tree_holds_the_references_most_probable_paths(tmp_path, plain, kind):
    """Width 5 reaches everything that can be among the best five."""
    target, drafter = build(kind, tmp_path / "head", draft_tree="dynamic:5")
    text, num = [3, 1, 4, 1, 5], 5
    values, waiting = {(): 1.0}, [()]
    while waiting:
        path = waiting.pop()
        law = torch.softmax(expected_logits(kind, plain, text, list(path)), -1).topk(num)
        found = {(*path, t): values[path] * p for t, p in zip(law.indices.tolist(), law.values.tolist())}
        values |= found
        least = sorted(values.values(), reverse=True)[num]
        waiting = [p for p in (*waiting, *found) if values[p] > least]
    best = sorted(values, key=lambda p: -values[p])[: num + 2]
    assert values[best[num]] - values[best[num + 1]] > 1e-5, "the reference is undecided: choose another seed"
    draft = drafter.propose([request(target, text, num=num)])[0]
    assert draft.drawn == "fixed" and {tuple(path_tokens(draft, n)) for n in range(num)} == set(best[1 : num + 1])


@pytest.mark.parametrize("option", ["3,2", "optimal", "dynamic"])
@pytest.mark.parametrize("kind", EAGLES)
def test_q_of_every_node_is_the_processed_law_of_the_reference(tmp_path, plain, kind, option):
    settings = {"temperature": 5.0, "top_p": 0.9, "presence_penalty": 1.0, "logit_bias": {7: 2.0}}
    target, drafter = build(kind, tmp_path / "head", draft_tree=option)
    chance, text = random.Random(1), [3, 1, 4, 1, 5, 9, 2]
    for _ in range(2):
        draft = drafter.propose([request(target, text, num=9, **settings)])[0]
        assert draft.drawn == "without_replacement" and draft.num_nodes == 9 and not draft.is_chain
        for parent in sorted(set(draft.parents)):
            path = path_tokens(draft, parent)
            logits = expected_logits(kind, plain, text, path)[None]
            law = sampling.probs(logits, SamplingParams(**settings), [*text, *path], 1)
            torch.testing.assert_close(draft.probs.to_dense(parent + 1), law.to_dense(0), rtol=1e-3, atol=1e-5)
            children = [draft.tokens[i] for i in draft.children[parent + 1]]
            assert len(set(children)) == len(children)
            assert all(draft.probs.prob(parent + 1, token) > 0 for token in children)
        text = [*text, *path_tokens(draft, chance.randrange(9)), 11]


@pytest.mark.parametrize("option", ["1,1,1", "2,2,1", "dynamic", "optimal"])
def test_trees_drafted_together_are_drafted_as_if_alone(tmp_path, option):
    target, drafter = build("eagle3 original", tmp_path / "head", draft_tree=option)
    _, alone = build("eagle3 original", tmp_path / "again", draft_tree=option)
    texts, budgets, temperatures = (
        [[2, 3, 4, 5, 6, 7, 8, 9], [10, 11], [12, 13, 14], [15, 16]],
        [7, 3, 0, 5],
        [0, 1, 0, 0],
    )
    asked = [request(target, t, i, n, temperature=h) for i, (t, n, h) in enumerate(zip(texts, budgets, temperatures))]
    again = [request(target, t, i, n, temperature=h) for i, (t, n, h) in enumerate(zip(texts, budgets, temperatures))]
    drafts = [*drafter.propose([*asked, DraftRequest(9, (1,), 1, SamplingParams(), SeededSource(0), 4)])]
    assert drafts[2].num_nodes == drafts[4].num_nodes == 0, "nothing where there is no budget or no feature"
    assert all(drafts[i].num_nodes for i in (0, 1, 3))
    singly = [alone.propose([r])[0] for r in again]
    assert [(d.tokens, d.parents) for d in drafts[:4]] == [(d.tokens, d.parents) for d in singly]


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_chain_shaped_tree_is_the_chain(tmp_path, temperature):
    target, chain = build("eagle3 speculators", tmp_path / "head")
    _, tree = build("eagle3 speculators", tmp_path / "again", draft_tree="1,1,1")
    for text in ([1, 2, 3], [1, 2, 3, 4, 5]):
        one, other = (
            d.propose([request(target, text, num=3, temperature=temperature, top_p=0.9)])[0] for d in (chain, tree)
        )
        assert one.tokens == other.tokens and other.is_chain and other.num_nodes == 3


def test_trees_end_at_the_length_limit_and_below_an_end_of_text(tmp_path):
    target, drafter = build("eagle1", tmp_path / "head", draft_tree="2,1,1", draft_max_length=5)
    assert [d.num_nodes for d in drafter.propose([request(target, [3, 1, 4, 1, 5], 0, 6)])] == [2]
    assert [d.num_nodes for d in drafter.propose([request(target, [3, 1, 4, 1], 1, 6)])] == [4]
    assert [d.num_nodes for d in drafter.propose([request(target, [3, 1, 4, 1, 5, 9], 2, 6)])] == [0]
    _, free = build("eagle1", tmp_path / "free", draft_tree="2,1,1")
    whole = free.propose([request(target, [3, 1, 4], 0, 6)])[0]
    _, ending = build("eagle1", tmp_path / "ending", draft_tree="2,1,1", eos_ids=frozenset(whole.tokens[:1]))
    draft = ending.propose([request(target, [3, 1, 4], 0, 6)])[0]
    assert draft.tokens[:2] == whole.tokens[:2] and 0 not in draft.parents and 1 in draft.parents


@pytest.mark.parametrize(("kind", "threshold"), [("eagle1", 0.5), ("eagle3 original", 0.02)])
def test_a_greedy_chain_ends_where_the_head_is_unsure(tmp_path, plain, kind, threshold):
    """After the first token at which the product of the head's own probabilities is below the threshold."""
    lengths = set()
    target, free = build(kind, tmp_path / "free")
    _, drafter = build(kind, tmp_path / "head", draft_confidence=threshold)
    for number, text in enumerate(([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9], [7, 9, 3, 2], [40, 41, 42, 43])):
        tokens = free.propose([request(target, text, number, num=4)])[0].tokens
        share, length = 1.0, 0
        while length < 4 and share >= threshold:
            law = torch.softmax(expected_logits(kind, plain, text, list(tokens[:length])), -1)
            share, length = share * float(law.max()), length + 1
            assert abs(share - threshold) > 1e-4 * threshold, "the reference is undecided here: choose another text"
        assert drafter.propose([request(target, text, number, num=4)])[0].tokens == tokens[:length]
        asked = request(target, text, number, num=4, temperature=1)
        assert drafter.propose([asked])[0].num_nodes == 4, "drawn chains are whole"
        lengths.add(length)
        free.release(number)
        drafter.release(number)
    assert len(lengths) > 1


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
@pytest.mark.parametrize("option", ["4,2,1", "dynamic", "optimal"])
@pytest.mark.parametrize("kind", ["eagle1", "eagle3 original"])
def test_greedy_text_with_trees_is_the_plain_text_in_ragged_batches(tmp_path, plain, kind, option, lean):
    target, drafter = build(kind, tmp_path / "head", lean, draft_tree=option)
    params = SamplingParams(temperature=0, max_new_tokens=20)
    results = engine(target, drafter, max_draft=12, max_batch=3).generate(PROMPTS, params)
    assert [r.token_ids for r in results] == [reference(plain, prompt, params) for prompt in PROMPTS]
    assert all(r.stats.num_drafted for r in results)


@pytest.mark.parametrize("make", [test_self_drafted.eagle1_of, test_self_drafted.eagle3_of])
def test_features_and_trees_after_accepted_paths_are_those_of_the_text_alone(tmp_path, make):
    """Heads that are often right: every tree of two chat turns is a fresh drafter's, kept features a plain pass's."""
    model = test_self_drafted.target_model()
    target = CachedLM(LeanForward(test_self_drafted.target_model(), 256, "dense"), 3)
    folder = save(tmp_path / "head", make(model))
    context = DraftContext(vocab_size=V, max_batch=3, draft_weights="dense", draft_tree="3,2,1", target=target)
    drafter, fresh = (catalog.build(f"eagle:{folder}", context) for _ in range(2))
    run = engine(target, Checking(drafter, fresh), max_draft=15)
    params = SamplingParams(temperature=0, max_new_tokens=25, banned_tokens=(0,))
    first = [0, 5, 9, 7]
    results = run.generate([first], params)
    second = [*first, *results[0].token_ids, 7, 7, 7]
    results += run.generate([second], params)
    plain = ModelTarget(model)
    assert [r.token_ids for r in results] == [reference(plain, text, params) for text in (first, second)]
    assert sum(r.stats.num_accepted for r in results) > 20 and results[0].stats.acceptance_length > 1.5
    row = target.open(second)
    states = model(torch.tensor([target.held(row)]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[layer][0] for layer in target.taps], -1)
    assert len(target.held(row)) > len(second)
    torch.testing.assert_close(target.features(row), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["eagle1", "eagle3 original"])
def test_the_law_is_exact_with_trees_of_a_head(tmp_path, kind):
    """Every draw of drafter and verifier over three tokens, in double precision (norms and angles in single)."""
    allowed = (0, 7, 13)  # the reduced vocabulary has them
    banned = tuple(sorted(set(range(V)) - set(allowed)))
    params = SamplingParams(temperature=3.0, banned_tokens=banned, max_new_tokens=3)
    model = target_model().double()
    target = CachedLM(PluggedForward(model, 256), 1)
    folder = save(tmp_path / "head", KINDS[kind]())
    context = DraftContext(vocab_size=V, max_batch=1, draft_weights="dense", draft_tree="2", target=target)
    drafter = catalog.build(f"eagle:{folder}", context)
    sizes = set()

    class Watched:
        name = "watched"

        def propose(self, requests):
            drafts = drafter.propose(requests)
            sizes.update(draft.num_nodes for draft in drafts)
            return drafts

        release = staticmethod(drafter.release)

    def run(source):
        target.forget()
        drafter._read = [[]]  # what is read anew has the same bits every time
        made = engine(target, Watched(), max_draft=4, make_source=lambda seed, index: source)
        return tuple(made.generate([[3, 1, 4]], params)[0].token_ids)

    plain = ModelTarget(model)
    plain.dtype = torch.float64

    def law(text):
        return sampling.probs(plain.next_logits([3, 1, 4, *text])[None], params)

    expected = {(): 1.0}
    for _ in range(3):
        laws = {text: law(text) for text in expected}
        expected = {(*text, t): p * laws[text].prob(0, t) for text, p in expected.items() for t in allowed}
    assert total_variation(exact_law(run), expected) < 1e-9 and 2 in sizes


def guessing_medusa(model, choices):
    """Heads that repeat the target's own guess, so that they are right now and then."""
    config, tensors = medusa("original")
    for head in range(3):
        tensors[f"{head}.0.linear.weight"].zero_()
        tensors[f"{head}.0.linear.bias"].zero_()
        tensors[f"{head}.1.weight"] = model.lm_head.weight.data.clone()
    return {**config, "medusa_choices": choices}, tensors


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_loaded_heads_draft_trees_and_change_no_text(tmp_path, name):
    """Through `load` with its defaults; a seeded text does not depend on what shares the batch."""
    if name == "eagle":
        model = test_self_drafted.target_model()
        made = test_self_drafted.eagle1_of(model)
    else:
        model = target_model()
        made = guessing_medusa(model, [[r] for r in range(20)] + [[r, s] for r in range(12) for s in range(4)])
    plain = dp.load(str(save_tiny(tmp_path / "target", model, tokenizer=False)), device="cpu")
    folder = save(tmp_path / name, made, "medusa_lm_head.safetensors" if name == "medusa" else "model.safetensors")
    prompts = [[0, *prompt] for prompt in PROMPTS]
    greedy = SamplingParams(temperature=0, max_new_tokens=40, banned_tokens=(0,))
    expected = [r.token_ids for r in plain.generate(prompts, greedy)]
    run = dp.load(plain, f"{name}:{folder}", max_draft=68, draft_tree="16,4,1", draft_confidence=0, adaptive=False)
    results = run.generate(prompts, greedy)
    assert [r.token_ids for r in results] == expected
    assert sum(r.stats.num_accepted for r in results) > 5
    assert max(r.stats.num_drafted / r.stats.num_rounds for r in results) > 15, "far more than a chain"
    params = [SamplingParams(temperature=0.9, seed=i, max_new_tokens=12, banned_tokens=(0,)) for i in range(4)]
    together = run.generate(prompts, params)
    assert [r.token_ids for r in together] == [run.generate([p], s)[0].token_ids for p, s in zip(prompts, params)]
    assert sum(r.stats.num_drafted for r in together) > 100


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_sampled_text_with_trees_follows_the_targets_law(tmp_path, name):
    """Two tokens of 2,000 texts, the first from a tree of three nodes, against the exact law of eight tokens: each
    count's binomial tail is at least 1e-7, which a right engine misses with probability below 2e-7 for each of 64.
    """
    allowed = [0, 5, 7, 10, 13, 16, 19, 22]
    model = target_model()
    banned, num, prompt = tuple(sorted(set(range(V)) - set(allowed))), 2000, [3, 1, 4]
    made = KINDS["eagle3 original"]()
    if name == "medusa":
        made = guessing_medusa(model, [[0], [1], [2], [0, 0], [1, 0]])
        for head in range(3):
            made[1][f"{head}.1.weight"][list(banned)] = 0  # or hardly any guess would be allowed
    folder = save(tmp_path / name, made, "medusa_lm_head.safetensors" if name == "medusa" else "model.safetensors")
    target = CachedLM(LeanForward(target_model(), 256, "dense"), 32)
    context = DraftContext(vocab_size=V, max_batch=32, draft_weights="dense", draft_tree="3", target=target)
    drafter = catalog.build(f"{name}:{folder}", context)
    params = SamplingParams(temperature=3.0, banned_tokens=banned, max_new_tokens=4, n=num, seed=11)
    results = engine(target, drafter, max_draft=8, max_batch=32).generate([prompt], params)
    assert sum(r.stats.num_accepted for r in results) > 20
    plain = ModelTarget(model)

    def law(text):
        return sampling.probs(plain.next_logits([*prompt, *text])[None], params).to_dense(0)[allowed].double()

    joint = torch.stack([law([token]) for token in allowed]) * law([])[:, None]
    counts = torch.zeros(V, V)
    for result in results:
        counts[tuple(result.token_ids[:2])] += 1
    seen = counts[allowed][:, allowed].flatten().numpy()
    chance = joint.flatten().numpy()
    assert seen.sum() == num and (binom.cdf(seen, num, chance) > 1e-7).all()
    assert (binom.sf(seen - 1, num, chance) > 1e-7).all()


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
def test_batch_of_eight_with_mixed_drafts_gives_each_row_its_own_text(tmp_path, plain, lean):
    """Empty drafts, chains and trees from heads, suffixes and cascades share every pass."""
    model = target_model()
    target = CachedLM(LeanForward(target_model(), 256, "packed") if lean else PluggedForward(model, 256), 8)
    eagle = save(tmp_path / "eagle", KINDS["eagle3 original"]())
    heads = save(tmp_path / "medusa", guessing_medusa(model, [[0], [1], [0, 0], [1, 0]]), "medusa_lm_head.safetensors")

    def head(name, option=None):
        context = DraftContext(vocab_size=V, max_batch=8, draft_weights="dense", draft_tree=option, target=target)
        return catalog.build(name, context)

    drafters = [
        NoDrafter(),
        head(f"eagle:{eagle}"),
        head(f"eagle:{eagle}", "3,2,1"),
        head(f"eagle:{eagle}", "dynamic"),
        head(f"medusa:{heads}"),
        SuffixDrafter(8, floor=0.02),
        CascadeDrafter([SuffixDrafter(), head(f"eagle:{eagle}", "optimal")]),
        CascadeDrafter([SuffixDrafter(8, floor=0.02), head(f"medusa:{heads}")]),
    ]
    prompts = [[i + 1, *random.Random(i).choices(range(V), k=n)] for i, n in enumerate((0, 2, 5, 9, 17, 30, 33, 60))]
    prompts[5:] = [[p[0], *p[1:9] * 3] for p in prompts[5:]]
    params = SamplingParams(temperature=0, max_new_tokens=24)
    mixed = PerText(dict(enumerate(drafters, 1)))
    run = engine(target, mixed, max_draft=12, max_batch=8)
    for prompt in prompts:
        run.add(prompt, params)
    texts, seen, together = {i: [] for i in range(8)}, set(), 0
    while events := run.step():
        seen |= mixed.kinds
        together += mixed.kinds == {0, 1, 2}
        for i, event in events:
            texts[i] += event.token_ids
    assert list(texts.values()) == [reference(plain, prompt, params) for prompt in prompts]
    assert together > 5, "empty drafts, chains and trees were mixed"
