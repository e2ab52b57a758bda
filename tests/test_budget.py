"""The adaptive budget: exact whatever it decides, never slower than plain decoding, as fast as the best fixed length.

Time is a clock that only passes of the doubles move, so speeds are exact numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftproof import SamplingParams
from draftproof.audit.exact import engine_distance
from draftproof.costs import Calibration, Curve
from draftproof.drafters.calibrate import target_costs, with_drafter
from draftproof.drafters.cascade import CascadeDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.drafters.offer import Offer
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.engine import Engine
from draftproof.engine.acceptance import Acceptance, Part, Tally
from draftproof.engine.budget import AdaptiveBudget, FixedBudget, Option, best_parts, first_nodes
from draftproof.engine.prices import Prices
from draftproof.models.cached_lm import CachedLM
from draftproof.testing import (
    AlwaysWrong,
    ChainTarget,
    LawDrafter,
    OracleDrafter,
    RandomTable,
    StatingDrafter,
    TableTarget,
    WrongAt,
)
from draftproof.types import Draft, SequenceState
from draftproof.verify import auto_rule, block_rule, token_rule, traversal_rule
from test_bench import COUNTING, VOCAB, FakeForward, Ticker

F64 = {"dtype": torch.float64}
STEPPED = Curve(((1, 1.0), (2, 1.0), (3, 1.35), (4, 1.35), (5, 1.4), (8, 2.0)))  # as where passes are padded


# -- exactness --------------------------------------------------------------------------------------------------------


class Recording(AdaptiveBudget):
    """Remembers what was asked for and what was left out."""

    def __init__(self, *arguments: Any, log: list[tuple[int, int]], **options: Any):
        super().__init__(*arguments, **options)
        self.log = log

    def cut(self, sequences: Sequence[SequenceState], drafts: Sequence[Draft]) -> list[Draft]:
        kept = super().cut(sequences, drafts)
        self.log += [
            (asked, before.num_nodes - after.num_nodes) for asked, before, after in zip(self._asked, drafts, kept)
        ]
        return kept


def distance(p, drafter, length, make_budget, verify=auto_rule, k=2):
    """Of the exact law of the ids, whole engine and budget, from the target's."""
    params = SamplingParams(max_new_tokens=length)

    def fresh():
        return {"budget": make_budget(), "drafter": drafter() if callable(drafter) else drafter}

    return engine_distance(p, drafter, params, verify, fresh=fresh, max_draft=k)


@pytest.mark.parametrize("rule", [token_rule, block_rule, traversal_rule])
@pytest.mark.parametrize("draft_cost", [0.02, 0.45, 0.65])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_the_whole_engine_is_exact_under_a_scripted_cost_table(zeros, draft_cost, rule):
    """A rejection or two make drafting stop paying; probes bring it back."""
    p, q = RandomTable(3, 1, zeros), RandomTable(3, 2, zeros)
    log: list[tuple[int, int]] = []
    costs = Calibration(STEPPED, draft_first=draft_cost, draft_next=draft_cost)
    got = distance(p, LawDrafter(q), 4, lambda: Recording(Prices(costs, fixed=True), probing=0.3, log=log), rule)
    assert got < 1e-12
    asked = {asked for asked, _ in log}
    assert len(asked) > 1, "the budget depended on what was accepted"
    assert not any(left for _, left in log), "a drawn token was never withheld"


def test_lengths_of_every_kind_occur_and_the_law_stays():
    p, q = RandomTable(2, 1), RandomTable(2, 2)
    log: list[tuple[int, int]] = []
    costs = Calibration(Curve(((1, 1.0), (8, 1.4))), draft_first=0.15, draft_next=0.15)
    got = distance(
        p, LawDrafter(q), 6, lambda: Recording(Prices(costs, fixed=True), probing=0.2, log=log), auto_rule, 4
    )
    assert got < 1e-12
    assert {0, 1, 2} <= {asked for asked, _ in log}


