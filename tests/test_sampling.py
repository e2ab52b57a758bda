"""The one definition of the distribution: equal to transformers' own processors, exact at every node of a tree."""

import math
import random
from collections import Counter

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof import sampling
from draftproof.errors import ModelError, OptionError
from draftproof.kernels import library, nucleus
from draftproof.sampling import SeededSource, draw, logprobs, penalise, probs
from draftproof.types import Draft, Probs, SamplingParams

# ---------------------------------------------------------------------------------------------- transformers' law


def transformers_law(logits, params, tokens):
    """The law `[V]` by transformers' processors, in its order; `logits` `[V]`."""
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(t,): float(b) for t, b in params.logit_bias.items()}))
    if params.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1:
        processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        processors.append(MinPLogitsWarper(params.min_p))
    return processors(torch.tensor([tokens]), logits[None].clone()).softmax(-1)[0]


def combinations(count, seed):
    chance = random.Random(seed)
    for _ in range(count):
        yield SamplingParams(
            temperature=chance.choice([0.3, 0.7, 1.0, 1.5]),
            top_k=chance.choice([0, 0, 1, 2, 4, 40]),
            top_p=chance.choice([1.0, 1.0, 0.05, 0.5, 0.9, 0.99]),
            min_p=chance.choice([0.0, 0.0, 0.01, 0.2, 1.0]),
            repetition_penalty=chance.choice([1.0, 1.3, 0.8]),
            logit_bias=chance.choice([{}, {0: 2.0, 3: -1.5}, {1: -math.inf}]),
        )


@pytest.mark.parametrize("vocab_size", [5, 100, 5000, 20_011])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_law_is_that_of_transformers(vocab_size, dtype):
    """Fixed seeds; random logits have no ties. In float32 sums at the border of a flat nucleus round differently and
    may take or leave one token.
    """
    generator = torch.Generator().manual_seed(vocab_size)
    for i, params in enumerate(combinations(120, seed=vocab_size)):
        logits = torch.randn(2, vocab_size, generator=generator, dtype=dtype) * (1, 3, 6)[i % 3]
        tokens = torch.randint(vocab_size, (12,), generator=generator).tolist()
        law = probs(logits, params, tokens, 6, Draft.chain([2]))
        assert law.values.dtype == dtype
        for row, history in enumerate((tokens, [*tokens, 2])):
            expected = transformers_law(logits[row], params, history)
            ours = law.to_dense(row)
            border = (ours > 0) != (expected > 0)
            assert int(border.sum()) <= (1 if dtype == torch.float32 else 0), params
            rounding = 1e-6 + float((ours + expected)[border].sum()) if dtype == torch.float32 else 1e-14
            assert torch.allclose(ours, expected, atol=rounding), params


def test_greedy_is_the_argmax_after_penalties_bias_and_bans():
    logits = torch.tensor([[3.0, 2.9, 2.8, 0.0]])
    assert probs(logits, SamplingParams(temperature=0)).to_dense().tolist() == [[1, 0, 0, 0]]
    params = SamplingParams(temperature=0, repetition_penalty=2.0, banned_tokens=(1,))
    assert probs(logits, params, [0], 1).to_dense().tolist() == [[0, 0, 1, 0]]
    assert probs(logits, SamplingParams(temperature=0, logit_bias={3: 9})).to_dense().tolist() == [[0, 0, 0, 1]]


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.zeros(1, 1000)
    logits[0, [7, 300, 999]] = 1.0
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert probs(logits.to(dtype), SamplingParams(temperature=0)).ids.tolist() == [[7]]


def test_half_precision_logits_are_processed_in_float32():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    law = probs(logits, SamplingParams(temperature=0.7))
    assert law.values.dtype == torch.float32
    assert torch.allclose(law.values, (logits.float() / 0.7).softmax(-1))


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_tiny_temperatures_approach_greedy_without_overflow(temperature):
    logits = torch.tensor([[1.0, 2.0, 3.0]]) * 1e4
    for params in (SamplingParams(temperature=temperature), SamplingParams(temperature=temperature, top_p=0.9)):
        assert probs(logits, params).to_dense().tolist() == [[0, 0, 1]]


# ------------------------------------------------------------------------------------------------------- penalties


