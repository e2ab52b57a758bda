"""EAGLE and Medusa: checkpoints written by hand draft what a reference without a cache computes, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from scipy.stats import binom

import draftproof as dp
from draftproof import sampling
from draftproof.drafters import catalog
from draftproof.drafters import eagle as eagle_drafter
from draftproof.drafters.context import DraftContext
from draftproof.drafters.medusa import MedusaDrafter
from draftproof.engine import Engine
from draftproof.errors import DraftproofError, ModelError
from draftproof.models.cached_lm import CachedLM
from draftproof.models.lean import LeanForward
from draftproof.models.plugged import PluggedForward
from draftproof.nets.medusa import tree_choices
from draftproof.sampling import SeededSource
from draftproof.types import DraftRequest, SamplingParams, Verification
from engines import ModelTarget, engine, reference
from heads import DRAFT_IDS, V, eagle1, eagle3, eagle_logits, medusa, medusa_logits, save
from tiny import save_tiny, tiny_llama

LAYERS = 7  # EAGLE-3 then reads layers 2, 3 and 4
KINDS = {
    "eagle1": lambda: eagle1(1),
    "eagle1 with fc bias": lambda: eagle1(2, bias=True),
    "eagle1 with 2 layers": lambda: eagle1(3, layers=2),
    "eagle3 original": lambda: eagle3("original", 4),
    "eagle3 original, whole vocabulary": lambda: eagle3("original", 5, reduced=False),
    "eagle3 original, other layers": lambda: eagle3("original", 6, eagle_aux_hidden_state_layer_ids=[1, 6]),
    "eagle3 speculators": lambda: eagle3("speculators", 7, norm_before_residual=False),
    "eagle3 speculators, normed residual": lambda: eagle3("speculators", 8, norm_before_residual=True, embed=True),
    "eagle3 speculators, normed output": lambda: eagle3(
        "speculators", 9, norm_before_residual=True, norm_output=True, norm_before_fc=True
    ),
    "eagle3 speculators, norm per state": lambda: eagle3(
        "speculators", 10, norm_before_residual=True, fc_norm=True, eagle_aux_hidden_state_layer_ids=[5, 0, 3]
    ),
    "eagle3 speculators, qwen3": lambda: eagle3("speculators", 11, qwen3=True, norm_before_residual=False),
    "medusa": lambda: medusa("original", 12),
    "medusa with 2 blocks": lambda: medusa("original", 13, blocks=2),
    "medusa of vllm": lambda: medusa("vllm", 14),
}


def target_model():
    return tiny_llama(9, num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def plain() -> ModelTarget:
    return ModelTarget(target_model())


def build(kind: str, folder, lean: bool = True, num_rows: int = 4, **options):
    """A target, and the drafter of a kind of head that was saved to `folder`; `options` are a `DraftContext`'s."""
    model = target_model()
    forward = LeanForward(model, 256, "dense") if lean else PluggedForward(model, 256)
    target = CachedLM(forward, num_rows)
    name = "medusa_lm_head.safetensors" if kind == "medusa" else "model.safetensors"
    save(folder, KINDS[kind](), name)
    context = DraftContext(vocab_size=V, max_batch=num_rows, draft_weights="dense", target=target, **options)
    return target, catalog.build(f"{kind.split()[0].rstrip('13')}:{folder}", context)


def request(target, tokens, sequence_id=0, num=4, **settings):
    """What the engine asks after the target has read all but the last token."""
    row = target.open(tokens[:-1])
    target.prefill(row, tokens[:-1])
    features = target.features(row).clone()
    target.free(row)
    params = SamplingParams(**{"temperature": 0, **settings})
    return DraftRequest(sequence_id, tuple(tokens), 1, params, SeededSource(3), num, features, taps=target.taps)


