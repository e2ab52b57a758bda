"""A draft model's trees: exact law, stated laws, what is fed again, text bit for bit, mixed batches (H14's kind)."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from draftproof import SamplingParams, sampling
from draftproof.audit.laws import law_of_texts
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.drafters.growth import Costs, TreeOption, layered
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.engine import Engine
from draftproof.models import shrink
from draftproof.models.cached_lm import CachedLM
from draftproof.models.forwards import make_forward
from draftproof.models.lean import LeanForward
from draftproof.models.masks import Block
from draftproof.models.plugged import PluggedForward
from draftproof.sampling import SeededSource
from draftproof.types import Draft, DraftRequest, Probs, Verification
from draftproof.verify.law import exact_law, total_variation
from engines import ModelTarget, lm, model_drafter, reference
from test_cached_lm import KINDS, made
from test_lean import FAMILY, FORMATS, loaded, randomised
from tiny import tiny_llama


def recursive_rejection(draft, p, source):
    """The obvious rule: at each node try the children in order, each with min(1, p / q) of what is left of both laws
    (2402.14160); a fixed child is its own law. Copies whole laws; float64.
    """
    path, node = [], -1
    while True:
        owed = p.to_dense(node + 1).double()
        children = draft.children[node + 1]
        q = draft.probs.to_dense(node + 1).double().clone() if children and draft.drawn != "fixed" else None
        for child in children:
            token = draft.tokens[child]
            law = torch.nn.functional.one_hot(torch.tensor(token), len(owed)).double() if q is None else q / q.sum()
            assert law[token] > 0
            if source.bernoulli(float(owed[token] / law[token]), "accept"):
                path.append(child)
                node = child
                break
            excess = (owed - law).clamp(min=0)
            owed = excess / excess.sum()
            if q is not None:
                q[token] = 0
        else:
            token = sampling.draw(Probs.dense(owed[None]), 0, source, "residual")
            return Verification(tuple(path), token, "residual", draft.num_nodes)


def engine(target, drafter, **options):
    return Engine(target, drafter, recursive_rejection, None, **options)


def tree_drafter(model, option, vocab_size=128, kept=None, num_rows=8, confidence=0.0, eos=(), costs=None, lean=False):
    forward = make_forward(loaded(model), bitwise=False) if lean else PluggedForward(model, 256)
    tree = TreeOption.parse(option)
    return ModelDrafter(
        CachedLM(forward, num_rows),
        vocab_size,
        vocab_size,
        frozenset(eos),
        kept=kept,
        confidence=confidence,
        tree=tree,
        costs=costs,
    )


def ask(drafter, tokens, max_nodes=6, sequence_id=0, **settings):
    request = DraftRequest(sequence_id, tuple(tokens), 1, SamplingParams(**settings), SeededSource(0), max_nodes)
    return drafter.propose([request])[0]


@pytest.mark.parametrize(
    "case",
    [
        {"option": "2,1", "k": 4},
        {"option": "3,2", "k": 5, "temperature": 0.7},
        {"option": "1,2,1", "k": 4, "eos": (1,)},
        {"option": "2,2", "k": 4, "repetition_penalty": 1.5, "top_k": 3},
        {"option": "4,1", "k": 5, "top_p": 0.95},
        {"option": "dynamic", "k": 3},
        {"option": "optimal", "k": 4, "costs": Costs(((1, 1.0), (8, 1.2)), 0.05)},
        {"option": "3,1", "k": 6, "kept": [0, 3], "presence_penalty": 0.5},
        {"option": "2,1", "k": 4, "kept": [0, 2, 3]},
        {"option": "2,2", "k": 6, "temperature": 0.0},
        {"option": "dynamic:2", "k": 4, "temperature": 0.0},
    ],
    ids=str,
)
def test_the_law_is_exact_with_trees_of_a_real_draft_model(case):
    """Both models are float64 Llamas over four tokens; every draw of drafter and verifier is enumerated, over two or
    three rounds. transformers' norms round to float32, so the passes agree to about 1e-7 and the law to that.
    """
    settings = dict(case)
    option, k, costs = settings.pop("option"), settings.pop("k"), settings.pop("costs", None)
    kept, eos = settings.pop("kept", None), settings.pop("eos", ())
    params = SamplingParams(max_new_tokens=3, **settings)
    big, small = (tiny_llama(seed, vocab_size=4, initializer_range=0.5).double() for seed in (5, 6))
    if kept is not None:
        shrink.keep_outputs(small, kept)
    target = lm(big, 1)
    drafting = lm(small, 1)

    def run(source):
        drafter = ModelDrafter(drafting, 4, 4, frozenset(eos), kept=kept, tree=TreeOption.parse(option), costs=costs)
        run = engine(target, drafter, max_draft=k, eos_ids=eos, make_source=lambda seed, index: source)
        return tuple(run.generate([[0]], params)[0].token_ids)

    plain = ModelTarget(big)
    plain.dtype = torch.float64
    expected = law_of_texts(plain, params, eos)
    assert total_variation(exact_law(run), expected) < 1e-6


@pytest.mark.parametrize("option", ["2,1", "3,1", "1,2"])
def test_one_round_of_a_whole_tree_has_exactly_the_targets_law(option):
    """As above for a single round whose tree is not cut short by the end of the text: first two tokens."""
    big, small = (tiny_llama(seed, vocab_size=3, initializer_range=0.5).double() for seed in (5, 6))
    plain, drafting = ModelTarget(big), lm(small, 1)
    params = SamplingParams(temperature=1.2)
    num = len(layered(TreeOption.parse(option).widths, 100))

    def law(path):
        return sampling.probs(plain.next_logits((0, *path))[None].double(), params)

    laws = {path: law(path) for n in range(4) for path in itertools.product(range(3), repeat=n)}

    def run(source):
        drafter = ModelDrafter(drafting, 3, 3, tree=TreeOption.parse(option))
        draft = drafter.propose([DraftRequest(0, (0,), 1, params, source, num)])[0]
        drafter.release(0)
        assert draft.num_nodes == num and draft.drawn == "without_replacement"
        paths = [tuple(draft.tokens[i] for i in draft.path(n)) for n in range(-1, num)]
        done = recursive_rejection(draft, Probs.stack([laws[path] for path in paths]), source)
        text = [*(draft.tokens[i] for i in done.path), done.next_token]
        while len(text) < 2:
            text.append(sampling.draw(laws[tuple(text)], 0, source, "bonus"))
        return tuple(text[:2])

    expected = {(a, b): laws[()].prob(0, a) * laws[(a,)].prob(0, b) for a, b in itertools.product(range(3), repeat=2)}
    assert total_variation(exact_law(run), expected) < 1e-6


def test_distinct_draws_have_the_law_of_drawing_without_replacement():
    weights = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    dense = Probs.dense(weights[None])
    sparse = Probs(weights[None, [2, 0, 3]], torch.tensor([[2, 0, 3]]), 4)
    for law in (dense, sparse):
        for num in (1, 2, 3, 5):
            got = exact_law(lambda source: tuple(sampling.draw_distinct(law, 0, num, source, "draft")))  # noqa: B023
            expected = {}
            for order in itertools.permutations((0, 2, 3), min(num, 3)):
                left, weight = 1.0, 1.0
                for token in order:
                    weight *= float(weights[token]) / left
                    left -= float(weights[token])
                expected[order] = weight
            assert total_variation(got, expected) < 1e-12
    assert weights.tolist() == [0.5, 0.0, 0.3, 0.2], "the law itself stays"


@pytest.mark.parametrize("option", ["3,2,1", "optimal", "dynamic"])
def test_q_of_every_node_is_the_processed_law_of_a_plain_pass_round_after_round(option):
    """The draft model's row is brought along by what was accepted, path by path: its laws stay those of the text."""
    model = tiny_llama(1)
    plain = ModelTarget(model)
    settings = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4}
    drafter, chance, text = tree_drafter(model, option), random.Random(1), [1, 2, 3, 2]
    for _ in range(6):
        draft = ask(drafter, text, max_nodes=9, **settings)
        assert draft.drawn == "without_replacement" and 6 <= draft.num_nodes <= 9
        for parent in sorted(set(draft.parents)):
            tokens = [*text, *(draft.tokens[i] for i in draft.path(parent))]
            law = sampling.probs(plain.next_logits(tokens)[None], SamplingParams(**settings), tokens, 1)
            torch.testing.assert_close(draft.probs.to_dense(parent + 1), law.to_dense(0), rtol=1e-3, atol=1e-5)
            children = [draft.tokens[i] for i in draft.children[parent + 1]]
            assert len(set(children)) == len(children)
            assert all(draft.probs.prob(parent + 1, token) > 0 for token in children)
        path = draft.path(chance.randrange(draft.num_nodes))[: chance.randrange(5)]
        text += [*(draft.tokens[i] for i in path), chance.randrange(128)]


