"""Counts, logprobs, memory, admission and aborting (cases H06, H17, H19)."""

from __future__ import annotations

import gc
import math

import pytest
import torch

from draftproof import SamplingParams
from draftproof.drafters.ngram import NgramDrafter
from draftproof.errors import DrafterError, OptionError, PromptError
from draftproof.testing import ChainTarget, OracleDrafter, ScriptDrafter, SilentDrafter, TableTarget
from draftproof.types import EMPTY_DRAFT, Draft
from engines import GREEDY, ModelTarget, engine, lm, model_drafter, reference
from tiny import tiny_llama

MATRIX = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25, 0.15, 0.35, 0.25], [0.05, 0.05, 0.6, 0.3]])


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.5])
def test_h06_logprobs_are_those_of_the_target(temperature):
    """Before processing, so temperature does not change them."""
    target = TableTarget(MATRIX)
    params = SamplingParams(temperature=temperature, max_new_tokens=20, logprobs=2, seed=3)
    for drafter in (OracleDrafter(target), SilentDrafter()):
        result = engine(target, drafter, max_draft=4).generate([[0]], params)[0]
        previous = [0, *result.token_ids]
        assert len(result.logprobs) == len(result.token_ids) == 20
        for before, token, entry in zip(previous, result.token_ids, result.logprobs):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(math.log(MATRIX[before, token]), abs=1e-5)
            values = [value for _, value in entry.top]
            assert values == sorted(values, reverse=True) and len(values) == 2
            assert [math.exp(v) for v in values] == pytest.approx(MATRIX[before].topk(2).values.tolist(), abs=1e-5)
            assert all(math.exp(v) == pytest.approx(float(MATRIX[before, i]), abs=1e-5) for i, v in entry.top)


def test_logprobs_do_not_see_bias_and_penalties():
    target = TableTarget(MATRIX)
    params = SamplingParams(
        temperature=0.7, max_new_tokens=20, logprobs=1, seed=3, logit_bias={2: 3.0}, frequency_penalty=0.8, top_p=0.9
    )
    result = engine(target, OracleDrafter(target), max_draft=3).generate([[0]], params)[0]
    for before, token, entry in zip([0, *result.token_ids], result.token_ids, result.logprobs):
        assert entry.logprob == pytest.approx(math.log(MATRIX[before, token]), abs=1e-5)


def test_h17_counts_follow_a_known_script():
    """Proposed/accepted per round 4/4, 4/0, 2/2, 0/0, 3/1."""
    target = ChainTarget([(i + 1) % 50 for i in range(50)], 50)
    rounds = [(1, 2, 3, 4), (0, 0, 0, 0), (7, 8), (), (11, 0, 0)]
    run = engine(target, ScriptDrafter(rounds), max_draft=4)
    run.add([0], SamplingParams(temperature=0, max_new_tokens=40))
    emitted = [len(run.step()[0][1].token_ids) for _ in range(5)]
    assert emitted == [5, 1, 3, 1, 2]
    stats = run._scheduler.running[0].sequence.stats
    assert (stats.num_drafted, stats.num_accepted, stats.num_rounds, stats.num_tokens) == (13, 7, 5, 12)
    assert stats.acceptance_rate == 7 / 13 and stats.acceptance_length == 2.4
    assert stats.accepted_at == [3, 2, 1, 1]
    assert stats.to_dict()["accepted_at"] == [3, 2, 1, 1]


def test_h17_an_unread_stat_of_an_empty_run_is_zero_and_never_nan():
    target = ChainTarget([0], 1)
    result = engine(target, SilentDrafter()).generate([[0]], SamplingParams(max_new_tokens=1))[0]
    assert (result.stats.acceptance_rate, result.stats.acceptance_length, result.stats.accepted_at) == (0, 1, [])


def test_h19_nothing_grows_while_drafting_is_off_and_nothing_remains():
    model = tiny_llama(0, max_position_embeddings=2048)
    drafter = model_drafter(tiny_llama(1, max_position_embeddings=2048))
    run = engine(lm(model, max_length=2048), drafter, max_draft=0, max_batch=4)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    run.add([1, 2, 3], SamplingParams(temperature=0, max_new_tokens=1000))
    counts = []
    for step in range(1000):
        run.step()
        if step in (100, 990):
            counts.append(tensors())
    assert counts[1] <= counts[0]
    short = SamplingParams(temperature=0, max_new_tokens=3)
    for k in (0, 2):
        run.max_draft = k
        run.generate([[1, 2]] * 5, short)
        before = tensors()
        run.generate([[i % 100, 2] for i in range(100)], short)
        assert tensors() <= before
    assert run.num_running == run.num_waiting == 0
    assert not run._mailboxes and run.target.num_busy == 0 and drafter.lm.num_busy == 0 and not drafter._rows