def expected_logits(kind, plain, text, guesses) -> torch.Tensor:
    """`[V]`; -inf where the head cannot draft."""
    made = KINDS[kind]()
    if kind.startswith("medusa"):
        return medusa_logits(made, plain.model, text, len(guesses))
    logits = eagle_logits(made, plain.model, text, guesses)
    if len(logits) == V:
        return logits
    return torch.full((V,), -torch.inf).index_copy(0, torch.tensor(DRAFT_IDS), logits)


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_chains_are_the_references(tmp_path, plain, kind, lean):
    """Over several rounds with growing, cut and changed text, so the draft's own cache is rewound and healed."""
    target, drafter = build(kind, tmp_path / "head", lean)
    base = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    for text in (base[:5], base[:6], base[:9], base, [*base[:7], 99, 98, 7], base[:2], [8, 8]):
        draft = drafter.propose([request(target, text, num=3)])[0]
        assert draft.num_nodes == 3 and draft.drawn == "fixed" and draft.is_chain
        for i, token in enumerate(draft.tokens):
            logits = expected_logits(kind, plain, text, list(draft.tokens[:i]))
            top = logits.topk(2).values
            assert top[0] - top[1] > 1e-4, "the reference is undecided here: choose another seed"
            assert token == int(logits.argmax()), f"{text}, guess {i}"


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.8}, {"presence_penalty": 1.0, "logit_bias": {7: 2.0}}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_q_is_the_processed_law_of_the_reference(tmp_path, plain, kind, settings):
    target, drafter = build(kind, tmp_path / "head")
    text = [3, 1, 4, 1, 5, 9, 2]
    draft = drafter.propose([request(target, text, num=3, temperature=0.7, **settings)])[0]
    assert draft.drawn == "independent" and draft.num_nodes == 3
    for i in range(3):
        guesses = list(draft.tokens[:i])
        logits = expected_logits(kind, plain, text, guesses)[None]
        law = sampling.probs(logits, SamplingParams(temperature=0.7, **settings), [*text, *guesses], 1)
        torch.testing.assert_close(draft.probs.to_dense(i), law.to_dense(0), rtol=1e-3, atol=1e-5)
        assert draft.probs.prob(i, draft.tokens[i]) > 0