@pytest.mark.parametrize("lean", [False, True], ids=["transformers", "lean"])
def test_a_greedy_tree_holds_the_most_likely_children_of_each_node(lean):
    model = tiny_llama(1)
    plain = ModelTarget(tiny_llama(1))
    drafter, text = tree_drafter(model, "3,2,1", lean=lean), [1, 2, 3]
    for _ in range(4):
        draft = ask(drafter, text, max_nodes=15, temperature=0)
        assert draft.parents == layered((3, 2, 1), 15) and draft.drawn == "fixed" and draft.probs is None
        for parent in sorted(set(draft.parents)):
            tokens = [*text, *(draft.tokens[i] for i in draft.path(parent))]
            children = [draft.tokens[i] for i in draft.children[parent + 1]]
            assert children == plain.next_logits(tokens).topk(len(children)).indices.tolist()
        text += [*(draft.tokens[i] for i in draft.path(draft.num_nodes - 1)), 7]


def test_a_dynamic_tree_holds_the_most_probable_prefixes():
    """Width 5 at a small budget reaches everything that can be among the best six of this model."""
    plain = ModelTarget(tiny_llama(1))
    draft = ask(tree_drafter(plain.model, "dynamic:6"), [1, 2, 3], max_nodes=6, temperature=0)
    values = {(): 1.0}
    for _ in range(6):
        for path in [p for p in values if (*p, 0) not in values]:
            law = torch.softmax(plain.next_logits([1, 2, 3, *path]), -1)
            values |= {(*path, t): values[path] * float(law[t]) for t in (0, *law.topk(6).indices.tolist())}
        values = dict(sorted(values.items(), key=lambda item: -item[1])[:40])
    best = sorted((p for p in values if p), key=lambda p: -values[p])[:6]
    assert {tuple(draft.tokens[i] for i in draft.path(n)) for n in range(6)} == set(best)