@pytest.mark.parametrize("drawn", ["independent", "without_replacement", "hybrid"])
def test_trees_of_drawn_nodes_are_exact_and_never_cut(drawn):
    p, q = RandomTable(2, 1), RandomTable(2, 2)
    log: list[tuple[int, int]] = []
    costs = Calibration(STEPPED, draft_first=0.3)
    drafter = StatingDrafter(q, drawn=drawn, parents=(-1, -1, 0))
    for free in ("none", "all"):
        got = distance(
            p,
            drafter,
            4,
            lambda: Recording(Prices(costs, fixed=True), free=free, probing=0.2, log=log),  # noqa: B023
            auto_rule,
            3,
        )
        assert got < 1e-12
    assert not any(left for _, left in log)


@pytest.mark.parametrize("parents", [None, (-1, -1, 0)])
def test_tokens_chosen_without_randomness_are_cut_by_their_worth_and_the_law_stays(parents):
    p, q = RandomTable(3, 3), RandomTable(3, 4)
    log: list[tuple[int, int]] = []
    drafter = StatingDrafter(q, fixed=True, parents=parents)
    got = distance(
        p,
        drafter,
        4,
        lambda: Recording(Prices(Calibration(STEPPED), fixed=True), free="all", probing=0.2, log=log),
        auto_rule,
        3,
    )
    assert got < 1e-12
    assert len({left for _, left in log}) > 1


class Offering(StatingDrafter):
    """Says beforehand what it expects, as look-ups do."""

    def offers(self, requests):
        return [Offer(draft, sum(draft.survival)) for draft in self.propose(requests)]


def test_a_cascade_of_drafts_for_nothing_and_for_pay_is_exact():
    """Fixed tokens are cut by their worth, drawn ones are limited beforehand and never cut."""
    p, q = RandomTable(2, 5), RandomTable(2, 6)
    log: list[tuple[int, int]] = []
    costs = Calibration(Curve(((1, 1.0), (8, 1.4))), draft_first=0.2, draft_next=0.2)
    got = distance(
        p,
        lambda: CascadeDrafter([Offering(RandomTable(2, 7), fixed=True), LawDrafter(q)], [0.0, 0.3]),
        5,
        lambda: Recording(Prices(costs, fixed=True), free="some", probing=0.3, log=log),
        k=3,
    )
    assert got < 1e-12
    assert len({asked for asked, _ in log}) > 1


def test_the_biased_variant_is_caught():
    """Keeping as many drawn tokens as promise the best goodput looks at the tokens' own values."""

    class Withholding(AdaptiveBudget):
        def cut(self, sequences, drafts):
            drafts = super().cut(sequences, drafts)
            options = [Option(1, [Part(chance, 1.0, 0, i + 1) for i, chance in enumerate(d.survival)]) for d in drafts]
            chosen, _ = best_parts(options, self.prices)
            return [cut_drawn(d, part.budget if part else 0) for d, part in zip(drafts, chosen)]

    def cut_drawn(draft, num):
        return Draft(draft.tokens[:num], draft.parents[:num], draft.probs, draft.drawn if num else "fixed")

    p, q = RandomTable(3, 1), RandomTable(3, 2)
    costs = Calibration(Curve(((1, 1.0), (2, 1.0), (3, 1.2), (4, 1.2))))
    for budget, biased in ((AdaptiveBudget, False), (Withholding, True)):
        got = distance(p, StatingDrafter(q), 4, lambda: budget(Prices(costs, fixed=True), free="all"), k=3)  # noqa: B023
        assert (got > 1e-3) if biased else (got < 1e-12)


def test_leaving_out_a_drawn_token_is_refused():
    with pytest.raises(ValueError, match="may not be withheld"):
        first_nodes(Draft.chain([1, 0], torch.full((2, 2), 0.5), "independent"), 1)