@pytest.mark.parametrize("kind", ["eagle1", "eagle3 speculators", "medusa"])
def test_requests_drafted_together_are_drafted_as_if_alone(tmp_path, kind):
    target, drafter = build(kind, tmp_path / "head")
    _, alone = build(kind, tmp_path / "again")
    texts = [[1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
    asked = [
        request(target, t, i, n) if len(t) > 1 else DraftRequest(i, t, 1, SamplingParams(), SeededSource(0), n)
        for i, (t, n) in enumerate(zip(texts, [3, 2, 3, 0]))
    ]
    drafts = drafter.propose(asked)
    assert [d.num_nodes for d in drafts] == [0, 2, 3, 0], "nothing where there is no feature or no budget"
    assert [d.tokens for d in drafts] == [alone.propose([r])[0].tokens for r in asked]


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_the_plain_text_in_ragged_batches(tmp_path, plain, kind, lean):
    target, drafter = build(kind, tmp_path / "head", lean)
    params = SamplingParams(temperature=0, max_new_tokens=20)
    prompts = [[1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15, 16]]
    expected = [reference(plain, prompt, params) for prompt in prompts]
    together = engine(target, drafter, max_draft=3, max_batch=4).generate(prompts, params)
    assert [r.token_ids for r in together] == expected
    assert all(r.stats.num_drafted for r in together)
    assert engine(target, drafter, max_draft=3, max_batch=1).generate(prompts[1:2], params)[0].token_ids == expected[1]


class Checking:
    """Passes drafts on, after comparing each with what a fresh drafter makes of the same text and features."""

    name, num = "checking", 0

    def __init__(self, drafter, fresh):
        self.drafter, self.fresh = drafter, fresh

    def propose(self, requests):
        drafts = self.drafter.propose(requests)
        for asked, draft in zip(requests, drafts):
            self.num += 1
            assert asked.features is None or len(asked.features) == len(asked.tokens) - 1
            again = self.fresh.propose([dataclasses.replace(asked, id=self.num)])[0]
            self.fresh.release(self.num)
            self.fresh._read = [[] for _ in self.fresh._read]
            assert (draft.tokens, draft.parents) == (again.tokens, again.parents)
        return drafts

    def release(self, sequence_id):
        self.drafter.release(sequence_id)


@pytest.mark.parametrize("kind", ["eagle1", "eagle3 speculators"])
def test_features_of_the_accepted_path_reach_the_drafter_and_a_kept_row_serves_a_longer_prompt(tmp_path, plain, kind):
    """The engine's features equal those of a plain pass over the whole text, at every round of two chat turns."""
    target, drafter = build(kind, tmp_path / "head")
    _, fresh = build(kind, tmp_path / "again")
    run = engine(target, Checking(drafter, fresh), max_draft=3)
    params = SamplingParams(temperature=0, max_new_tokens=25)
    first = [5, 4, 3, 2]
    answer = run.generate([first], params)[0].token_ids
    second = [*first, *answer, 7, 7, 7]
    assert run.generate([second], params)[0].token_ids == reference(plain, second, params)
    row = target.open(second)
    states = plain.model(torch.tensor([target.held(row)]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[layer][0] for layer in target.taps], -1)
    assert len(target.held(row)) > len(second) and run.drafter.num > 20
    torch.testing.assert_close(target.features(row), expected, rtol=1e-3, atol=1e-3)


def test_taps_of_several_drafters_are_joined_and_cannot_be_set_while_sequences_run(tmp_path, plain):
    target, drafter = build("eagle3 original", tmp_path / "head")
    text = [3, 1, 4, 1, 5]
    before = drafter.propose([request(target, text)])[0].tokens
    folder = save(tmp_path / "medusa", KINDS["medusa"](), "medusa_lm_head.safetensors")
    context = DraftContext(vocab_size=V, target=target, draft_weights="dense")
    row = target.open(text)
    with pytest.raises(ModelError, match="while nothing runs"):
        catalog.build(f"medusa:{folder}", context)
    target.free(row)
    heads = catalog.build(f"medusa:{folder}", context)
    assert target.taps == (2, 3, 4, LAYERS)
    asked = request(target, text, sequence_id=1)
    assert drafter.propose([asked])[0].tokens == before
    assert heads.propose([asked])[0].tokens[0] == int(medusa_logits(KINDS["medusa"](), plain.model, text, 0).argmax())


@pytest.mark.parametrize("kind", ["eagle1", "eagle3 speculators", "medusa"])
def test_a_seeded_text_does_not_depend_on_what_shares_the_batch(tmp_path, kind):
    target, drafter = build(kind, tmp_path / "head")
    run = engine(target, drafter, max_draft=3, max_batch=4)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]]
    params = [SamplingParams(temperature=0.9, seed=i, max_new_tokens=15) for i in range(3)]
    together = run.generate(prompts, params)
    assert [r.token_ids for r in together] == [run.generate([p], s)[0].token_ids for p, s in zip(prompts, params)]


@pytest.mark.parametrize("kind", ["eagle1", "eagle3 original", "medusa"])
def test_sampled_text_follows_the_targets_law(tmp_path, kind):
    """Two tokens of 2,000 texts against the exact law of eight tokens: each count's binomial tail is at least 1e-7,
    which a right engine misses with probability below 2e-7 for each of 72 counts, below 2e-5 in all.
    """
    target, drafter = build(kind, tmp_path / "head", num_rows=32)
    allowed = [0, 5, 7, 10, 13, 16, 19, 22]
    banned = tuple(sorted(set(range(V)) - set(allowed)))
    num, prompt = 2000, [3, 1, 4]
    params = SamplingParams(temperature=3.0, banned_tokens=banned, max_new_tokens=2, n=num, seed=11)
    results = engine(target, drafter, max_draft=2, max_batch=32).generate([prompt], params)
    assert 0.05 < sum(r.stats.num_accepted for r in results) / sum(r.stats.num_drafted for r in results) < 1
    plain = ModelTarget(target_model())
    counts = torch.zeros(V, V)
    for result in results:
        counts[tuple(result.token_ids)] += 1
    first = sampling.probs(plain.next_logits(prompt)[None], params, prompt, 3).to_dense(0)
    joint = torch.stack([sampling.probs(plain.next_logits([*prompt, t])[None], params).to_dense(0) for t in allowed])
    joint = joint * first[allowed][:, None]
    seen = torch.cat([counts.sum(1)[allowed], counts[allowed][:, allowed].flatten()]).numpy()
    law = torch.cat([first[allowed], joint[:, allowed].flatten()]).double().numpy()
    assert counts[allowed][:, allowed].sum() == num, "nothing else ever appears"
    assert (binom.cdf(seen, num, law) > 1e-7).all() and (binom.sf(seen - 1, num, law) > 1e-7).all()