def test_the_ngram_index_is_dropped_with_its_sequence():
    target, drafter = ChainTarget([1, 2, 0], 3), NgramDrafter()
    engine(target, drafter).generate([[0], [1]], GREEDY)
    assert not drafter._indexes


def test_sequences_join_and_leave_between_rounds_and_keep_their_texts():
    plain = ModelTarget(tiny_llama(0))
    run = engine(lm(plain.model, num_rows=2), model_drafter(tiny_llama(1)), max_draft=3, max_batch=2)
    prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10], [11, 12]]
    expected = [reference(plain, p, GREEDY) for p in prompts]
    got: dict[int, list[int]] = {}
    ids = []
    for prompt in prompts:  # one more arrives every few rounds
        ids += run.add(prompt, GREEDY)
        for _ in range(3):
            for sequence_id, event in run.step():
                got.setdefault(sequence_id, []).extend(event.token_ids)
    dropped = ids[3]
    assert run.abort(dropped).finish_reason == "abort"
    assert run.abort(dropped) is None
    while run.num_running or run.num_waiting:
        for sequence_id, event in run.step():
            got.setdefault(sequence_id, []).extend(event.token_ids)
    for i, sequence_id in enumerate(ids):
        if sequence_id != dropped:
            assert got[sequence_id] == expected[i]


def test_sequences_are_served_first_come_first_served():
    target = ChainTarget([(i + 1) % 9 for i in range(9)], 9)
    run = engine(target, SilentDrafter(), max_batch=1)
    ids = [run.add([i], SamplingParams(temperature=0, max_new_tokens=2))[0] for i in range(3)]
    finished = []
    while run.num_running or run.num_waiting:
        finished += [sequence_id for sequence_id, event in run.step() if event.finish_reason]
    assert finished == ids


class FailsOnce:
    """The token rule, failing at its n-th call as a broken row or Ctrl-C would."""

    def __init__(self, at, error):
        self.left, self.error = at, error

    def __call__(self, draft, p, source):
        from draftproof.verify import token_rule

        self.left -= 1
        if self.left == 0:
            raise self.error
        return token_rule(draft, p, source)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
@pytest.mark.parametrize("at", [1, 2, 5, 6])
def test_a_round_that_fails_half_way_leaves_every_sequence_where_it_was(at, error):
    plain = ModelTarget(tiny_llama(0))
    run = engine(lm(plain.model), model_drafter(tiny_llama(1)), max_draft=3)
    prompts = [[1, 2, 3], [4, 5]]
    params = SamplingParams(temperature=0, max_new_tokens=20)
    ids = [run.add(prompt, params)[0] for prompt in prompts]
    run.verify = FailsOnce(at, error)
    got = {sequence_id: [] for sequence_id in ids}
    failures = 0
    while run.num_running or run.num_waiting:
        try:
            for sequence_id, event in run.step():
                got[sequence_id] += event.token_ids
        except (RuntimeError, KeyboardInterrupt):
            failures += 1
    assert failures == 1
    assert [got[i] for i in ids] == [reference(plain, prompt, params) for prompt in prompts]


def test_several_threads_may_share_an_engine():
    from concurrent.futures import ThreadPoolExecutor

    plain = ModelTarget(tiny_llama(0))
    target = lm(plain.model)
    runs = [engine(target, model_drafter(tiny_llama(1)), max_draft=3, max_batch=2) for _ in range(2)]
    params = SamplingParams(temperature=0, max_new_tokens=20)
    prompts = [[i + 1, i + 2] for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: runs[i % 2].generate([prompts[i]], params)[0].token_ids, range(8)))
    assert results == [reference(plain, prompt, params) for prompt in prompts]


def test_a_cache_that_cannot_grow_keeps_working_at_its_size(monkeypatch):
    model = tiny_llama(0, max_position_embeddings=2048)
    plain, target = ModelTarget(model), lm(model)
    run = engine(target, SilentDrafter())
    params = SamplingParams(temperature=0, max_new_tokens=3)
    run.generate([[1, 2]], params)
    layer = target.forward.cache.layers[1]
    resize = layer.resize
    monkeypatch.setattr(layer, "resize", lambda *size: (_ for _ in ()).throw(MemoryError("full")))
    with pytest.raises(MemoryError):
        run.generate([[5] * 300], params)
    monkeypatch.setattr(layer, "resize", resize)
    for prompt in ([1, 2, 3], [5] * 300):
        assert run.generate([prompt], params)[0].token_ids == reference(plain, prompt, params)


def test_closing_a_stream_at_any_event_frees_everything():
    plain = ModelTarget(tiny_llama(0))
    drafter = model_drafter(tiny_llama(1))
    run = engine(lm(plain.model), drafter, max_draft=4)
    expected = reference(plain, [1, 2, 3], GREEDY)
    for events in range(6):
        stream = run.stream([1, 2, 3], GREEDY)
        for _ in range(events):
            next(stream)
        stream.close()
        assert run.num_running == run.num_waiting == 0 and run.target.num_busy == 0 and not drafter._rows
        assert run.generate([[1, 2, 3]], GREEDY)[0].token_ids == expected