def test_a_seed_fixes_a_sampled_text_whatever_the_budget_has_learned():
    """16 tokens out of 50 equally likely ones: equal texts by chance have probability 50^-16."""
    costs = Calibration(Curve(((1, 1.0), (8, 1.5), (40, 9.0))), draft_first=0.6, draft_next=0.6)
    target, uniform = TableTarget([0.02] * 50), [0.02] * 50

    def text(budget, others=0):
        run = Engine(target, LawDrafter(uniform, 4), auto_rule, max_draft=4, budget=budget)
        params = [SamplingParams(max_new_tokens=16)] * others + [SamplingParams(max_new_tokens=16, seed=7)]
        return run.generate([[1]] * others + [[0]], params)[-1].token_ids

    learned = AdaptiveBudget(Prices(costs))
    texts = [text(FixedBudget()), text(learned), text(learned, 3), text(learned, 7)]
    assert texts == [texts[0]] * 4


# -- speed ------------------------------------------------------------------------------------------------------------


class Paced(ChainTarget):
    """Counts on; a pass over M tokens takes what the curve says, slower by `scale`."""

    def __init__(self, ticker: Ticker, curve: Curve):
        super().__init__(COUNTING, VOCAB)
        self.ticker, self.curve = ticker, curve

    def score(self, rows: Any, roots: Any, drafts: Sequence[Draft]) -> Any:
        self.ticker.pass_ms(self.curve.at(len(rows) + sum(draft.num_nodes for draft in drafts)))
        return super().score(rows, roots, drafts)


class Slow:
    """A drafter whose every layer takes so many ms, and reading what it has not seen so many a token."""

    def __init__(self, inner: Any, ticker: Ticker, ms: float, reading: float = 0.0):
        self.inner, self.ticker, self.ms, self.reading, self.name = inner, ticker, ms, reading, "slow"
        self.seen: dict[int, int] = {}

    def propose(self, requests: Any) -> list[Draft]:
        asked = [r for r in requests if r.max_nodes]
        unread = sum(max(0, len(r.tokens) - self.seen.get(r.id, 0) - 2 * r.max_nodes) for r in asked)
        self.seen.update((r.id, len(r.tokens)) for r in asked)
        drafts = self.inner.propose(requests)
        layers = max((max(d.depths, default=0) for d in drafts), default=0)
        self.ticker.pass_ms(self.ms * layers + self.reading * unread)
        return drafts

    def release(self, sequence_id: int) -> None:
        self.inner.release(sequence_id)


FLAT = Curve(((1, 100.0), (4, 102.0), (8, 110.0), (16, 135.0), (32, 230.0), (64, 420.0)))
GREEDY = SamplingParams(temperature=0, max_new_tokens=128)


@pytest.fixture
def ticker(monkeypatch: pytest.MonkeyPatch) -> Ticker:
    made = Ticker()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def seconds(curve: Curve, unit: float = 1e-3) -> Curve:
    return Curve(tuple((m, unit * cost) for m, cost in curve.points))


def timed(ticker: Ticker, engine: Engine, batch: int = 1, params: SamplingParams = GREEDY) -> float:
    """Seconds per new token."""
    begun = ticker()
    results = engine.generate([[1, 2, 3]] * batch, params)
    return (ticker() - begun) / sum(len(r.token_ids) for r in results)


def make(ticker: Ticker, drafter: Any, budget: Any = None, k: int = 8, curve: Curve = FLAT) -> Engine:
    return Engine(Paced(ticker, curve), drafter, auto_rule, max_draft=k, max_batch=16, budget=budget)


def adaptive(curve: Curve = FLAT, ms: float = 0.0, reading: float = 0.0, **options: Any) -> AdaptiveBudget:
    costs = Calibration(seconds(curve), 0, 0.0, ms / 1e3, ms / 1e3, reading / 1e3)
    return AdaptiveBudget(Prices(costs), **options)


def counting() -> ChainTarget:
    return ChainTarget(COUNTING, VOCAB)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("ms", [2.0, 15.0, 60.0])