@pytest.mark.parametrize("kind", ["eagle1", "eagle3 original", "medusa"])
def test_heads_for_another_target_are_refused_in_one_line(tmp_path, kind):
    folder = save(tmp_path / "head", KINDS[kind](), "model.safetensors")
    name = kind.split()[0].rstrip("13")
    for overrides, message in (({"hidden_size": 32}, "width 64"), ({"vocab_size": 130}, "vocabulary of 128")):
        model = tiny_llama(1, num_hidden_layers=LAYERS, **overrides)
        target = CachedLM(PluggedForward(model, 256), 1)
        with pytest.raises(DraftproofError, match=message) as raised:
            catalog.build(f"{name}:{folder}", DraftContext(vocab_size=model.config.vocab_size, target=target))
        assert "\n" not in str(raised.value)
    with pytest.raises(DraftproofError, match="reads the target's hidden states"):
        catalog.build(f"{name}:{folder}", DraftContext(vocab_size=V))
    with pytest.raises(DraftproofError, match=f"{name}:FOLDER"):
        catalog.build(name, DraftContext(vocab_size=V))


def test_a_shallow_target_needs_the_layers_named(tmp_path):
    folder = save(tmp_path / "head", eagle3("original"))
    target = CachedLM(PluggedForward(tiny_llama(1, num_hidden_layers=4), 256), 1)
    with pytest.raises(ModelError, match="set eagle_aux_hidden_state_layer_ids"):
        catalog.build(f"eagle:{folder}", DraftContext(vocab_size=V, target=target))


def test_medusa_trees_hold_the_likeliest_paths_first():
    accuracies = [[0.5, 0.2, 0.1], [0.4, 0.3, 0.05], [0.3, 0.1]]
    weights = {}
    for i, a in enumerate(accuracies[0]):
        weights[(i,)] = a
        for j, b in enumerate(accuracies[1]):
            weights[(i, j)] = a * b
            for k, c in enumerate(accuracies[2]):
                weights[(i, j, k)] = a * b * c
    for num in (0, 1, 5, 12, 30):
        best = sorted(weights.values(), reverse=True)[:num]
        choices = tree_choices(accuracies, num)
        assert len(set(choices)) == min(num, len(weights)) and [weights[c] for c in choices] == pytest.approx(best)
        assert all(c[:-1] in choices[:i] or len(c) == 1 for i, c in enumerate(choices))


def test_a_medusa_tree_is_filled_with_each_heads_likeliest_tokens(tmp_path, plain):
    target, chain = build("medusa", tmp_path / "head")
    choices = [(0,), (0, 1), (1,), (1, 0), (0, 1, 2), (2,)]
    drafter = MedusaDrafter(chain.net, LAYERS, V, choices=choices)
    text = [3, 1, 4, 1, 5]
    for temperature in (0, 1):
        draft = drafter.propose([request(target, text, num=5, temperature=temperature)])[0]
        assert draft.parents == (-1, 0, -1, 2, 1) and draft.drawn == "fixed" and draft.probs is None
        for token, choice in zip(draft.tokens, choices):
            logits = medusa_logits(KINDS["medusa"](), plain.model, text, len(choice) - 1)
            assert token == int(logits.topk(3).indices[choice[-1]])
    for wrong in ([(0, 0)], [(0,), (0,)], [()], [(-1,)], [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]):
        with pytest.raises(DraftproofError, match="a Medusa tree"):
            MedusaDrafter(chain.net, LAYERS, V, choices=wrong)