class Counting:
    """A forward that notes how many tokens each pass feeds."""

    def __init__(self, inner):
        self.inner, self.passes = inner, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, blocks, want):
        self.passes.append([len(block.queries) for block in blocks])
        return self.inner(blocks, want)


def test_nothing_is_fed_twice_along_an_accepted_path():
    drafter = tree_drafter(tiny_llama(1), "2,2,2,2")
    counting = drafter.lm.forward = Counting(drafter.lm.forward)
    text = [1, 2, 3]
    draft = ask(drafter, text, max_nodes=30, temperature=0)
    assert counting.passes == [[3], [2], [4], [8]], "the text, then each layer but the last, once"
    counting.passes.clear()
    leaf = draft.path(draft.num_nodes - 3)
    assert len(leaf) == 4
    ask(drafter, [*text, *(draft.tokens[i] for i in leaf), 9], max_nodes=1, temperature=0)
    assert counting.passes == [[2]], "the leaf, which was never fed, and the bonus"
    assert list(drafter.lm.held(0)) == [*text, *(draft.tokens[i] for i in leaf), 9]


def test_trees_end_at_the_draft_models_window_and_at_the_end_of_text():
    model = tiny_llama(1)
    drafter = tree_drafter(model, "1,1,1,1,1,1")
    drafter.lm.max_length = 5
    assert ask(drafter, [1, 2, 3], max_nodes=6, temperature=0).num_nodes == 3, "positions 3 and 4 are fed, not 5"
    assert ask(drafter, [1, 2, 3, 4, 5, 6], max_nodes=6, sequence_id=1, temperature=0).num_nodes == 0
    assert ask(drafter, [1, 2, 3], max_nodes=0, sequence_id=2, temperature=0).num_nodes == 0
    free = ask(tree_drafter(model, "1,1,1,1"), [1, 2, 3], max_nodes=4, temperature=0)
    ended = ask(tree_drafter(model, "1,1,1,1", eos=[free.tokens[1]]), [1, 2, 3], max_nodes=4, temperature=0)
    assert ended.tokens == free.tokens[:2]