def test_a_drafter_that_is_always_wrong_costs_next_to_nothing(ticker, ms, batch):
    plain = timed(ticker, make(ticker, NoDrafter()), batch)
    engine = make(ticker, Slow(AlwaysWrong(counting()), ticker, ms, reading=0.5), adaptive(ms=ms, reading=0.5))
    first, second, third = (timed(ticker, engine, batch) / plain for _ in range(3))
    assert first < 1.06, "learning it takes a few rounds, once"
    assert second < 1.02 and third < 1.02


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("wrong", [None, 0, 1, 3, 5])
@pytest.mark.parametrize("ms", [0.5, 12.0, 30.0])
def test_it_is_as_fast_as_the_best_fixed_length(ticker, ms, wrong, batch):
    """The drafter is right except at one position, so the best length is that position or 8, or none. Where even the
    best gains but a few percent, plain decoding will do.
    """
    inner = OracleDrafter(counting()) if wrong is None else WrongAt(counting(), wrong)
    took = [timed(ticker, make(ticker, Slow(inner, ticker, ms), k=k), batch) for k in (0, 1, 2, 3, 5, 8)]
    engine = make(ticker, Slow(inner, ticker, ms), adaptive(ms=ms))
    timed(ticker, engine, batch)
    assert timed(ticker, engine, batch) < max(1.03 * min(took), min(1.012 * took[0], 1.06 * min(took)))


def test_drafting_at_full_length_stays_at_full_speed(ticker):
    """Nine tokens of ten are guessed right, as by a draft model on code: the adaptive run is not slower than K = 8."""

    class MostlyRight(OracleDrafter):
        def _draft(self, request, budget):
            draft = super()._draft(request, budget)
            start = len(request.tokens)
            tokens = [t if (start + i) % 23 else (t + 1) % VOCAB for i, t in enumerate(draft.tokens)]
            return Draft.chain(tokens)

    inner = MostlyRight(counting())
    full = timed(ticker, make(ticker, Slow(inner, ticker, 5.0)))
    engine = make(ticker, Slow(inner, ticker, 5.0), adaptive(ms=5.0))
    assert timed(ticker, engine) < 1.05 * full
    assert timed(ticker, engine) < 1.01 * full


@pytest.mark.parametrize("make_drafter", [NgramDrafter, SuffixDrafter])
@pytest.mark.parametrize("batch", [1, 8])
def test_lookup_where_nothing_repeats_is_not_slower(ticker, make_drafter, batch):
    """Words come back but never go on the same way: guesses are found, and all of them are wrong."""
    text = [v for i in range(64) for v in (0, 1, 2 + i)]
    following = dict(enumerate(text))
    target = TableTarget(
        lambda prefix: torch.nn.functional.one_hot(torch.tensor(following[len(prefix) % len(text)]), 70).double()
    )

    class PacedTable(Paced):
        def __init__(self):
            super().__init__(ticker, FLAT)
            self._logits, self.vocab_size = target._logits, 70

    def run(drafter, budget=None):
        made = Engine(PacedTable(), drafter, auto_rule, max_draft=8, max_batch=8, budget=budget)
        return timed(ticker, made, batch, replace(GREEDY, max_new_tokens=150))

    plain = run(NoDrafter())
    budget = adaptive(free="all")
    ratios = [run(make_drafter(), budget) / plain for _ in range(3)]
    assert max(ratios[1:]) < 1.015 and ratios[0] < 1.02, ratios
    if make_drafter is NgramDrafter:
        assert run(make_drafter()) / plain > 1.02, "without the budget it is"


def test_lookup_where_all_repeats_is_at_full_speed(ticker):
    """The ids count round and round, so after one round everything is a copy."""
    params = replace(GREEDY, max_new_tokens=200)
    full = timed(ticker, make(ticker, NgramDrafter()), params=params)
    assert timed(ticker, make(ticker, NgramDrafter(), adaptive(free="all")), params=params) < 1.02 * full


def test_a_cascade_copies_for_nothing_where_its_model_never_pays(ticker):
    """The model is always wrong and soon left alone; the ids count round and round, and the look-up goes on."""
    params = replace(GREEDY, max_new_tokens=200)
    costs = Calibration(seconds(FLAT), draft_first=0.02, draft_next=0.02)
    cascade = CascadeDrafter([NgramDrafter(), Slow(AlwaysWrong(counting()), ticker, 20.0)], [0.0, 0.2])
    engine = make(ticker, cascade, AdaptiveBudget(Prices(costs), free="some"))
    alone = timed(ticker, make(ticker, NgramDrafter(), adaptive(free="all")), params=params)
    timed(ticker, engine, params=params)
    assert timed(ticker, engine, params=params) < 1.05 * alone