def test_the_last_event_of_a_stream_carries_the_statistics_of_the_whole():
    run = engine(lm(tiny_llama(0)), model_drafter(tiny_llama(1)), max_draft=4)
    events = list(run.stream([1, 2, 3], GREEDY))
    whole = run.generate([[1, 2, 3]], GREEDY)[0].stats
    assert all(event.stats is None for event in events[:-1])
    counts = ("num_tokens", "num_rounds", "num_drafted", "num_accepted", "accepted_at")
    assert all(getattr(events[-1].stats, name) == getattr(whole, name) for name in counts)


def test_generating_inside_a_stream_disturbs_neither():
    plain = ModelTarget(tiny_llama(0))
    run = engine(lm(plain.model), model_drafter(tiny_llama(1)), max_draft=4)
    outer, inner = [], []
    for event in run.stream([1, 2, 3], GREEDY):
        outer += event.token_ids
        if not inner:
            inner = run.generate([[4, 5]], GREEDY)[0].token_ids
    assert outer == reference(plain, [1, 2, 3], GREEDY) and inner == reference(plain, [4, 5], GREEDY)


class Failing:
    name = "failing"
    released: list[int] = []

    def propose(self, requests):
        raise RuntimeError("no idea")

    def release(self, sequence_id):
        self.released.append(sequence_id)


def test_a_failing_drafter_leaves_the_engine_clean():
    target = lm(tiny_llama(0))
    run = engine(target, Failing())
    with pytest.raises(RuntimeError, match="no idea"):
        run.generate([[1, 2]], GREEDY)
    assert run.num_running == run.num_waiting == 0 and target.num_busy == 0


class Greedy:
    name = "greedy for more"

    def __init__(self, drafts):
        self.drafts = drafts

    def propose(self, requests):
        return self.drafts

    def release(self, sequence_id):
        pass


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ([], "0 drafts for 1 requests"),
        ([EMPTY_DRAFT] * 2, "2 drafts"),
        ([Draft.chain([1] * 9)], "at most 8 are"),
        ([None], "list of Draft records"),
        (None, "list of Draft records"),
        ([Draft.chain([-1])], "outside 0 to 127"),
        ([Draft.chain([128])], "outside 0 to 127"),
        ([Draft.chain([0], torch.full((1, 128), 0.1), "independent")], "not probabilities"),
        ([Draft.chain([0], torch.full((1, 128), torch.nan), "independent")], "not probabilities"),
        ([Draft.chain([0], torch.eye(128)[:1] * 2 - torch.eye(128)[1:2], "independent")], "not probabilities"),
        ([Draft.chain([0], torch.full((1, 5), 0.2), "independent")], "expected rows over the target's 128 ids"),
        ([Draft.chain([0], torch.ones(1), "independent")], "of shape|expected rows"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_named(drafts, message):
    run = engine(lm(tiny_llama(0)), Greedy(drafts))
    with pytest.raises(DrafterError, match=message) as caught:
        run.generate([[1, 2]], GREEDY)
    assert "greedy for more" in str(caught.value) and "\n" not in str(caught.value)
    assert run.target.num_busy == 0


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([[]], PromptError, "empty"),
        ("", PromptError, "no tokenizer"),
        ([[1, 128]], PromptError, "token id 128 is outside"),
        ([[-1]], PromptError, "token id -1"),
        ([[1] * 256], PromptError, "256 tokens"),
        ([3.5], PromptError, "a prompt is"),
        ([[True, "x"]], PromptError, "a prompt is"),
        (None, PromptError, "a prompt is"),
    ],
)
def test_bad_prompts_are_one_line_and_queue_nothing(prompts, error, message):
    run = engine(lm(tiny_llama(0)), SilentDrafter())
    with pytest.raises(error, match=message) as caught:
        run.generate(prompts, GREEDY)
    assert "\n" not in str(caught.value) and run.num_waiting == 0


def test_parameters_must_match_the_prompts():
    run = engine(lm(tiny_llama(0)), SilentDrafter())
    with pytest.raises(OptionError, match="2 for 1 prompts"):
        run.generate([[1]], [GREEDY, GREEDY])
    with pytest.raises(OptionError, match="stop strings need a tokenizer"):
        run.generate([[1]], SamplingParams(stop=("x",)))
    with pytest.raises(OptionError, match="params must be"):
        run.generate([[1]], {"temperature": 0})
    with pytest.raises(OptionError, match="banned_tokens leaves none"):
        run.generate([[1]], SamplingParams(banned_tokens=range(128)))
    assert run.generate([], GREEDY) == []