def test_a_chain_shaped_tree_drafts_what_the_chain_drafts():
    model = tiny_llama(1)
    for settings in ({"temperature": 0}, {"temperature": 0.9}):
        chain, tree = model_drafter(model), tree_drafter(model, "1,1,1,1,1")
        text = [1, 2, 3]
        for _ in range(3):
            one, other = (ask(d, text, max_nodes=5, **settings) for d in (chain, tree))
            assert one.tokens == other.tokens and other.is_chain
            text += [*one.tokens[:2], 5]


def test_several_requests_are_drafted_together_as_if_alone():
    texts, budgets = [[1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11], [12]], [6, 0, 2, 9]
    temperatures = [0, 0.7, 0.9, 1.0]
    for option in ("dynamic", "2,2,1", "optimal"):
        together, alone = tree_drafter(tiny_llama(1), option), tree_drafter(tiny_llama(1), option)

        def requests(ask_option=option):
            return [
                DraftRequest(i, tuple(t), 1, SamplingParams(temperature=h, top_k=20), SeededSource(i), n)
                for i, (t, n, h) in enumerate(zip(texts, budgets, temperatures))
            ]

        drafts = together.propose(requests())
        assert [d.tokens for d in drafts] == [alone.propose([r])[0].tokens for r in requests()]
        assert drafts[1].num_nodes == 0 and 0 < drafts[0].num_nodes <= 6 and drafts[2].num_nodes == 2


class PerText:
    """Each text its own drafter, by its first token."""

    name = "mixed"

    def __init__(self, drafters):
        self.drafters = drafters

    def propose(self, requests):
        drafts = [self.drafters[r.tokens[0]].propose([r])[0] for r in requests]
        self.kinds = {(d.num_nodes > 0) + (not d.is_chain) for d in drafts}
        return drafts

    def release(self, sequence_id):
        for drafter in self.drafters.values():
            drafter.release(sequence_id)


class Widen:
    """Makes any drafter's chain a tree of wrong guesses around it, the chain last: every kept path is scattered."""

    def __init__(self, inner, wrong=2):
        self.inner, self.wrong, self.name = inner, wrong, "widened"

    def propose(self, requests):
        return [self._widen(draft, r.max_nodes) for draft, r in zip(self.inner.propose(requests), requests)]

    def _widen(self, draft, most):
        tokens, parents, last = [], [], -1
        for token in draft.tokens[: most // (self.wrong + 1)]:
            tokens += [*((token + 1 + i) % 96 for i in range(self.wrong)), token]
            parents += [last] * (self.wrong + 1)
            last = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))

    def release(self, sequence_id):
        self.inner.release(sequence_id)


def mixed_drafters(make_model, firsts):
    """Empty drafts, chains and trees of several kinds."""
    kinds = [
        lambda: NoDrafter(),
        lambda: model_drafter(make_model(), 96),
        lambda: tree_drafter(make_model(), "3,2,1", 96),
        lambda: tree_drafter(make_model(), "dynamic", 96),
        lambda: Widen(model_drafter(make_model(), 96)),
        lambda: NgramDrafter(1, 3),
        lambda: Widen(NgramDrafter(1, 2), 1),
        lambda: tree_drafter(make_model(), "optimal", 96),
    ]
    return PerText({first: kind() for first, kind in zip(firsts, kinds)})