def test_presence_and_frequency_count_the_output_only():
    logits = torch.zeros(1, 5, dtype=torch.float64)
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    tokens, num_prompt = [0, 0, 1, 2, 2, 3], 3
    assert penalise(logits, params, tokens, num_prompt).tolist() == [[0, 0, -1.0, -0.75, 0]]
    assert torch.equal(logits, torch.zeros(1, 5, dtype=torch.float64))


def test_repetition_penalty_counts_prompt_and_output_and_pushes_down_either_sign():
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    penalised = penalise(logits, SamplingParams(repetition_penalty=2.0), [0, 1], 1)
    assert penalised.tolist() == [[1.0, -4.0, 2.0, -2.0]]


ALL_PENALTIES = SamplingParams(
    repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.7, logit_bias={2: 1.0}, banned_tokens=(4,)
)


def test_history_at_every_node_of_a_tree_is_that_of_its_own_path():
    generator = torch.Generator().manual_seed(3)
    chance = random.Random(3)
    for _ in range(20):
        parents = tuple(chance.randrange(-1, node) for node in range(8))
        draft = Draft(tuple(chance.randrange(6) for _ in parents), parents)
        tokens, num_prompt = [chance.randrange(6) for _ in range(7)], 4
        logits = torch.randn(9, 6, generator=generator, dtype=torch.float64)
        law = probs(logits, ALL_PENALTIES, tokens, num_prompt, draft)
        for node in range(-1, 8):
            text = tokens + [draft.tokens[i] for i in draft.path(node)]
            alone = probs(logits[node + 1 :][:1], ALL_PENALTIES, text, num_prompt)
            assert torch.equal(law.values[node + 1], alone.values[0])


def test_penalties_by_formula():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(1, 6, generator=generator, dtype=torch.float64)
    tokens = [0, 1, 1, 2, 2, 5]
    expected = logits[0].tolist()
    expected[2] += 1.0
    for token in set(tokens):
        expected[token] *= 1.4 if expected[token] < 0 else 1 / 1.4
    for token, count in Counter(tokens[2:]).items():
        expected[token] -= 0.3 + 0.7 * count
    expected[4] = -math.inf
    assert penalise(logits, ALL_PENALTIES, tokens, 2)[0].tolist() == pytest.approx(expected, abs=1e-14)


def test_an_empty_history_and_ids_beyond_the_vocabulary_change_nothing():
    logits = torch.ones(1, 4)
    params = SamplingParams(
        repetition_penalty=2.0, presence_penalty=1.0, logit_bias={9: 5.0}, banned_tokens=(9,), temperature=1.0
    )
    for tokens in ([], [9, 10]):
        assert torch.equal(penalise(logits, params, tokens, 0), logits)


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.99}, {"temperature": 0}])
def test_banned_tokens_never_have_mass(options):
    logits = torch.arange(6.0)[None]
    for params in (
        SamplingParams(banned_tokens=(5, 3), **options),
        SamplingParams(logit_bias={5: -math.inf, 3: -math.inf}, **options),
    ):
        law = probs(logits, params).to_dense(0)
        assert law[5] == law[3] == 0
        assert law.argmax() == 4


