"""Predictions against rounds that a scripted clock times, verdicts of known cases, and what others are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from draftproof.advisor import exports
from draftproof.advisor.measure import cluster, rest, split
from draftproof.advisor.predict import Costs, Texts, constant_speedup, predict
from draftproof.advisor.recommend import advise, judge, predictions, reason_against
from draftproof.bench.intervals import cluster_interval
from draftproof.cli import main
from draftproof.costs import Calibration, Curve
from draftproof.drafters.none import NoDrafter
from draftproof.engine import Engine
from draftproof.testing import OracleDrafter, WrongAt
from draftproof.types import GenerationResult, GenerationStats, SamplingParams
from draftproof.verify import auto_rule
from test_bench import Ticker
from test_budget import FLAT, Paced, Slow, counting, seconds, ticker, timed  # noqa: F401
from test_cli import last_json
from tiny import TEXT_VOCAB, save_tiny, tiny_llama

# -- H18 --------------------------------------------------------------------------------------------------------------

CASES = {  # acceptance, K, draft, verify (t1 = 10), speed-up, verdict, what stands in the way
    "A": (0.6, 4, 6.0, 11.0, 0.66, "do not", "draft too slow"),
    "B": (0.85, 4, 1.0, 11.0, 2.47, "speculate", None),
    "C": (0.7, 4, 0.5, 30.0, 0.87, "do not", "target already compute-bound"),
    "D": (0.5, 3, 2.0, 12.0, 1.04, "within noise", None),
}


@pytest.mark.parametrize("case", CASES)
def test_h18_the_advisor_says_no_when_it_should(case: str) -> None:
    acceptance, k, draft, verify, expected, verdict, obstacle = CASES[case]
    found = constant_speedup(acceptance, k, 10.0, verify, draft)
    assert found == pytest.approx(expected, abs=0.02)
    assert judge(found) == verdict
    if obstacle:
        assert reason_against(acceptance, k, 10.0, verify, draft).kind == obstacle


def test_h18_no_length_helps_a_draft_that_is_too_slow() -> None:
    assert all(constant_speedup(0.6, k, 10.0, 11.0, 6.0) < 1 for k in range(1, 9))
    assert reason_against(0.1, 4, 10.0, 11.0, 0.5).kind == "acceptance too low"


def test_an_interval_that_holds_no_gain_is_within_noise() -> None:
    assert judge(1.2, (0.95, 1.4)) == "within noise"
    assert judge(1.2, (1.1, 1.4)) == "speculate"
    assert judge(0.8, (0.7, 0.9)) == "do not"


# -- predictions ------------------------------------------------------------------------------------------------------


def texts_of(acceptance: float, depth: int = 8, rounds: float = 100.0, num: int = 4) -> Texts:
    """Prompts whose every token is accepted alike and whose drafts never end early."""
    accepted = [rounds * acceptance ** (i + 1) for i in range(depth)]
    tokens = rounds + sum(accepted)
    return Texts(((rounds, tokens, 10.0, *accepted, *[rounds] * depth),) * num, depth)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("acceptance", [0.2, 0.7, 0.95])
def test_predictions_are_the_closed_form_where_it_holds(acceptance: float, k: int) -> None:
    costs = Costs(Calibration(seconds(FLAT), draft_first=0.012, draft_next=0.012))
    found = predict(texts_of(acceptance), costs, k, 1)
    assert found.speedup == pytest.approx(constant_speedup(acceptance, k, 0.1, FLAT.at(k + 1) / 1e3, 0.012))
    assert found.interval == (pytest.approx(found.speedup), pytest.approx(found.speedup)), "all prompts are alike"
    assert found.tok_s * found.tpot_ms == pytest.approx(1e3)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("k", [1, 2, 4, 6])
@pytest.mark.parametrize("wrong", [0, 2, 5])
def test_predicted_speedups_are_those_of_the_engine(ticker: Ticker, wrong: int, k: int, batch: int) -> None:  # noqa: F811
    """Acceptance is counted with K = 8 at batch 1, the speed-up is that of another K and batch: at most 6 % off, which
    is what the last, shorter rounds of a text make.
    """

    def run(drafter: Any, most: int) -> Engine:
        return Engine(Paced(ticker, FLAT), drafter, auto_rule, max_draft=most, max_batch=8)

    params = SamplingParams(temperature=0, max_new_tokens=300)
    drafter = Slow(WrongAt(counting(), wrong), ticker, 9.0)
    (result,) = run(drafter, 8).generate([[1, 2]], params)
    texts = Texts((cluster(result, 2, 8),), 8)
    costs = Costs(Calibration(seconds(FLAT), draft_first=0.009, draft_next=0.009))
    measured = timed(ticker, run(NoDrafter(), 0), batch, params) / timed(ticker, run(drafter, k), batch, params)
    assert predict(texts, costs, k, batch).speedup == pytest.approx(measured, rel=0.06)


def test_a_drafter_that_ends_its_drafts_itself_is_charged_for_what_it_drafts(ticker: Ticker) -> None:  # noqa: F811
    class Short(OracleDrafter):
        def _budget(self, request: Any) -> int:
            return min(super()._budget(request), 1 + len(request.tokens) % 3)

    params = SamplingParams(temperature=0, max_new_tokens=300)
    drafter = Slow(Short(counting()), ticker, 9.0)
    engine = Engine(Paced(ticker, FLAT), drafter, auto_rule, max_draft=8)
    (result,) = engine.generate([[1, 2]], params)
    assert result.stats.drafted_at[0] > result.stats.drafted_at[1] > 0
    costs = Costs(Calibration(seconds(FLAT), draft_first=0.009, draft_next=0.009))
    plain = timed(ticker, Engine(Paced(ticker, FLAT), NoDrafter(), auto_rule), params=params)
    measured = plain / timed(ticker, engine, params=params)
    found = predict(Texts((cluster(result, 2, 8),), 8), costs, 8, 1)
    assert found.speedup == pytest.approx(measured, rel=0.05)
    assert found.num_drafted < 3


def test_the_gain_shrinks_with_the_batch_and_a_larger_draft_has_an_optimum() -> None:
    steep = Curve(((1, 0.1), (8, 0.11), (16, 0.14), (64, 0.5)))
    by_size = {  # a larger draft model accepts more and takes longer
        name: (texts_of(acceptance), Costs(Calibration(steep, draft_first=draft, draft_next=draft)))
        for name, acceptance, draft in (("tiny", 0.45, 0.003), ("middle", 0.8, 0.008), ("large", 0.9, 0.05))
    }
    every = predictions({n: t for n, (t, _) in by_size.items()}, {n: c for n, (_, c) in by_size.items()}, (1, 16), 8)
    best = {name: max(own[1].speedup for key, own in every.items() if key[0] == name) for name in by_size}
    assert best["middle"] > max(best["tiny"], best["large"])
    assert all(own[1].speedup > own[16].speedup for own in every.values())
    advice = advise({"middle": by_size["middle"][0]}, {"middle": by_size["middle"][1]}, (1, 4, 16, 64), 8)
    assert advice.verdict == "speculate" and 1 <= advice.up_to < 64
    assert "beyond batch" in advice.reason


def test_advice_names_the_reason_and_the_goal() -> None:
    costs = Costs(Calibration(Curve(((1, 0.01), (8, 0.011))), draft_first=0.009, draft_next=0.009))
    advice = advise({"model:x": texts_of(0.6)}, {"model:x": costs}, (1,), 4, goal_tpot_ms=5.0)
    assert advice.verdict == "do not" and advice.up_to == 0
    assert "draft too slow" in advice.reason and "misses the goal of 5 ms" in advice.reason
    assert advise({}, {}, (1,), 4).verdict == "do not"


def test_prompts_are_split_and_one_alone_serves_for_both() -> None:
    learn, check = split({"a": ["1", "2", "3"], "b": ["x"]})
    assert (learn, check) == ({"a": ["1", "2"], "b": ["x"]}, {"a": ["3"], "b": ["x"]})


def test_the_rest_of_a_round_is_what_neither_drafts_nor_passes() -> None:
    stats = GenerationStats(num_tokens=10, num_rounds=10, total_seconds=1.5, prefill_seconds=0.4, verify_seconds=1.0)
    assert rest([GenerationResult("", [0] * 10, "length", None, stats)]) == pytest.approx(0.01)
    assert rest([]) == 0


def test_intervals_draw_prompts_and_need_two_of_them() -> None:
    even = [(10.0, 5.0)] * 6
    assert cluster_interval(even, lambda s: s[:, 0] / s[:, 1]) == (2.0, 2.0)
    spread = [(float(i), 1.0) for i in range(12)]
    low, high = cluster_interval(spread, lambda s: s[:, 0] / s[:, 1]) or (0, 0)
    assert low < 5.5 < high and 2 < high - low < 6
    assert cluster_interval(even[:1], lambda s: s[:, 0]) is None


# -- other engines' words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafter", "method", "algorithm"),
    [
        ("ngram:2-4", "ngram", "NGRAM"),
        ("suffix", "suffix", "NGRAM"),
        ("model:small", "draft_model", "STANDALONE"),
        ("eagle:head", "eagle3", "EAGLE3"),
        ("medusa:heads", "medusa", None),
        ("self:4", None, None),
        ("suffix,model:x", None, None),
    ],
)
def test_other_engines_are_told_in_their_own_words(drafter: str, method: str | None, algorithm: str | None) -> None:
    config, flags = exports.vllm(drafter, 5), exports.sglang(drafter, 5)
    assert (config or {}).get("method") == method
    if config is not None:
        assert config["num_speculative_tokens"] == 5
    assert (flags[1] if flags else None) == algorithm
    if drafter == "ngram:2-4":
        assert config is not None
        assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == (2, 4)


def test_numbers_by_batch_size_become_ranges() -> None:
    assert exports.ranges({1: 8, 2: 8, 4: 5, 8: 0, 16: 0}) == [[1, 3, 8], [4, 7, 5], [8, 16, 0]]
    config = exports.vllm("ngram", 8, {1: 8, 4: 3})
    assert config is not None and config["num_speculative_tokens_per_batch_size"] == [[1, 3, 8], [4, 4, 3]]
    assert "num_speculative_tokens_per_batch_size" not in (exports.vllm("ngram", 8, {1: 8, 4: 8}) or {})


def test_the_exchange_format_has_rates_and_the_mean_length() -> None:
    profile = exports.speculation_profile(texts_of(0.5, 4), 3)
    assert profile["marginal_accept_rates"] == pytest.approx([0.5, 0.25, 0.125])
    assert profile["conditional_accept_rates"] == pytest.approx([0.5, 0.5, 0.5])
    assert profile["mean_accept_length"] == pytest.approx(1.875)
    assert (profile["schema_version"], profile["accept_length_model"]) == ("1.0", "chain_analytic")


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    tiny = tiny_llama(vocab_size=TEXT_VOCAB, max_position_embeddings=2048)
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny", tiny))


def lines(folder: Path, prompts: Sequence[dict[str, Any]]) -> str:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    return str(file)


def test_advise_answers_and_its_files_are_taken_back(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [{"category": c, "prompt": f"{c} {i} ab ab ab"} for c in ("code", "chat") for i in range(2)]
    toml, profile, page = (tmp_path / name for name in ("best.toml", "profile.json", "page.html"))
    options = ["--prompts", lines(tmp_path, prompts), "--drafter", "ngram", "--drafter", f"model:{model}"]
    options += ["--batch", "1", "--batch", "2", "-n", "12", "--max-draft", "3", "--goal-tpot", "50"]
    options += ["--out", str(toml), "--profile", str(profile), "--report", str(page), "--json", "-"]
    assert main(["advise", "--target", model, *options]) == 0
    shown = capsys.readouterr().out
    document = last_json(shown)
    assert document.keys() == {"verdict", "reason", "recommended", "predicted", "measured"}
    assert document["verdict"] in ("speculate", "do not") and document["reason"]
    predicted = document["predicted"]
    assert {(r["drafter"], r["max_draft"]) for r in predicted} == {
        (name, k) for name in ("ngram", f"model:{model}") for k in (1, 2, 3)
    }
    assert {r["batch"] for r in predicted} == {1, 2, 4, 8, 16, 32, 64}
    assert {r["task"] for r in predicted} == {"code", "chat", "all"}
    measured = document["measured"]
    cells = {("code", 1), ("chat", 1), ("all", 2)}
    assert {(r["task"], r["batch"]) for r in measured} == cells, "one prompt of a task does not fill a batch"
    fixed = {(r["drafter"], r["draft"]) for r in measured if r["draft"] not in ("", "adaptive")}
    assert len(fixed) == 3, "the best one and two others"
    known = {(r["task"], r["batch"], r["drafter"], r["draft"]) for r in predicted}
    assert all((r["task"], r["batch"], r["drafter"], r["draft"]) in known for r in measured if r["draft"].isdecimal())
    assert all(row["identical"] for row in measured)
    assert json.loads(profile.read_text()).keys() >= {"marginal_accept_rates", "mean_accept_length"}
    text = page.read_text(encoding="utf-8")
    assert "Predicted beside measured" in text and "What a pass costs" in text

    assert main(["generate", "--config", str(toml), "-n", "4", "--temperature", "0", "--json", "-", "hello"]) == 0
    config = last_json(capsys.readouterr().out)["config"]
    assert config["target"] == model
    if document["verdict"] == "do not":
        assert config["drafter"] == "none"


MISTAKES = {
    "no file": (None, "cannot read"),
    "no TOML": ("target = ", "needs TOML"),
    "an option that is none": ('colour = "red"', "no option 'colour'"),
    "a table": ("[target]\na = 1", "has a table"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_config_file_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, said = MISTAKES[name]
    file = tmp_path / "options.toml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main(["generate", "--config", str(file), "hi"]) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1


def test_the_command_line_wins_over_the_config_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.toml"
    file.write_text(
        exports.toml({"target": model, "drafter": "suffix", "max-draft": 2, "dtype": None}), encoding="utf-8"
    )
    for more, drafter in (([], "suffix"), (["--drafter", "none"], "none")):
        assert main(["generate", "--config", str(file), *more, "-n", "2", "--json", "-", "hi"]) == 0
        config = last_json(capsys.readouterr().out)["config"]
        assert (config["drafter"], config["max_draft"]) == (drafter, 2)