def follow(draft, p, source) -> Verification:
    """The greedy rule for trees, written out: go to the child the target chooses while there is one."""
    path: list[int] = []
    while True:
        token = sampling.draw(p, path[-1] + 1 if path else 0, source, "bonus")
        children = draft.children[path[-1] + 1 if path else 0]
        found = next((node for node in children if draft.tokens[node] == token), None)
        if found is None:
            return Verification(tuple(path), token, "bonus", draft.num_nodes)
        path.append(found)


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
def test_states_of_a_scattered_path_are_gathered_and_a_tree_from_the_config_changes_no_text(tmp_path, plain, lean):
    """Heads that repeat the target's own guess are right now and then; the tree offers several ranks of each."""
    model = target_model()
    target = CachedLM(LeanForward(model, 256, "dense") if lean else PluggedForward(model, 256), 4)
    config, tensors = medusa("original")
    for head in range(3):
        tensors[f"{head}.0.linear.weight"].zero_()
        tensors[f"{head}.0.linear.bias"].zero_()
        tensors[f"{head}.1.weight"] = plain.model.lm_head.weight.data.clone()
    config["medusa_choices"] = [[r] for r in range(20)] + [[r, s] for r in range(12) for s in range(4)]
    folder = save(tmp_path / "head", (config, tensors), "medusa_lm_head.safetensors")
    drafter = catalog.build(f"medusa:{folder}", DraftContext(vocab_size=V, target=target, draft_weights="dense"))
    run = Engine(target, drafter, follow, max_draft=68, max_batch=4)
    params = SamplingParams(temperature=0, max_new_tokens=40)
    prompts = [[1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11]]
    results = run.generate(prompts, params)
    assert [r.token_ids for r in results] == [reference(plain, p, params) for p in prompts]
    assert sum(r.stats.num_accepted for r in results) > 5
    row = target.open([*prompts[1], *results[1].token_ids])
    states = plain.model(torch.tensor([target.held(row)]), output_hidden_states=True).hidden_states[-1][0]
    assert len(states) > 40
    torch.testing.assert_close(target.features(row), states, rtol=1e-3, atol=1e-3)


def test_a_long_prompt_is_read_in_pieces(tmp_path, monkeypatch):
    target, drafter = build("eagle3 speculators", tmp_path / "head")
    _, whole = build("eagle3 speculators", tmp_path / "again")
    asked = request(target, [(7 * i * i + 1) % V for i in range(23)])
    expected = whole.propose([asked])[0].tokens
    monkeypatch.setattr(eagle_drafter, "_CHUNK", 4)
    assert drafter.propose([asked])[0].tokens == expected


def test_an_end_of_text_id_ends_the_chain_and_stays_in_it(tmp_path):
    target, drafter = build("eagle1", tmp_path / "head")
    asked = request(target, [3, 1, 4, 1, 5])
    free = drafter.propose([asked])[0].tokens
    drafter._eos_ids = frozenset([free[1]])
    assert drafter.propose([asked])[0].tokens == free[: free.index(free[1]) + 1]


def test_engines_with_different_heads_share_one_loaded_target(tmp_path):
    """Through `load`, with its defaults: packed bit-exact target, 8-bit heads. Every text is the plain one."""
    target = save_tiny(tmp_path / "target", target_model(), tokenizer=False)
    folders = {
        name: save(tmp_path / name, KINDS[kind](), "model.safetensors")
        for name, kind in (("eagle", "eagle3 speculators"), ("medusa", "medusa of vllm"))
    }
    plain = dp.load(str(target), device="cpu")
    params = SamplingParams(temperature=0, max_new_tokens=20)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9]]
    expected = [r.token_ids for r in plain.generate(prompts, params)]
    for name, folder in folders.items():
        engine = dp.load(plain, f"{name}:{folder}", max_draft=3, adaptive=False)
        results = engine.generate(prompts, params)
        assert [r.token_ids for r in results] == expected and engine.config["drafter"] == f"{name}:{folder}"
        assert all(r.stats.num_drafted for r in results)
    assert [r.token_ids for r in plain.generate(prompts, params)] == expected