# ----------------------------------------------------------------------------------------------------- truncation


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.1}, {"min_p": 1.0}])
def test_ties_share_their_fate(options):
    """Equal logits at the border all stay, wherever they are and however many there are."""
    logits = torch.zeros(1, 3000)
    tied = list(range(5, 3000, 7))
    logits[0, tied] = 8.0
    law = probs(logits, SamplingParams(**options)).to_dense(0)
    assert law.nonzero().flatten().tolist() == tied
    assert torch.allclose(law[tied], torch.tensor(1 / len(tied)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)  # our kernel, and torch's operations
def test_top_p_is_a_share_of_all_that_tied_for_the_last_place_of_top_k(dtype):
    logits = torch.zeros(1, 6000, dtype=dtype)
    logits[0, :5] = 8
    logits[0, 5:505] = 4  # tied for the sixth place: their mass is more than that of the first five
    params = SamplingParams(top_k=6, top_p=0.5)
    law = probs(logits, params).to_dense(0)
    expected = logits[0, :505].exp() / logits[0, :505].exp().sum()  # equal tokens share their fate
    assert torch.allclose(law[:505], expected, atol=1e-6) and not law[505:].any()


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_top_p_looks_beyond_its_first_candidates(top_p):
    """Nearly flat rows need far more than 64 tokens; peaked rows beside them do not."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5000, generator=generator, dtype=torch.float64)
    logits[1, 17] = 30
    law = probs(logits, SamplingParams(top_p=top_p))
    expected = torch.stack([transformers_law(row, SamplingParams(top_p=top_p), [0]) for row in logits])
    assert (law.to_dense(0) > 0).sum() > 64
    assert (law.to_dense(1) > 0).sum() == 1
    assert torch.allclose(law.to_dense(), expected, atol=1e-14)


def test_sparse_laws_equal_dense_ones():
    """Options that truncate nothing take the sparse way to the law that plain sampling takes densely."""
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    dense = probs(logits, SamplingParams())
    assert dense.ids is None
    for params in (SamplingParams(top_k=200), SamplingParams(top_k=1000), SamplingParams(min_p=1e-9)):
        sparse = probs(logits, params)
        assert sparse.ids is not None
        assert torch.allclose(sparse.to_dense(), dense.values, atol=1e-15)


def test_truncated_laws_are_as_narrow_as_they_can_be():
    logits = torch.randn(4, 10_000, generator=torch.Generator().manual_seed(2))
    assert probs(logits, SamplingParams(top_k=20)).values.shape == (4, 20)
    assert probs(logits, SamplingParams(temperature=0)).values.shape == (4, 1)


def test_logits_are_never_changed_in_place():
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(2))
    before = logits.clone()
    for params in (SamplingParams(), SamplingParams(temperature=0.5, top_p=0.9), ALL_PENALTIES):
        probs(logits, params, [1, 2], 1, Draft.chain([3]))
        assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_p": 0.5}])
def test_logits_without_a_finite_maximum_are_an_error(bad, options):
    logits = torch.zeros(2, 4)
    logits[1] = bad
    with pytest.raises(ModelError, match="not finite") as caught:
        probs(logits, SamplingParams(**options), draft=Draft.chain([0]))
    assert "\n" not in str(caught.value)


def test_banning_every_token_is_an_error():
    with pytest.raises(ModelError, match="every token is banned"):
        probs(torch.zeros(1, 3), SamplingParams(banned_tokens=(0, 1, 2)))


# --------------------------------------------------------------------------------------------------------- chance


def numbers(source, stream="draft", count=5):
    weights = torch.ones(1 << 20)
    return [source.categorical(weights, stream) for _ in range(count)]


def test_the_same_seed_gives_the_same_numbers():
    assert numbers(SeededSource(5)) == numbers(SeededSource(5))


def test_other_seeds_continuations_and_streams_give_other_numbers():
    """Five draws from a million each: two of these agree with odds below 1e-29."""
    drawn = [
        numbers(SeededSource(5)),
        numbers(SeededSource(6)),
        numbers(SeededSource(5, index=1)),
        numbers(SeededSource(5), "accept"),
        numbers(SeededSource(5), "residual"),
        numbers(SeededSource(5), "bonus"),
        numbers(SeededSource(None)),
        numbers(SeededSource(None)),
    ]
    assert len({tuple(draws) for draws in drawn}) == len(drawn)


def test_streams_do_not_disturb_each_other():
    plain, mixed = SeededSource(5), SeededSource(5)
    expected = numbers(plain)
    drawn = []
    for _ in range(5):
        mixed.bernoulli(0.5, "accept")
        mixed.categorical(torch.ones(3), "residual")
        drawn += numbers(mixed, count=1)
    assert drawn == expected


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 2**-53])
def test_an_index_of_weight_zero_is_never_drawn(uniform, monkeypatch):
    """At the ends of the unit interval and exactly on every border, in both precisions."""
    source = SeededSource(0)
    monkeypatch.setattr(source, "_uniform", lambda stream: uniform)
    for dtype in (torch.float32, torch.float64):
        weights = torch.tensor([0.0, 0.25, 0.0, 0.25, 0.5, 0.0, 0.0], dtype=dtype)
        assert weights[source.categorical(weights, "draft")] > 0


def test_bernoulli_at_the_ends_is_certain(monkeypatch):
    source = SeededSource(0)
    for uniform in (0.0, 1 - 2**-53):
        monkeypatch.setattr(source, "_uniform", lambda stream, u=uniform: u)
        assert source.bernoulli(1.0, "accept")
        assert not source.bernoulli(0.0, "accept")


@pytest.mark.parametrize("weights", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_weights_that_are_no_law_are_an_error(weights):
    with pytest.raises(ModelError, match="cannot draw a token: the draft weights"):
        SeededSource(0).categorical(torch.tensor(weights), "draft")


def test_draw_returns_ids_of_sparse_and_dense_rows():
    dense = Probs.dense(torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    sparse = Probs(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[9, 4], [7, 0]]), 10)
    source = SeededSource(0)
    assert [draw(dense, row, source, "draft") for row in (0, 1)] == [2, 0]
    assert [draw(sparse, row, source, "draft") for row in (0, 1)] == [4, 7]


def test_draws_follow_the_weights():
    """20 000 draws; Hoeffding: each frequency is off by more than 0.025 with odds below 2e-11 for a random seed."""
    source, counts = SeededSource(1), Counter()
    weights = torch.tensor([1.0, 0.0, 2.0, 5.0])
    for _ in range(20_000):
        counts[source.categorical(weights, "draft")] += 1
    for index, weight in enumerate([0.125, 0.0, 0.25, 0.625]):
        assert abs(counts[index] / 20_000 - weight) < 0.025


# ------------------------------------------------------------------------------------------------------- logprobs


def test_logprobs_are_those_of_the_plain_softmax():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    logs = logits.log_softmax(-1)
    results = logprobs(logits, [3, 7], 4)
    for row, (token, result) in enumerate(zip([3, 7], results)):
        assert result.token_id == token
        assert result.logprob == pytest.approx(float(logs[row, token]))
        assert [t for t, _ in result.top] == logs[row].argsort(descending=True)[:4].tolist()
    assert logprobs(logits, [3, 7], 0)[0].top == ()
    assert len(logprobs(logits, [3, 7], 99)[1].top) == 50


# --------------------------------------------------------------------------------------------------- the parameters


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"temperature": True},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {"1": 1.0}},
        {"banned_tokens": (-3,)},
        {"banned_tokens": ("a",)},
        {"max_new_tokens": 0},
        {"max_new_tokens": 1.5},
        {"stop": ("",)},
        {"stop": (3,)},
        {"stop_token_ids": (-1,)},
        {"seed": -1},
        {"seed": 1.5},
        {"logprobs": -1},
        {"n": 0},
    ],
    ids=str,
)
def test_values_without_meaning_are_one_line_errors_that_name_the_option(options):
    with pytest.raises(OptionError) as caught:
        SamplingParams(**options)
    assert "\n" not in str(caught.value)
    assert next(iter(options)) in str(caught.value)


def test_single_values_are_taken_for_lists():
    params = SamplingParams(stop="\n", stop_token_ids=3, banned_tokens=[1, 2])
    assert (params.stop, params.stop_token_ids, params.banned_tokens) == (("\n",), (3,), (1, 2))


def test_the_border_of_top_p_is_excluded_once_the_mass_is_reached():
    law = probs(torch.tensor([[0.5, 0.25, 0.25]]).double().log(), SamplingParams(top_p=0.5))
    assert law.to_dense(0).tolist() == pytest.approx([1, 0, 0])


@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-50}, {"top_p": 5e-324}, {"temperature": 1e-8, "top_p": 0.5}], ids=str
)
def test_extreme_settings_are_the_most_likely_token(settings):
    for dtype in (torch.float32, torch.float64):
        law = probs(torch.tensor([[1.0, 3.0, 2.0]], dtype=dtype), SamplingParams(**settings))
        assert law.to_dense(0).tolist() == pytest.approx([0, 1, 0])


@pytest.mark.parametrize(
    "settings",
    [
        {"stop": 5.0},
        {"stop": ("a", "")},
        {"stop_token_ids": 1.5},
        {"stop_token_ids": "12"},
        {"banned_tokens": (-1,)},
        {"logit_bias": [1, 2]},
        {"logit_bias": {1: 1e308}},
        {"logit_bias": {"x": 1.0}},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"top_k": 2.5},
        {"seed": -1},
        {"n": True},
    ],
    ids=str,
)
def test_parameters_of_the_wrong_kind_are_one_line(settings):
    with pytest.raises(OptionError, match=next(iter(settings))) as caught:
        SamplingParams(**settings)
    assert "\n" not in str(caught.value)


def test_numbers_of_other_libraries_are_numbers():
    numpy = pytest.importorskip("numpy")
    params = SamplingParams(
        temperature=numpy.float32(0.5),
        seed=numpy.int64(3),
        stop_token_ids=numpy.array([4, 5]),
        logit_bias={numpy.int64(1): 2},
    )
    assert (params.temperature, params.seed, params.stop_token_ids, params.logit_bias) == (0.5, 3, (4, 5), {1: 2.0})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 7, 512, 4096, 4097, 9973, 151936])
def test_the_highest_is_the_first_of_the_highest(size, dtype):
    """Many ties, at the ends and across chunks, against torch's own argmax."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randint(0, 5, (6, size), generator=generator).to(dtype)
    logits[0] = -torch.inf
    logits[0, -1] = 3
    logits[1] = 2.5
    logits[2, size // 2 :] = 9
    values, ids = sampling.highest(logits)
    assert torch.equal(ids[:, 0], logits.argmax(-1)) and torch.equal(values[:, 0], logits.amax(-1))


@pytest.mark.parametrize("width", [1, 64, 512])
@pytest.mark.parametrize("size", [512, 16_384, 20_011, 151_936])
def test_the_best_few_are_those_of_a_full_search(size, width):
    """Many ties, masked ids and peaks in the last ids; different ids, each with its own value."""
    generator = torch.Generator().manual_seed(size)
    scores = torch.randint(0, 1000, (5, size), generator=generator).float()
    scores[1, size // 100 :] = -torch.inf
    scores[2] = 1
    scores[3, -3:] = 2000
    values, ids = sampling.best(scores, width)
    assert torch.equal(values, scores.topk(width).values) and torch.equal(values, scores.gather(-1, ids))
    assert all(len(row.unique()) == width for row in ids)


@pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab_size", [300, 4096, 9973])
def test_the_kernels_law_is_the_one_of_torch(vocab_size, dtype):
    """Many ties, masked ids and flat rows. At a border within rounding one token of mass 2e-5 may stay or go."""
    generator = torch.Generator().manual_seed(vocab_size)
    for i, params in enumerate(combinations(150, seed=vocab_size)):
        logits = torch.randn(3, vocab_size, generator=generator) * (1, 3, 6)[i % 3]
        logits[1] = logits[1].round()
        logits[2, ::3] = -torch.inf
        logits[2, -1] = 20
        logits = logits.to(dtype)
        values, ids, finite = nucleus.nucleus(logits, params.temperature, params.top_k, params.top_p, params.min_p)
        law = Probs(values, ids, vocab_size).to_dense()
        scaled = (logits.float() - logits.float().amax(-1, keepdim=True)) / params.temperature
        assert finite
        assert torch.allclose(law, sampling._truncate(scaled, params).to_dense(), atol=2e-5), params
        assert all(len(row.unique()) >= int((v > 0).sum()) for row, v in zip(ids, values))
        assert bool((values.diff(dim=-1) <= 0).all())


@pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
def test_the_kernel_sees_damaged_rows_and_does_not_depend_on_the_others():
    logits = torch.randn(5, 5000, generator=torch.Generator().manual_seed(0))
    logits[1] *= 0.01  # flat: it needs more room than the others
    together = nucleus.nucleus(logits, 0.7, 0, 0.95, 0.0)
    for row in range(5):
        alone = nucleus.nucleus(logits[row : row + 1], 0.7, 0, 0.95, 0.0)
        num = int((alone[0] > 0).sum())
        assert torch.equal(together[0][row, :num], alone[0][0, :num]) and not together[0][row, num:].any()
        assert torch.equal(together[1][row, :num], alone[1][0, :num])
    for bad in (torch.nan, torch.inf):
        damaged = logits.clone()
        damaged[3, 4321] = bad
        assert nucleus.nucleus(damaged, 1.0, 0, 0.9, 0.0)[2] is False
        with pytest.raises(ModelError, match="not finite"):
            probs(damaged, SamplingParams(top_p=0.9))
    assert nucleus.nucleus(torch.full((1, 5000), -torch.inf), 1.0, 5, 1.0, 0.0)[2] is False