def test_what_becomes_worth_while_is_noticed(ticker):
    """Wrong for 200 tokens, right ever after; the probes see it, and the rest of the text is fast."""

    class Late(OracleDrafter):
        wrong = staticmethod(lambda position: True)

        def _draft(self, request, budget):
            self.wrong = lambda position: len(request.tokens) < 200
            return super()._draft(request, budget)

    engine = make(ticker, Slow(Late(counting()), ticker, 5.0), adaptive(ms=5.0))
    result = engine.generate([[1]], replace(GREEDY, max_new_tokens=600))[0]
    assert result.stats.num_rounds < 200 + 60 + 400 / 6


@pytest.mark.parametrize("told", [1.0, 0.3, 4.0])
def test_wrong_costs_are_put_right_by_the_rounds_themselves(ticker, told):
    """Passes over 9 tokens take three times those over one, whatever was measured; drafts cost 4 times what was told or
    less: the drafter, right two times of three, does not pay, and is soon left alone.
    """
    steep = Curve(((1, 100.0), (9, 300.0), (64, 1700.0)))
    inner = WrongAt(counting(), 2)
    plain = timed(ticker, make(ticker, NoDrafter(), curve=steep))
    engine = make(ticker, Slow(inner, ticker, 100.0), adaptive(FLAT, ms=100.0 / 4 * told), curve=steep)
    timed(ticker, engine)
    timed(ticker, engine)
    assert timed(ticker, engine) / plain < 1.02


def test_a_machine_that_slows_down_does_not_stop_drafting(ticker):
    inner = OracleDrafter(counting())
    engine = make(ticker, Slow(inner, ticker, 5.0), adaptive(ms=5.0))
    timed(ticker, engine)
    for scale in (2.5, 0.7, 3.0):
        ticker.scale = scale
        result = engine.generate([[1]], GREEDY)[0]
        assert result.stats.num_rounds < 1.25 * 128 / 9


def test_sequences_of_one_batch_are_judged_one_by_one(ticker):
    """Three of four are always guessed right, one never: it alone is left out."""

    class Partial(OracleDrafter):
        def _draft(self, request, budget):
            self.wrong = lambda position: request.tokens[0] == 9
            return super()._draft(request, budget)

    engine = make(ticker, Slow(Partial(counting()), ticker, 5.0), adaptive(ms=5.0))
    results = engine.generate([[1], [2], [3], [9]], replace(GREEDY, max_new_tokens=200))
    assert [round(r.stats.acceptance_length) > 6 for r in results] == [True, True, True, False]
    assert results[3].stats.num_drafted < 100, "and tried again now and then"


def test_a_drafter_pays_for_its_reading_of_the_prompt(ticker):
    """Worth it for a long answer, not for a short one, after it is known how much is accepted."""
    inner = OracleDrafter(counting())
    budget = adaptive(ms=20.0, reading=1.0)
    engine = make(ticker, Slow(inner, ticker, 20.0, reading=1.0), budget)
    timed(ticker, engine)
    prompt = [1 + i % 30 for i in range(2000)]
    short = engine.generate([prompt], replace(GREEDY, max_new_tokens=10))[0]
    long = engine.generate([prompt], replace(GREEDY, max_new_tokens=128))[0]
    assert short.stats.num_drafted <= 2 and long.stats.acceptance_length > 5


def test_longer_contexts_make_drafts_shorter():
    """Each query over 10 000 cached tokens costs as much as the weights."""
    costs = Calibration(Curve(((1, 1.0), (9, 1.05))), 64, per_context=1e-4)
    acceptance = Acceptance()
    parts = acceptance.outlook(0, True, 8)
    near, far = (best_parts([Option(length, parts)], Prices(costs))[0][0] for length in (100, 10_000))
    assert near is not None and near.budget == 8
    assert far is None or far.budget < 3


