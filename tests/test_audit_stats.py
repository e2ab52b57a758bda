"""The auditor's statistics: against SciPy, against enumeration, and calibrated and powered as they say, by simulation.

Random assertions state their own chance of failing; seeds are fixed, so they fail always or never.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from draftproof.audit.stats import gtest, martingale, pit, power, twosample
from draftproof.audit.verdict import holm
from simulated import tables, texts

RUNS = 500
LEAK, TV = 0.05, 0.3


def within(count, runs, rate, chance=1e-6):
    """Whether so many alarms in so many runs are possible at this rate, but for the given chance."""
    return stats.binom.sf(count - 1, runs, rate) > chance


# -- sample sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("df", "noncentrality"), [(1, 52), (7, 69), (63, 122), (511, 269)])
def test_the_required_noncentrality_gives_the_wanted_power_exactly(df, noncentrality):
    found = power.required_noncentrality(df, 1e-6, 0.99)
    assert found == pytest.approx(noncentrality, abs=0.5)
    assert stats.ncx2.sf(stats.chi2.isf(1e-6, df), df, found) == pytest.approx(0.99, abs=1e-9)


@pytest.mark.parametrize("num_cells", [2, 8, 64])
def test_sample_size_and_smallest_detectable_distance_are_inverse(num_cells):
    draws = power.draws_needed(0.05, num_cells)
    assert power.detectable_tv(draws, num_cells) == pytest.approx(0.05, rel=1e-3)
    assert power.table_power(draws, num_cells, 0.05) == pytest.approx(power.POWER, abs=1e-3)
    tokens = power.tokens_needed(0.015, 0.2)
    assert power.detectable_drift(tokens, 0.2) == pytest.approx(0.015, rel=1e-3)
    assert power.drift_power(tokens, 0.015, 0.2) == pytest.approx(power.POWER, abs=1e-3)


def test_no_law_at_a_distance_has_a_smaller_divergence_than_four_squares():
    """Over many random pairs: sum of difference^2 / p >= 4 TV^2, with equality where it is meant to be."""
    chance = np.random.default_rng(1)
    for _ in range(2000):
        p, other = chance.dirichlet(np.ones(5), 2)
        assert ((other - p) ** 2 / p).sum() >= 4 * (np.abs(other - p).sum() / 2) ** 2 - 1e-12
    p, shift = np.array([0.5, 0.5]), np.array([0.1, -0.1])
    assert (shift**2 / p).sum() == pytest.approx(4 * 0.1**2)


def test_the_predicted_sample_finds_the_worst_law_at_its_distance():
    """Cells of mass 1/2 attain the bound: power .99 by the formula; fewer than 375 of 400 has chance below 1e-5."""
    draws = power.draws_needed(0.05, 2)
    counts = np.random.default_rng(2).binomial(draws, 0.55, 400)
    found = sum(gtest.g_test([c, draws - c], [0.5, 0.5]).p_value < power.ALPHA for c in counts)
    assert found >= 375


# -- the directional test -----------------------------------------------------------------------------------------


def test_the_martingale_has_mean_zero_and_the_stated_variance_by_enumeration():
    """Two tokens of three ids; sets and laws depend on the first."""
    p0, p1 = np.array([0.5, 0.3, 0.2]), np.array([[0.1, 0.6, 0.3], [0.4, 0.4, 0.2], [0.8, 0.1, 0.1]])
    sets = [{0, 2}, {1}, {2}, {0, 1}]
    mean = variance = predicted = 0.0
    for x, y in itertools.product(range(3), repeat=2):
        chance = p0[x] * p1[x, y]
        masses = np.array([sum(p0[i] for i in sets[0]), sum(p1[x, i] for i in sets[1 + x])])
        found = martingale.drift(np.array([x in sets[0], y in sets[1 + x]]), masses)
        mean += chance * found.total
        variance += chance * found.total**2
        predicted += chance * found.variance
    assert mean == pytest.approx(0, abs=1e-15)
    assert variance == pytest.approx(predicted, abs=1e-15)


def test_the_directional_test_raises_no_more_false_alarms_than_it_says():
    """500 systems without a fault, 2 560 tokens each, at three levels."""
    made = tables()
    read = texts(made, RUNS * 20, 128, seed=3)
    p_values = [
        martingale.drift(h.ravel(), m.ravel()).p_value
        for h, m in zip(np.split(read.hits, RUNS), np.split(read.masses, RUNS))
    ]
    for level in (0.05, 0.01, 0.001):
        assert within(sum(p < level for p in p_values), RUNS, level)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("seed", [4, 5])
def test_a_leak_of_five_percent_is_found_with_the_predicted_number_of_tokens(seed):
    """At TV 0.3 the drift is .015 a token; power .99 by the formula, so fewer than 95 of 100 has chance below 1e-3."""
    made = tables(tv=TV, seed=seed)
    needed = power.tokens_needed(LEAK * TV)
    assert 30_000 < needed < 40_000
    length = 128
    each = math.ceil(needed / length)
    read = texts(made, 100 * each, length, LEAK, seed=seed)
    runs = [
        martingale.drift(h.ravel()[:needed], m.ravel()[:needed])
        for h, m in zip(np.split(read.hits, 100), np.split(read.masses, 100))
    ]
    assert sum(run.p_value < power.ALPHA and run.total > 0 for run in runs) >= 95
    assert np.mean([run.per_token for run in runs]) == pytest.approx(LEAK * TV, rel=0.05)


def test_the_bound_on_the_drift_holds_as_often_as_it_says():
    """A true drift of .015 above its own bound at confidence .95: at most 5 % of 500, but for a chance of 1e-6."""
    made = tables(seed=4)
    read = texts(made, RUNS * 20, 64, LEAK, seed=6)
    bounds = [
        martingale.drift(h.ravel(), m.ravel()).bound(0.95)
        for h, m in zip(np.split(read.hits, RUNS), np.split(read.masses, RUNS))
    ]
    assert within(sum(bound < LEAK * TV for bound in bounds), RUNS, 0.05)


def test_few_tokens_are_judged_by_an_inequality_and_impossible_ones_at_once():
    rare = martingale.drift(np.array([True] * 3 + [False] * 997), np.full(1000, 0.001))
    assert rare.variance < martingale.FEW
    assert rare.p_value > stats.binom.sf(2, 1000, 0.001), "the inequality must not say more than the exact tail"
    assert martingale.drift(np.array([True]), np.array([0.0])).p_value == 0
    assert martingale.drift(np.array([True, False]), np.array([1.0, 0.0])).p_value == 1
    assert martingale.drift(np.zeros(0, dtype=bool), np.zeros(0)).p_value == 1


def test_what_two_runs_share_cancels():
    """Both drift by the same .05 against the reading target (another precision, say): no difference between them."""
    chance = np.random.default_rng(7)
    masses = np.full(20_000, 0.4)
    one, other = (martingale.drift(chance.random(20_000) < 0.45, masses) for _ in range(2))
    assert one.p_value < 1e-9 and other.p_value < 1e-9
    assert martingale.relative(one, other).p_value > 1e-3
    leaking = martingale.drift(chance.random(20_000) < 0.5, masses)
    assert martingale.relative(leaking, one).p_value < 1e-9
    assert martingale.relative(one, one).per_token == 0


# -- transforms ---------------------------------------------------------------------------------------------------


def test_transforms_of_a_sound_system_are_uniform_and_independent():
    """500 systems; both tests keep their level."""
    read = texts(tables(), RUNS * 10, 128, seed=8)
    ks, serial = [], []
    for part in np.split(read.u, RUNS):
        ks.append(pit.uniformity(part.ravel()).p_value)
        serial.append(pit.serial_correlation(list(part)).p_value)
    for p_values in (ks, serial):
        for level in (0.05, 0.01):
            assert within(sum(p < level for p in p_values), RUNS, level)
        assert stats.kstest(p_values, "uniform").pvalue > 1e-6


def test_uniformity_is_scipys_and_its_band_holds():
    u = np.random.default_rng(9).random(500)
    assert pit.uniformity(u).p_value == stats.kstest(u, "uniform").pvalue
    assert pit.dkw(1000, 0.95) == pytest.approx(math.sqrt(math.log(40) / 2000))
    beyond = sum(stats.kstest(np.random.default_rng(i).random(200), "uniform").statistic > pit.dkw(200, 0.95)
                 for i in range(RUNS))  # fmt: skip
    assert within(beyond, RUNS, 0.05)


def test_a_leak_bends_the_transforms_by_at_least_the_stated_power():
    """The order by p/q puts the whole leak at one place, where the distribution function is off by e TV on average."""
    made = tables(tv=TV)
    needed = 60_000
    predicted = power.distribution_power(needed, LEAK * TV)
    read = texts(made, 40 * needed // 100, 100, LEAK, seed=10)
    found = sum(pit.uniformity(part.ravel()).p_value < power.ALPHA for part in np.split(read.u, 40))
    assert 0.9 < predicted < 1
    assert stats.binom.cdf(found, 40, predicted) > 1e-6


def test_noise_used_twice_is_seen_by_neighbours_alone():
    """Each token right by itself, every second one picked by its neighbour's noise: uniform, but not independent.

    10 000 pairs, correlation 1/2 on average: z far beyond 20; the marginal test keeps its level, but for 1e-4.
    """
    made = tables()
    fresh = np.random.default_rng(11).random((200, 50))
    noise = np.repeat(fresh, 2, axis=1)
    read = texts(made, 200, 100, seed=12, noise=noise)
    flat = texts(tables(seed=2), 200, 100, seed=12, noise=noise)
    assert pit.uniformity(read.u[:, ::2].ravel()).p_value > 1e-4
    assert max(pit.serial_correlation(list(t.u)).z ** 2 for t in (read, flat)) > 25


def test_what_two_runs_share_in_their_neighbours_cancels():
    """Both read by a target that is a little off, so both correlate: not with each other; 2 x 20 000 pairs, 6 sigma."""
    chance = np.random.default_rng(21)
    drifting = [np.repeat(chance.random((2000, 1)), 11, axis=1) * 0.3 + chance.random((2000, 11)) * 0.7 for _ in "ab"]
    one, other = (pit.serial_correlation(list(u)) for u in drifting)
    assert one.p_value < 1e-9 and other.p_value < 1e-9
    assert abs(pit.relative(one, other).z) < 6
    assert pit.relative(one, pit.serial_correlation(list(chance.random((2000, 11))))).p_value < 1e-9
    assert pit.relative(one, pit.serial_correlation([])).p_value == 1


def test_the_serial_statistic_has_the_stated_moments():
    """4 000 texts of 3: mean 0 and variance 1 of z, within 6 deviations."""
    z = [pit.serial_correlation([u]).z for u in np.random.default_rng(13).random((4000, 3))]
    assert np.mean(z) == pytest.approx(0, abs=6 / math.sqrt(4000))
    assert np.var(z) == pytest.approx(1, abs=0.3)
    assert pit.serial_correlation([np.array([0.3])]).p_value == 1


# -- counts -------------------------------------------------------------------------------------------------------


def test_the_g_test_is_scipys():
    law = np.array([0.4, 0.3, 0.2, 0.1])
    counts = np.random.default_rng(14).multinomial(500, law)
    found = gtest.g_test(counts, law)
    theirs = stats.power_divergence(counts, 500 * law, lambda_="log-likelihood")
    assert found.g == pytest.approx(theirs.statistic) and found.p_value == pytest.approx(theirs.pvalue)
    assert found.df == 3 and found.tv == pytest.approx(np.abs(counts / 500 - law).sum() / 2)


def test_small_cells_are_pooled_and_impossible_ones_are_not():
    law = [0.9, 0.06, 0.02, 0.01, 0.01]
    found = gtest.g_test([90, 6, 2, 1, 1], law)
    assert found.df == 1 and found.p_value > 0.9  # the small ones expect 4, so they take the 6 in too
    assert gtest.g_test([90, 5, 2, 2, 1], [0.9, 0.05, 0.02, 0.02, 0.01]).df == 2  # 90, 5, and 5 of the others
    assert gtest.g_test([1, 0], [0.5, 0.5]).df == 0
    impossible = gtest.g_test([99, 1, 0], [0.5, 0.0, 0.5])
    assert impossible.p_value == 0 and math.isinf(impossible.g)


def test_the_bootstrap_is_the_exact_test_of_a_small_table():
    """Twelve counts in three cells, every table enumerated; 20 000 tables, so 6 deviations are .021."""
    law, counts = np.array([0.5, 0.25, 0.25]), np.array([9, 2, 1])
    exact = 0.0
    observed = 2 * sum(c * math.log(c / (12 * p)) for c, p in zip(counts, law))
    pooled = gtest.g_test(counts, law, bootstrap=20_000)
    if pooled.df == 2:
        pytest.fail("cells of three expected counts must be pooled")
    both = np.array([9, 3])
    observed = 2 * sum(c * math.log(c / 6) for c in both)
    for k in range(13):
        g = 2 * sum(c * math.log(c / 6) for c in (k, 12 - k) if c)
        if g >= observed - 1e-9:
            exact += stats.binom.pmf(k, 12, 0.5)
    assert pooled.p_value == pytest.approx(exact, abs=0.021)


def test_the_g_test_keeps_its_level():
    law = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    draws = np.random.default_rng(15).multinomial(2000, law, RUNS)
    p_values = [gtest.g_test(counts, law).p_value for counts in draws]
    for level in (0.05, 0.01):
        assert within(sum(p < level for p in p_values), RUNS, level, 1e-5)


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_the_certificate_covers_the_true_distance(shift):
    """Over 500 systems, sound and not, the certified distance is below the true one at most as often as it may be."""
    law = np.full(8, 1 / 8)
    true = law + shift / 4 * np.array([1, 1, 1, 1, -1, -1, -1, -1])
    short = 0
    for counts in np.random.default_rng(16).multinomial(3000, true, RUNS):
        tv = gtest.g_test(counts, law).tv
        short += gtest.certificate(tv, 3000, 8, 0.95) < np.abs(true - law).sum() / 2
    assert within(short, RUNS, 0.05)
    assert gtest.certificate(0.0, 10**6, 8, 1 - 1e-6) == pytest.approx(0.004, abs=5e-4)


# -- two samples --------------------------------------------------------------------------------------------------


def prompts_of(tokens, num_prompts):
    return [[list(map(int, text)) for text in part] for part in np.split(tokens, num_prompts)]


def test_the_permutation_p_value_is_the_share_of_all_relabellings():
    """Two and two texts: six labellings, enumerated; 20 000 random ones, so 6 deviations are .02."""
    ours, theirs = [[[0, 1], [0, 1]]], [[[0, 2], [3, 1]]]
    found = twosample.two_sample(ours, theirs, exchanges=20_000)
    counts = twosample._counts([*ours[0], *theirs[0]])
    labels = np.array(
        [[i in chosen for i in range(4)] for chosen in itertools.combinations(range(4), 2)], dtype=np.float32
    )
    values = twosample._distance(labels, counts)
    assert found.p_value == pytest.approx((values >= values[0] - 1e-6).mean(), abs=0.02)


def test_two_samples_of_one_law_are_told_apart_no_more_often_than_said():
    """500 pairs of systems with one law: permutation p-values keep their level exactly."""
    made = tables(vocab_size=6)
    alarms = {0.05: 0, 0.01: 0}
    tokens = texts(made, RUNS * 48, 8, seed=17).tokens
    for i, part in enumerate(np.split(tokens, RUNS)):
        one, other = prompts_of(part[:24], 4), prompts_of(part[24:], 4)
        p = twosample.two_sample(one, other, exchanges=299, seed=i).p_value
        for level in alarms:
            alarms[level] += p <= level
    assert all(within(count, RUNS, level) for level, count in alarms.items())


def test_two_different_laws_are_told_apart_and_one_text_a_prompt_is_not_enough():
    """A system that always emits draft tokens, TV .5 a token: p-values at their smallest."""
    made = tables(vocab_size=6, tv=0.5)
    sound, leaking = texts(made, 400, 8, seed=18).tokens, texts(made, 400, 8, leak=1.0, seed=19).tokens
    found = twosample.two_sample(prompts_of(sound, 10), prompts_of(leaking, 10), exchanges=999)
    assert found.p_value == 1 / 1000 and found.statistic > 5
    assert (found.num_prompts, found.num_each) == (10, 400)
    assert twosample.two_sample(prompts_of(sound[:10], 10), prompts_of(leaking[:10], 10), 99).p_value == 1


# -- many tests ---------------------------------------------------------------------------------------------------


def test_holm_adjusts_as_by_hand_and_keeps_the_familys_level():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 1e-5]) == pytest.approx([0.5, 2e-5]) and holm([]) == []
    families = np.random.default_rng(20).random((RUNS, 7))
    assert within(sum(min(holm(list(family))) < 0.05 for family in families), RUNS, 0.05)