def test_batch_of_eight_with_mixed_drafts_gives_each_row_its_own_text():
    plain = ModelTarget(tiny_llama(0, vocab_size=96))
    prompts = [[i + 1, *random.Random(i).choices(range(96), k=n)] for i, n in enumerate((0, 2, 5, 9, 17, 30, 33, 60))]
    params = SamplingParams(temperature=0, max_new_tokens=32)
    expected = [reference(plain, prompt, params) for prompt in prompts]
    for forward in (PluggedForward(plain.model, 256), LeanForward(tiny_llama(0, vocab_size=96), 256, "packed")):
        # the same model drafts for some (accepted to the end), another for others
        for seed in (0, 1):
            mixed = mixed_drafters(lambda s=seed: tiny_llama(s, vocab_size=96), range(1, 9))
            run = engine(CachedLM(forward, 8), mixed, max_draft=12, max_batch=8)
            seen = set()
            for prompt in prompts:
                run.add(prompt, params)
            texts = {i: [] for i in range(8)}
            while events := run.step():
                seen |= mixed.kinds
                for i, event in events:
                    texts[i] += event.token_ids
            assert list(texts.values()) == expected
            assert seen == {0, 1, 2}, "empty drafts, chains and trees were mixed"


@pytest.mark.parametrize(("dtype", "weights"), FORMATS, ids=lambda v: str(v).removeprefix("torch."))
def test_bit_exact_greedy_text_with_trees_is_the_same_token_for_token(dtype, weights):
    """Near-ties are common in bfloat16 and int8: a single differing bit changes some text sooner or later."""
    model = tiny_llama(0, vocab_size=96).to(dtype)
    target = CachedLM(make_forward(loaded(model), weights=weights, bitwise=True), 8)
    prompts = [[i + 1, *random.Random(i).choices(range(96), k=n)] for i, n in enumerate((0, 1, 5, 9, 17, 30, 33, 60))]
    params = SamplingParams(temperature=0, max_new_tokens=40)
    plain = Engine(target, NoDrafter(), recursive_rejection, None, max_batch=8)
    expected = [plain.generate([p], params)[0].token_ids for p in prompts]
    for seed in (0, 1):
        mixed = mixed_drafters(lambda s=seed: tiny_llama(s, vocab_size=96).to(dtype), range(1, 9))
        run = engine(target, mixed, max_draft=12, max_batch=8)
        assert [r.token_ids for r in run.generate(prompts, params)] == expected
        results = [run.generate([p], params)[0] for p in prompts]
        assert [r.token_ids for r in results] == expected
        if seed == 0:
            assert sum(r.stats.num_accepted for r in results) > 100, "paths were kept"


@pytest.mark.parametrize(("dtype", "weights"), FORMATS, ids=lambda v: str(v).removeprefix("torch."))
@pytest.mark.parametrize("length", [3, 505, 700])
def test_every_node_of_a_random_tree_has_the_bits_of_its_path_fed_alone(dtype, weights, length):
    """Also across the kernel's block of 512 keys; branches in random order, so paths are scattered."""
    model = randomised(FAMILY["qwen3"], dtype)
    cached = CachedLM(LeanForward(model, 1024, weights, bitwise=True), 2)
    chance = random.Random(length)
    text = chance.choices(range(128), k=length)
    rows = [cached.open(()), cached.open(())]
    for size in (6, 20):
        parents = tuple(chance.randrange(-1, i) for i in range(size))
        draft = Draft(tuple(chance.choices(range(128), k=size)), parents)
        cached.prefill(rows[0], text[:-1])
        tree = cached.score(rows[:1], text[-1:], [draft])[0].logits
        for node in range(-1, size):
            cached.prefill(rows[1], text[:-1])
            for token in (text[-1], *(draft.tokens[i] for i in draft.path(node))):
                alone = cached.extend(rows[1:], [[token]])[0]
            assert torch.equal(tree[node + 1], alone)
        path = draft.path(size - 1)
        cached.keep(rows[0], length, path)
        assert torch.equal(*cached.extend(rows, [[9], [9]])), "and so has what follows the kept path"
        assert cached.held(rows[0]) == cached.held(rows[1])
        cached.rewind(rows[0], text[:-1])