def test_nothing_is_kept_of_ended_sequences(ticker):
    budget = adaptive(ms=5.0)
    engine = make(ticker, Slow(OracleDrafter(counting()), ticker, 5.0), budget)
    for _ in range(3):
        engine.generate([[1], [2]], replace(GREEDY, max_new_tokens=20))
    assert not budget._seen and not budget._acceptance._own


def test_a_round_that_failed_is_not_learned_from(ticker):
    """The drafter raises once; the round is repeated and the counts are those of rounds that happened."""

    class Once(OracleDrafter):
        failed = False

        def propose(self, requests):
            if not self.failed and len(requests[0].tokens) > 12:
                self.failed = True
                raise RuntimeError("once")
            return super().propose(requests)

    engine = make(ticker, Once(counting()), adaptive(ms=1.0))
    engine.add([1], replace(GREEDY, max_new_tokens=40))
    failures = 0
    while engine.num_running or engine.num_waiting:
        try:
            engine.step()
        except RuntimeError:
            failures += 1
    assert failures == 1


# -- estimates --------------------------------------------------------------------------------------------------------


def test_counts_are_conditional_on_the_position_before_and_unbiased_by_short_rounds():
    """Ten rounds ask for 4 and accept 3, two hundred ask for one and accept it: position 2 is not thought worse of."""
    acceptance = Acceptance()
    draft = Draft.chain([1, 2, 3, 4])
    for _ in range(10):
        acceptance.learn(0, True, 4, draft, (0, 1, 2))
    for _ in range(200):
        acceptance.learn(0, True, 1, Draft.chain([1]), (0,))
    parts = acceptance.outlook(0, True, 4)
    gains = [part.gain for part in parts]
    assert gains[1] > 0.8 * gains[0]
    assert gains[0] > 0.95
    assert [part.nodes for part in parts] == sorted((part.nodes for part in parts), reverse=True)


def test_a_tally_forgets_and_never_overflows():
    tally = Tally(0.9)
    for _ in range(2000):
        tally.fade()
        tally.add(0, True)
    for _ in range(40):
        tally.fade()
        tally.add(0, False)
    assert tally.shared(1, 0.7)[0] < 0.15
    assert max(tally.trials) < 1e8


def test_a_new_sequence_begins_with_what_the_others_had_and_soon_has_its_own():
    acceptance = Acceptance()
    draft = Draft.chain([1, 2, 3, 4])
    for _ in range(50):
        acceptance.learn(0, True, 4, draft, ())
    assert acceptance.outlook(1, True, 1)[0].gain < 0.1
    assert acceptance.outlook(1, False, 1)[0].gain == pytest.approx(0.7), "sampled texts are another matter"
    for _ in range(12):
        acceptance.learn(1, True, 4, draft, (0, 1, 2, 3))
    assert acceptance.outlook(1, True, 1)[0].gain > 0.7
    assert acceptance.outlook(0, True, 1)[0].gain < 0.2


def test_words_of_a_drafter_are_taken_for_what_they_turned_out_to_be():
    acceptance = Acceptance()
    sure, unsure = (Draft.chain([1, 2], survival=chances) for chances in ((0.9, 0.81), (0.4, 0.16)))
    assert acceptance.chances(0, True, sure)[0] > acceptance.chances(0, True, unsure)[0]
    for _ in range(30):
        acceptance.learn(0, True, 2, sure, ())
        acceptance.learn(0, True, 2, unsure, (0, 1))
    assert acceptance.chances(0, True, sure)[0] < 0.1 < 0.8 < acceptance.chances(0, True, unsure)[1]


def test_failing_first_guesses_say_nothing_of_how_a_copy_goes_on():
    """Drafts called equally likely at every token: half of them are wrong from the start, the others never."""
    acceptance = Acceptance()
    draft = Draft.chain(range(8), survival=[0.7**n for n in range(1, 9)])
    for n in range(40):
        acceptance.learn(0, True, 8, draft, range(8) if n % 2 else ())
    chances = acceptance.chances(0, True, draft)
    assert 0.4 < chances[0] < 0.6
    assert chances[7] / chances[0] > 0.8


@pytest.mark.parametrize("limit", [0, 1, 3, 9, 70])
def test_a_table_is_the_curve_at_every_number(limit):
    for points in (FLAT.points, FLAT.points[:1], STEPPED.points):
        curve = Curve(points)
        assert curve.table(limit) == pytest.approx([curve.at(m) for m in range(limit + 1)])


def test_noisy_times_make_a_curve_that_rises():
    """Passes over 64 tokens that happened to take less time than those over 32 make nothing cheap or negative."""
    curve = Curve.rising({1: 10.0, 2: 9.0, 8: 12.0, 32: 40.0, 64: 30.0})
    table = curve.table(600)[1:]
    assert all(a <= b for a, b in zip(table, table[1:]))
    assert (curve.at(1), curve.at(8), curve.at(32)) == (9.5, 12.0, 35.0)
    assert curve.at(600) > 5 * curve.at(64)
    assert Curve.rising({1: 3.0}).at(50) == 3.0


# -- calibration ------------------------------------------------------------------------------------------------------


def test_costs_are_measured_by_passes_and_by_proposals() -> None:
    from draftproof.drafters.draft_model import ModelDrafter

    ticker = Ticker()
    target, small = CachedLM(FakeForward(ticker, 10, 0.5), 2), CachedLM(FakeForward(ticker, 2), 2)
    drafter = ModelDrafter(small, VOCAB, VOCAB)
    costs = with_drafter(target_costs(target, 20, clock=ticker), target, drafter, 4, clock=ticker)
    assert costs.passes.at(1) == pytest.approx(10.5e-3) and costs.passes.at(20) == pytest.approx(20e-3)
    assert (costs.draft_first, costs.draft_next) == (pytest.approx(2e-3), pytest.approx(2e-3))
    assert costs.per_context == 0
    assert target.num_busy == small.num_busy == 0


def test_a_busy_machine_does_not_make_further_passes_of_a_chain_dear() -> None:
    """Every longer draft was measured while something else ran; single ones happened not to be."""
    from draftproof.drafters.draft_model import ModelDrafter

    class Disturbed(ModelDrafter):
        def propose(self, requests):
            drafts = super().propose(requests)
            if requests[0].max_nodes == 8:
                ticker.pass_ms(100)
            return drafts

    ticker = Ticker()
    target, small = CachedLM(FakeForward(ticker, 10, 0.5), 2), CachedLM(FakeForward(ticker, 2), 2)
    costs = target_costs(target, 20, clock=ticker)
    costs = with_drafter(costs, target, Disturbed(small, VOCAB, VOCAB), 8, clock=ticker)
    assert costs.draft_first == pytest.approx(2e-3) and costs.draft_next <= 1.5 * costs.draft_first


@pytest.mark.parametrize("drafter", ["self:1", "ngram", "suffix,self:1"])
def test_measuring_leaves_no_trace(drafter: str, tmp_path) -> None:
    """Drafters that write into the target's rows did so on the very text that is continued here."""
    import draftproof as dp
    from draftproof.models.timing import sample_text
    from tiny import save_tiny, tiny_llama

    plain = dp.load(str(save_tiny(tmp_path / "model", tiny_llama(2), tokenizer=False)))
    prompt = sample_text(128, 8) * 5
    params = SamplingParams(temperature=0, max_new_tokens=20)
    expected = plain.generate([prompt], params)[0].token_ids
    engine = dp.load(plain, drafter)
    assert engine.config["adaptive"] and plain.target.num_busy == 0
    assert engine.generate([prompt], params)[0].token_ids == expected


def test_measuring_a_slow_model_ends_in_time() -> None:
    ticker = Ticker()
    costs = target_costs(CachedLM(FakeForward(ticker, 400), 2), 72, clock=ticker)
    assert ticker() < 3
    assert costs.passes.at(1) == pytest.approx(0.4)