def apart(one, other):
    """Relative difference: root mean square over the vocabulary."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_node_logits_equal_their_path_alone_in_ragged_batches(kind):
    """Eight rows: empty drafts, chains and trees; every kind of attention, windows too; float32."""
    model = made(kind)
    plain, chance = ModelTarget(model), random.Random(8)
    forwards = [PluggedForward(model, 64)]
    if kind in ("llama", "qwen2", "qwen3"):
        forwards.append(LeanForward(made(kind), 64, "dense"))
    texts = [chance.choices(range(128), k=n) for n in (1, 4, 9, 9, 20, 31, 12, 2)]
    drafts = []
    for size, chain in ((0, True), (5, True), (7, False), (1, True), (12, False), (9, False), (0, True), (6, True)):
        parents = range(-1, size - 1) if chain else (chance.randrange(-1, i) for i in range(size))
        drafts.append(Draft(tuple(chance.choices(range(128), k=size)), tuple(parents)))
    for forward in forwards:
        cached = CachedLM(forward, 8)
        rows = [cached.open(()) for _ in texts]
        for row, text in zip(rows, texts):
            cached.prefill(row, text[:-1])
        outputs = cached.score(rows, [text[-1] for text in texts], drafts)
        for row, text, draft, output in zip(rows, texts, drafts, outputs):
            for node in range(-1, draft.num_nodes):
                path = [draft.tokens[i] for i in draft.path(node)]
                expected = plain.next_logits([*text, *path])
                assert apart(output.logits[node + 1], expected) < 1e-5
            cached.keep(row, len(text), draft.path(draft.num_nodes - 1))
        after = cached.extend(rows, [[3]] * 8)
        for text, draft, logits in zip(texts, drafts, after):
            path = [draft.tokens[i] for i in draft.path(draft.num_nodes - 1)]
            expected = plain.next_logits([*text, *path, 3])
            assert apart(logits, expected) < 1e-5


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral sliding", "gemma3 sliding"])
def test_a_tree_grown_layer_by_layer_sees_what_the_whole_tree_sees(kind):
    """`branch` over two ragged rows, then `settle` of a scattered path."""
    model = made(kind)
    plain, chance = ModelTarget(model), random.Random(3)
    forwards = [PluggedForward(model, 64)]
    if "sliding" not in kind:
        forwards.append(LeanForward(made(kind), 64, "packed"))
    texts = [chance.choices(range(128), k=n) for n in (3, 14)]
    trees = [[(t, parent) for t, parent in zip(chance.choices(range(128), k=8), above)] for above in
             ((-1, -1, 1, 0, 2, 1, 3, 6), (-1, 0, 0, 2, 1, 1, 5, 4))]  # fmt: skip
    for forward in forwards:
        cached = CachedLM(forward, 2)
        rows = [cached.open(()) for _ in texts]
        cached.extend(rows, texts)
        done = [0, 0]
        for ends in ((2, 1), (4, 4), (7, 5), (8, 8)):
            tokens = [[t for t, _ in tree[:end]] for tree, end in zip(trees, ends)]
            parents = [[p for _, p in tree[:end]] for tree, end in zip(trees, ends)]
            outputs = cached.branch(rows, tokens, parents, done)
            for text, nodes, above, first, logits in zip(texts, tokens, parents, done, outputs):
                draft = Draft(tuple(nodes), tuple(above))
                assert len(logits) == len(nodes) - first
                for node in range(first, len(nodes)):
                    path = [nodes[i] for i in draft.path(node)]
                    expected = plain.next_logits([*text, *path])
                    torch.testing.assert_close(logits[node - first], expected, rtol=1e-4, atol=1e-4)
            done = list(ends)
        for row, text, tree in zip(rows, texts, trees):
            draft = Draft(*(tuple(part) for part in zip(*tree)))
            path = draft.path(7)
            cached.settle(row, path, [draft.tokens[i] for i in path])
            assert list(cached.held(row)) == [*text, *(draft.tokens[i] for i in path)]
            expected = plain.next_logits([*cached.held(row), 5])
            torch.testing.assert_close(cached.extend([row], [[5]])[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_runs_walk_the_tree_depth_first_with_the_path_in_place(seed):
    chance = random.Random(seed)
    block = Block(0, 0, [0] * 12, [chance.randrange(-1, i) for i in range(12)])
    at, seen = {}, []
    for depth, run in block.runs():
        for i, token in enumerate(run):
            at[depth + i] = token
            seen.append(token)
            path, node = [], token
            while node >= 0:
                path.append(node)
                node = block.parents[node]
            assert [at[d] for d in range(depth + i + 1)] == path[::-1]
    assert sorted(seen) == list(range(12))
    assert Block(0, 5, [1, 2, 3]).runs() == [(0, [0, 1, 2])]
