"""Estimators: golden values of shared/facts/auditing.md, closed forms, and coverage on mechanisms whose ε is known.

Coverage: 1,000 audits at 95 %. Of a valid bound more than 85 exceed the truth with a probability below 1.5e-6; where a
sum over all counts is as cheap, coverage is computed exactly instead, at 1 − 1e-6 too. Seeds were chosen once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from adadpigu.accounting import calibrate, epsilon, plan_for
from adadpigu.accounting.closed_forms import gaussian_delta, gaussian_epsilon, gaussian_sigma
from adadpigu.accounting.pld import pld_epsilon, privacy_profile
from adadpigu.accounting.spending import Spending, spending_of
from adadpigu.audit.estimators import (
    Curve,
    Errors,
    Scores,
    Trial,
    claim_curve,
    epsilon_from_errors,
    fewest_for_mu,
    fewest_guesses,
    fewest_observations,
    gaussian_curve,
    gaussian_mu,
    hull_vertices,
    largest_over_hull,
    largest_over_trials,
    largest_refuted,
    mu_epsilon,
    one_run_epsilon,
    one_run_mu,
    one_run_refutes,
    one_run_refutes_curve,
    one_run_refutes_gaussian,
    profile_curve,
    rate_above,
)
from adadpigu.errors import InputError

DELTA = 1e-5
AUDITS, ALLOWED = 1000, 85
CERTAIN = 1e-6

Generator = np.random.Generator


def too_many(exceeds: Callable[[Generator], bool], seed: int) -> bool:
    """Whether more audits than a valid 95 % bound allows show more than the truth."""
    generator = np.random.default_rng(seed)
    return sum(exceeds(generator) for _ in range(AUDITS)) > ALLOWED


def ideal(count: int, mu: float) -> tuple[Scores, Scores]:
    """Scores N(μ, 1) and N(0, 1) at quantile midpoints."""
    out: Scores = norm.ppf((np.arange(count) + 0.5) / count)
    return out + mu, out


def expected(count: int, mu: float, threshold: float) -> Errors:
    """The errors of a threshold between N(0, 1) and N(μ, 1), rounded."""
    alarms, misses = round(count * norm.sf(threshold)), round(count * norm.cdf(threshold - mu))
    return Errors(false_alarms=alarms, without=count, misses=misses, within=count)


def ends(scores: Scores, present: np.ndarray, a_side: int) -> Trial:
    """ "in" of the highest scores, "out" of the lowest."""
    order = np.argsort(scores)
    right = present[order[-a_side:]].sum() + (~present[order[:a_side]]).sum()
    return Trial(canaries=len(scores), guesses=2 * a_side, right=int(right))


# golden values


@pytest.mark.parametrize(
    ("shift", "vertices", "one_run", "curve"), [(1.0, 386, 1.13346, 2.164749), (2.0, 374, 2.311945, 4.7218075)]
)
def test_ten_thousand_ideal_scores_a_world_give_the_golden_values(
    shift: float, vertices: int, one_run: float, curve: float
) -> None:
    within, without = ideal(10_000, shift)
    assert len(hull_vertices(within, without)) == vertices
    found = largest_over_hull(
        within,
        without,
        lambda value, trial, level: one_run_refutes(value, trial, 1e-6, level),
        significance=0.05,
        most=60,
    )
    assert found == pytest.approx(one_run, abs=1e-6)
    mu = largest_over_hull(within, without, one_run_refutes_gaussian, significance=0.05, most=20)
    assert mu_epsilon(mu, 1e-6) == pytest.approx(curve, abs=1.5e-6)


@pytest.mark.parametrize(("observations", "shown"), [(3_000, 6.63), (12_000, 7.31), (48_000, 7.65)])
def test_white_box_observations_of_a_perfect_run_show_what_they_should(observations: int, shown: float) -> None:
    plan = plan_for(0.02, 3000)
    sigma = calibrate(plan, epsilon=8.0, delta=DELTA).noise_multiplier
    mu = gaussian_mu(expected(observations, 1 / sigma, 0.5 / sigma), 0.05)
    assert epsilon(plan(1 / mu).event(), DELTA) == pytest.approx(shown, abs=0.02)


def test_a_thousand_perfect_runs_a_world_show_what_they_should() -> None:
    mu = 1 / gaussian_sigma(8.0, DELTA)
    assert mu_epsilon(gaussian_mu(expected(1000, mu, mu / 2), 0.05), DELTA) == pytest.approx(6.98, abs=0.02)
    assert epsilon_from_errors(expected(1000, mu, 2.7), DELTA, 0.05) == pytest.approx(2.69, abs=0.005)


@pytest.mark.parametrize(("canaries", "a_side", "pure", "curve"), [(1000, 60, 2.94, 4.75), (5000, 250, 3.57, 5.26)])
def test_one_run_with_ideal_scores_shows_about_what_it_should(
    canaries: int, a_side: int, pure: float, curve: float
) -> None:
    mu, generator = 1 / gaussian_sigma(8.0, DELTA), np.random.default_rng(11)
    trials = []
    for _ in range(200):
        present = generator.random(canaries) < 0.5
        trials.append(ends(generator.normal(size=canaries) + mu * present, present, a_side))
    one_run = cache(lambda trial: one_run_epsilon(trial, DELTA, 0.05))
    by_curve = cache(lambda trial: mu_epsilon(one_run_mu(trial, 0.05), DELTA))
    assert np.mean([one_run(trial) for trial in trials]) == pytest.approx(pure, abs=0.1)
    assert np.mean([by_curve(trial) for trial in trials]) == pytest.approx(curve, abs=0.15)


# coverage, simulated


def test_the_check_itself_is_sized_for_its_false_alarms() -> None:
    assert 5e-7 < binom.sf(ALLOWED, AUDITS, 0.05) < 1.5e-6


@pytest.mark.parametrize(("mu", "count"), [(0.0, 400), (1.0, 50), (1.0, 5_000), (4.0, 300)])
def test_gaussian_mu_covers(mu: float, count: int) -> None:
    shown = cache(lambda alarms, misses: gaussian_mu(_errors(alarms, misses, count), 0.05))
    rate = norm.cdf(-mu / 2)
    assert not too_many(lambda g: shown(*g.binomial(count, rate, 2).tolist()) > mu, seed=101)


@pytest.mark.parametrize(("true", "count"), [(0.0, 100), (1.0, 1000), (4.0, 200)])
def test_epsilon_from_errors_covers_randomised_response(true: float, count: int) -> None:
    shown = cache(lambda alarms, misses: epsilon_from_errors(_errors(alarms, misses, count), 0.0, 0.05))
    rate = 1 / (1 + math.exp(true))
    assert not too_many(lambda g: shown(*g.binomial(count, rate, 2).tolist()) > true, seed=102)


def test_epsilon_from_errors_covers_a_gaussian_at_its_delta() -> None:
    mu, delta, count = 1.5, 0.05, 500
    true = gaussian_epsilon(1 / mu, delta)
    threshold = true / mu + mu / 2  # where the likelihood ratio is e^ε: the test that is tight at δ
    rates = [norm.sf(threshold), norm.cdf(threshold - mu)]
    shown = cache(lambda alarms, misses: epsilon_from_errors(_errors(alarms, misses, count), delta, 0.05))
    assert not too_many(lambda g: shown(*g.binomial(count, rates).tolist()) > true, seed=103)


@pytest.mark.parametrize(
    ("true", "canaries", "delta"), [(0.0, 1000, 0.0), (0.5, 1000, 0.0), (2.0, 100, 0.0), (2.0, 200, 1e-4)]
)
def test_one_run_covers_randomised_response(true: float, canaries: int, delta: float) -> None:
    """Every canary is told truly with e^ε/(1 + e^ε), and given away with δ: tight at δ = 0."""
    chance = delta + (1 - delta) / (1 + math.exp(-true))
    shown = cache(lambda right: one_run_epsilon(_trial(canaries, canaries, right), delta, 0.05))
    assert not too_many(lambda g: shown(int(g.binomial(canaries, chance))) > true, seed=104)


@pytest.mark.parametrize("true", [0.5, 2.0])
def test_one_run_by_a_curve_covers_randomised_response(true: float) -> None:
    """The curve of pure ε, for which the recursion is tight."""
    curve, canaries = profile_curve([true], [0.0]), 300
    refuted = cache(lambda right: one_run_refutes_curve(curve, _trial(canaries, canaries, right), 0.05))
    assert not too_many(lambda g: refuted(int(g.binomial(canaries, 1 / (1 + math.exp(-true))))), seed=105)


@pytest.mark.parametrize(("mu", "canaries", "a_side"), [(0.5, 200, 100), (2.0, 200, 30), (0.0, 50, 25)])
def test_one_run_by_a_gaussian_curve_covers_independent_gaussians(mu: float, canaries: int, a_side: int) -> None:
    shown = cache(lambda trial: one_run_mu(trial, 0.05))

    def exceeds(generator: Generator) -> bool:
        present = generator.random(canaries) < 0.5
        return shown(ends(generator.normal(size=canaries) + mu * present, present, a_side)) > mu

    assert not too_many(exceeds, seed=106)


def test_one_run_by_the_claims_own_curve_covers_sampled_gaussians() -> None:
    """Canaries in a composed plan, scored by their exact likelihood ratio."""
    rate, sigma, steps, canaries, a_side = 0.2, 0.7, 12, 120, 20
    curve = claim_curve(plan_for(rate, steps)(sigma).event())
    refuted = cache(lambda trial: one_run_refutes_curve(curve, trial, 0.05))

    def exceeds(generator: Generator) -> bool:
        present = generator.random(canaries) < 0.5
        drawn = (generator.random((canaries, steps)) < rate) & present[:, None]
        seen = drawn + sigma * generator.normal(size=(canaries, steps))
        scores = np.log1p(rate * np.expm1((seen - 0.5) / sigma**2)).sum(axis=1)
        return refuted(ends(scores, present, a_side))

    assert not too_many(exceeds, seed=107)


def test_wald_instead_of_clopper_pearson_is_caught() -> None:
    true, count = 4.0, 200
    rate = 1 / (1 + math.exp(true))

    def exceeds(generator: Generator) -> bool:
        wrong = generator.binomial(count, rate, 2) / count
        alarms, misses = wrong + norm.isf(0.025) * np.sqrt(wrong * (1 - wrong) / count)
        return min(alarms, misses) == 0 or math.log(max((1 - misses) / alarms, (1 - alarms) / misses)) > true

    assert too_many(exceeds, seed=102)


def test_a_threshold_chosen_on_the_scores_that_are_counted_is_caught() -> None:
    true, canaries = 1.0, 400
    shown = cache(lambda guesses, right: one_run_epsilon(_trial(canaries, guesses, right), 0.0, 0.05))

    def exceeds(generator: Generator) -> bool:
        right = np.cumsum(generator.random(canaries) < 1 / (1 + math.exp(-true)))
        return any(shown(guesses, int(right[guesses - 1])) > true for guesses in range(10, canaries + 1, 10))

    assert too_many(exceeds, seed=109)


def test_the_same_choice_paid_for_by_bonferroni_covers() -> None:
    true, canaries = 1.0, 400
    pure = cache(lambda value, trial, level: one_run_refutes(value, trial, 0.0, level))

    def exceeds(generator: Generator) -> bool:
        right = np.cumsum(generator.random(canaries) < 1 / (1 + math.exp(-true)))
        trials = [_trial(canaries, guesses, int(right[guesses - 1])) for guesses in range(10, canaries + 1, 10)]
        return any(pure(true, trial, 0.05 / len(trials)) for trial in trials)

    assert not too_many(exceeds, seed=109)


# coverage, exact


@pytest.mark.parametrize("significance", [0.05, CERTAIN])
@pytest.mark.parametrize("trials", [1, 7, 400])
def test_clopper_pearson_covers_every_rate_and_no_wider_than_it_must(trials: int, significance: float) -> None:
    bounds = np.array([rate_above(errors, trials, significance) for errors in range(trials + 1)])
    assert np.all(np.diff(bounds) > 0)
    for rate in np.concatenate([np.linspace(0, 1, 501), bounds * (1 + 1e-9), bounds * (1 - 1e-9)]).clip(0, 1):
        below = int((bounds < rate).sum())
        assert binom.cdf(below - 1, trials, rate) <= significance * (1 + 1e-6)
    inside = bounds[:-1]
    assert binom.cdf(np.arange(trials), trials, inside) == pytest.approx(significance, rel=1e-8)


@pytest.mark.parametrize("significance", [0.05, CERTAIN])
@pytest.mark.parametrize(("true", "guesses"), [(0.0, 1), (0.0, 60), (1.0, 60), (1.0, 1000), (4.0, 400)])
def test_one_run_on_randomised_response_is_the_binomial_test(true: float, guesses: int, significance: float) -> None:
    """Pure ε refutes from the first count on that is rarer than `significance`, the curve at most two counts later."""
    chance, counts = 1 / (1 + math.exp(-true)), np.arange(guesses + 1)
    rare = binom.sf(counts - 1, guesses, chance) < significance
    pure = [one_run_refutes(true, _trial(guesses, guesses, right), 0.0, significance) for right in counts.tolist()]
    assert pure == rare.tolist()
    curve, first = profile_curve([true], [0.0]), guesses + 1 - int(rare.sum())
    by_curve = {
        right: one_run_refutes_curve(curve, _trial(guesses, guesses, right), significance)
        for right in range(max(0, first - 3), min(guesses, first + 3) + 1)
    }
    assert not any(by_curve[right] for right in by_curve if right < first)
    assert all(by_curve[right] for right in by_curve if right >= min(guesses, first + 2) and right >= first)


@pytest.mark.parametrize("significance", [0.2, 0.05, CERTAIN])
@pytest.mark.parametrize("canaries", [1, 2, 5, 20, 200])
@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
def test_one_run_by_a_gaussian_curve_never_refutes_what_is_no_rarer(
    mu: float, canaries: int, significance: float
) -> None:
    """Independent Gaussians, a guess about each: the number of right ones is binomial with Φ(μ/2)."""
    right = 0
    while binom.sf(right - 1, canaries, norm.cdf(mu / 2)) > significance * (1 + 1e-9) and right < canaries:
        assert not one_run_refutes_gaussian(mu, _trial(canaries, canaries, right), significance)
        right += 1
    assert right > 0


def test_canaries_that_nobody_guessed_about_change_pure_epsilon_only_through_delta() -> None:
    assert one_run_epsilon(_trial(100, 80, 70), 0.0, 0.05) == one_run_epsilon(_trial(9000, 80, 70), 0.0, 0.05)
    few, many = (one_run_epsilon(_trial(canaries, 80, 70), DELTA, 0.05) for canaries in (100, 9000))
    assert many < few < one_run_epsilon(_trial(100, 80, 70), 0.0, 0.05)


def test_the_price_of_delta_is_the_formula() -> None:
    """Against the sum written out, on counts small enough for one."""
    trial, delta, true = _trial(30, 12, 11), 1e-3, 0.7
    law = binom(12, 1 / (1 + math.exp(-true)))
    slack = max(sum(law.pmf(w) for w in range(11 - i, 11)) / i for i in range(1, 12))
    chance = law.sf(10) + 2 * 30 * delta * slack
    assert one_run_refutes(true, trial, delta, chance * (1 + 1e-9))
    assert not one_run_refutes(true, trial, delta, chance * (1 - 1e-9))


@pytest.mark.parametrize("delta", [CERTAIN, 1e-3])
def test_one_run_says_nothing_about_epsilon_where_delta_explains_it_all(delta: float) -> None:
    for guesses in (10, 1000):
        assert one_run_epsilon(Trial.flawless(1000, guesses), delta, 2 * delta) == 0
    assert one_run_epsilon(Trial.flawless(1000, 1000), delta, 10 * delta) > 0


# curves


POWERS = (1e-12, 1e-6, 0.01, 0.2, 0.5, 0.8, 0.99, 1 - 1e-6)


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0])
def test_a_gaussians_profile_gives_its_curve_and_never_more(mu: float) -> None:
    epsilons = np.linspace(0.0, 12 * mu + mu**2, 4000).tolist()
    curve = profile_curve(epsilons, [gaussian_delta(1 / mu, value) for value in epsilons])
    exact = gaussian_curve(mu)
    for power in POWERS:
        assert curve(power) == pytest.approx(exact(power), rel=1e-4)
        assert curve(power) <= exact(power) * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "sigma"), [(0.3, 0.8), (0.02, 0.9), (0.9, 3.0)])
def test_the_claims_curve_lies_below_both_directions_and_touches_the_worse(rate: float, sigma: float) -> None:
    """One sampled Gaussian, whose trade-off is known: N(0, σ²) against (1 − q)N(0, σ²) + qN(1, σ²)."""
    curve = claim_curve(plan_for(rate, 1)(sigma).event())
    thresholds = np.linspace(-5, 6, 400)
    low, high = norm.cdf(thresholds), norm.cdf(thresholds - 1 / sigma)
    plain, mixed = low, (1 - rate) * low + rate * high
    removing, adding = zip(1 - plain, 1 - mixed, strict=True), zip(mixed, plain, strict=True)
    gaps = {"removing": 1.0, "adding": 1.0}
    for name, points in (("removing", removing), ("adding", adding)):
        for level, power in points:
            assert curve(power) <= level + 1e-9
            gaps[name] = min(gaps[name], (level - curve(power)) / level) if level > 1e-4 else gaps[name]
    assert gaps["removing"] < 1e-3
    assert gaps["adding"] < 1e-3


@pytest.mark.parametrize(
    "make", [lambda: gaussian_curve(1.0), lambda: claim_curve(plan_for(0.2, 5)(0.8).event())], ids=["gaussian", "claim"]
)
def test_curves_are_convex_increasing_and_their_own_mirror_image(make: Callable[[], Curve]) -> None:
    curve = make()
    powers = np.linspace(0.0, 1.0, 401)
    levels = np.array([curve(power) for power in powers])
    assert levels[0] == 0
    assert np.all(np.diff(levels) >= 0)
    assert np.all(np.diff(levels, 2) >= -1e-12)
    assert np.all(levels <= powers)
    for power, level in zip(powers, levels, strict=True):
        if 1e-6 < level < 1 - 1e-6:
            assert curve(1 - level) == pytest.approx(1 - power, abs=1e-5)


def test_the_claims_curve_refutes_more_than_the_gaussian_of_the_same_epsilon() -> None:
    plan = plan_for(0.02, 3000)
    claim = claim_curve(plan(calibrate(plan, epsilon=8.0, delta=DELTA).noise_multiplier).event())
    gaussian = gaussian_curve(1 / gaussian_sigma(8.0, DELTA))
    by_claim, by_gaussian = (
        next(v for v in range(980, 1001) if one_run_refutes_curve(curve, _trial(5000, 1000, v), 0.05))
        for curve in (claim, gaussian)
    )
    assert 980 < by_claim < by_gaussian


def test_no_privacy_gives_a_curve_that_nothing_refutes_and_no_release_one_that_a_coin_meets() -> None:
    nothing = claim_curve(plan_for(0.1, 10)(0.0).event())
    assert not one_run_refutes_curve(nothing, Trial.flawless(1000, 1000), 0.05)
    free = claim_curve(plan_for(0.0, 10)(1.0).event())
    assert [free(power) for power in POWERS] == pytest.approx(POWERS)


@pytest.mark.parametrize(("rate", "sigma"), [(0.3, 1.0), (0.02, 0.9), (0.999999, 1.0)])
def test_a_profile_is_the_closed_form_of_one_sampled_gaussian(rate: float, sigma: float) -> None:
    spending = spending_of(plan_for(rate, 1)(sigma).event())
    epsilons = [0.0, 0.001, 0.5, 1.0, 2.0, 4.0]
    exact = [rate * gaussian_delta(sigma, math.log1p(math.expm1(value) / rate)) for value in epsilons]
    found = privacy_profile(spending, epsilons, 1e-3)  # all of them on the grid, where the rounding is exact
    assert found == pytest.approx(exact, abs=2e-12, rel=1e-9)
    assert all(delta >= true for delta, true in zip(found, exact, strict=True))


def test_a_profile_of_an_unsampled_gaussian_is_its_closed_form() -> None:
    spending = spending_of(plan_for(1.0, 4)(2.0).event())
    assert privacy_profile(spending, [0.0, 1.0, 3.0], 1e-4) == [gaussian_delta(1.0, value) for value in (0.0, 1.0, 3.0)]


def test_a_profile_undoes_epsilon() -> None:
    spending = Spending(private=True, precision=0.04, sampled=((0.02, 1.0, 500), (0.1, 2.0, 30)))
    deltas = [1e-2, 1e-4, 1e-7]
    epsilons = [pld_epsilon(spending, delta, 1e-3) for delta in deltas]
    assert privacy_profile(spending, epsilons, 1e-3) == pytest.approx(deltas, rel=1e-4)


def test_a_draw_with_next_to_no_noise_gives_the_record_away_whenever_it_is_drawn() -> None:
    spending = Spending(private=True, precision=0.0, sampled=((0.001, 1e-3, 2), (0.1, 2.0, 3)))
    rest = Spending(private=True, precision=0.0, sampled=((0.1, 2.0, 3),))
    drawn = 1 - 0.999**2
    found, without = (privacy_profile(each, [0.0, 0.5], 1e-3) for each in (spending, rest))
    assert found == pytest.approx([drawn + delta for delta in without])
    barely = Spending(private=True, precision=1e6, sampled=((0.1, 2.0, 3),))
    assert privacy_profile(barely, [0.0, 50.0], 1e-3) == [1.0, 1.0]


# properties


@given(
    count=st.integers(1, 300), errors=st.integers(0, 299), other=st.integers(0, 300), delta=st.sampled_from([0.0, 0.01])
)
def test_more_errors_show_less_and_more_certainty_shows_less(count: int, errors: int, other: int, delta: float) -> None:
    errors, other = errors % count, other % (count + 1)
    better, worse = _errors(errors, other, count), _errors(errors + 1, other, count)
    for estimate in (gaussian_mu, partial(_plain, delta)):
        assert estimate(worse, 0.05) <= estimate(better, 0.05)
        assert estimate(better, CERTAIN) <= estimate(better, 0.05)
        assert estimate(better, 0.05) == estimate(_errors(other, errors, count), 0.05)
        assert 0 <= estimate(better, 0.05) < math.inf


@settings(deadline=None, max_examples=40)
@given(
    guesses=st.integers(1, 80), right=st.integers(0, 79), idle=st.integers(0, 50), delta=st.sampled_from([0.0, 1e-4])
)
def test_more_right_guesses_show_more_and_more_certainty_shows_less(
    guesses: int, right: int, idle: int, delta: float
) -> None:
    right %= guesses
    fewer, more = _trial(guesses + idle, guesses, right), _trial(guesses + idle, guesses, right + 1)
    for estimate in (one_run_mu, lambda trial, level: one_run_epsilon(trial, delta, level)):
        assert estimate(fewer, 0.05) <= estimate(more, 0.05)
        assert estimate(more, CERTAIN) <= estimate(more, 0.05)
        assert 0 <= estimate(more, 0.05) < 30


@settings(deadline=None, max_examples=60)
@given(
    guesses=st.integers(1, 200),
    right=st.integers(0, 200),
    idle=st.integers(0, 10_000),
    delta=st.sampled_from([0.0, 1e-6, 1e-3, 0.1]),
    significance=st.sampled_from([0.1, 0.05, CERTAIN]),
)
def test_what_one_run_refutes_is_everything_below_some_epsilon(
    guesses: int, right: int, idle: int, delta: float, significance: float
) -> None:
    """The search relies on it, and the slack of δ alone does not grow with ε."""
    trial = _trial(guesses + idle, guesses, right % (guesses + 1))
    refuted = [one_run_refutes(value, trial, delta, significance) for value in np.linspace(0, 12, 61)]
    assert refuted == sorted(refuted, reverse=True)


def test_all_wrong_or_a_coin_shows_nothing() -> None:
    wrong = Errors(false_alarms=50, without=50, misses=50, within=50)
    coin = Errors(false_alarms=500, without=1000, misses=500, within=1000)
    for errors in (wrong, coin):
        assert gaussian_mu(errors, 0.05) == 0
        assert epsilon_from_errors(errors, DELTA, 0.05) == 0
    one_sided = Errors(false_alarms=50, without=50, misses=0, within=50)
    assert gaussian_mu(one_sided, 0.05) == epsilon_from_errors(one_sided, DELTA, 0.05) == 0
    for right in (0, 1, 500):
        assert (
            one_run_epsilon(_trial(1000, 1000, right), DELTA, 0.05) == one_run_mu(_trial(1000, 1000, right), 0.05) == 0
        )
    assert mu_epsilon(0.0, DELTA) == 0


def test_both_directions_count_when_a_test_errs_on_one_side_only() -> None:
    quiet = Errors(false_alarms=0, without=1000, misses=900, within=1000)
    eager = Errors(false_alarms=900, without=1000, misses=0, within=1000)
    assert epsilon_from_errors(quiet, 0.0, 0.05) == epsilon_from_errors(eager, 0.0, 0.05) > 3


@pytest.mark.parametrize("trials", [1, 10, 10**6, 10**9])
@pytest.mark.parametrize("significance", [0.5, CERTAIN, 1e-12])
def test_clopper_pearson_is_exact_where_there_is_a_closed_form(trials: int, significance: float) -> None:
    assert rate_above(0, trials, significance) == pytest.approx(1 - significance ** (1 / trials), abs=1e-15, rel=1e-6)
    if trials > 1:
        exact = -math.expm1(math.log1p(-significance) / trials)
        assert 1 - rate_above(trials - 1, trials, significance) == pytest.approx(exact, rel=1e-6, abs=1e-15)


def test_flawless_guesses_show_what_the_closed_form_says_at_any_significance() -> None:
    for guesses in (30, 1000, 100_000):
        for significance in (0.05, CERTAIN, 1e-9):
            chance = significance ** (1 / guesses)
            exact = math.log(chance / -math.expm1(math.log(significance) / guesses))
            assert one_run_epsilon(Trial.flawless(guesses, guesses), 0.0, significance) == pytest.approx(
                exact, abs=1e-8
            )


@pytest.mark.parametrize("transform", [np.exp, lambda x: 3 * x + 1, np.cbrt])
def test_the_hull_depends_on_the_order_of_scores_alone(transform: Callable[[Scores], Scores]) -> None:
    generator = np.random.default_rng(3)
    within, without = generator.normal(size=200) + 1, generator.normal(size=300)
    vertices = hull_vertices(within, without)
    assert hull_vertices(transform(within), transform(without)) == vertices
    assert hull_vertices(generator.permutation(within), without[::-1]) == vertices
    assert vertices[0] == (0, 0)
    assert vertices[-1] == (200, 300)


def test_every_threshold_lies_under_the_hull_and_equal_scores_stay_together() -> None:
    generator = np.random.default_rng(4)
    within, without = np.round(generator.normal(size=60) + 1, 1), np.round(generator.normal(size=60), 1)
    right, wrong = np.array(hull_vertices(within, without)).T
    for threshold in np.unique(np.concatenate([within, without])):
        hits, alarms = (within >= threshold).sum(), (without >= threshold).sum()
        assert hits <= np.interp(alarms, wrong, right) + 1e-9 or hits <= right[wrong == alarms].max()
    same = np.ones(5)
    assert hull_vertices(same, same) == [(0, 0), (5, 5)]


def test_the_best_of_several_trials_is_each_at_its_share() -> None:
    trials = [_trial(500, 20, 20), _trial(500, 100, 95), _trial(500, 400, 300)]
    best = largest_over_trials(trials, one_run_refutes_gaussian, significance=0.05, most=20)
    assert best == pytest.approx(max(one_run_mu(trial, 0.05 / 3) for trial in trials), abs=2e-9)


def test_the_search_never_says_more_than_is_refuted() -> None:
    assert 0.7 - 1e-9 <= largest_refuted(lambda value: value <= 0.7, most=10) <= 0.7
    assert 0.7 - 0.01 <= largest_refuted(lambda value: value <= 0.7, most=10, exact=0.01) <= 0.7
    assert largest_refuted(lambda value: False, most=10, least=0.3) == 0.3
    assert largest_refuted(lambda value: True, most=10) == pytest.approx(10)


# how many are needed


@pytest.mark.parametrize("significance", [0.3, 0.05, 0.01, CERTAIN])
@pytest.mark.parametrize(("claim", "delta"), [(0.0, 0.0), (0.0, 1e-5), (1.0, 1e-5), (8.0, 1e-5), (3.0, 0.2)])
def test_the_fewest_observations_are_enough_and_one_less_is_not(
    claim: float, delta: float, significance: float
) -> None:
    count = fewest_observations(significance, epsilon=claim, delta=delta)
    assert epsilon_from_errors(Errors.flawless(count), delta, significance) > claim
    assert epsilon_from_errors(Errors.flawless(count - 1), delta, significance) <= claim


@pytest.mark.parametrize("significance", [0.3, 0.05, 0.01, CERTAIN])
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.7, 4.0])
def test_the_fewest_for_mu_are_enough_and_one_less_is_not(mu: float, significance: float) -> None:
    count = fewest_for_mu(mu, significance)
    assert gaussian_mu(Errors.flawless(count), significance) > mu
    assert gaussian_mu(Errors.flawless(count - 1), significance) <= mu


@pytest.mark.parametrize("significance", [0.3, 0.05, 0.01, CERTAIN])
@pytest.mark.parametrize("claim", [0.0, 1.0, 3.0])
def test_the_fewest_guesses_are_enough_and_one_less_is_not(claim: float, significance: float) -> None:
    count = fewest_guesses(significance, epsilon=claim)
    for canaries in (count, 10 * count):
        enough, short = Trial.flawless(canaries, count), Trial.flawless(canaries, count - 1)
        assert one_run_epsilon(enough, 0.0, significance) > claim >= one_run_epsilon(short, 0.0, significance)
        curve = profile_curve([claim], [0.0])
        assert one_run_refutes_curve(curve, enough, significance)
        assert not one_run_refutes_curve(curve, short, significance)


# bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rate_above(-1, 5, 0.05), r"errors=-1 of trials=5"),
        (lambda: rate_above(6, 5, 0.05), r"errors=6 of trials=5"),
        (lambda: rate_above(0, 0, 0.05), r"errors=0 of trials=0"),
        (lambda: rate_above(1, 5, 0.0), r"significance=0.0 is not in \(0, 1\)"),
        (lambda: rate_above(1, 5, math.nan), r"significance=nan"),
        (lambda: Errors(false_alarms=3, without=2, misses=0, within=2), r"false_alarms=3 of without=2"),
        (lambda: Errors(false_alarms=0, without=2, misses=3, within=2), r"misses=3 of within=2"),
        (lambda: Errors.flawless(0), r"of without=0"),
        (lambda: _trial(10, 11, 5), r"guesses=11 of canaries=10"),
        (lambda: _trial(10, 5, 6), r"right=6 of guesses=5"),
        (lambda: _trial(10, 0, 0), r"right=0 of guesses=0"),
        (lambda: epsilon_from_errors(Errors.flawless(5), 1.0, 0.05), r"delta=1.0 is not in \[0, 1\)"),
        (lambda: epsilon_from_errors(Errors.flawless(5), 0.1, 1.5), r"significance=1.5"),
        (lambda: gaussian_mu(Errors.flawless(5), -0.1), r"significance="),
        (lambda: mu_epsilon(-1.0, DELTA), r"mu=-1.0"),
        (lambda: one_run_refutes(-0.1, _trial(10, 5, 5), 0.0, 0.05), r"epsilon=-0.1 is below 0"),
        (lambda: one_run_refutes(1.0, _trial(10, 5, 5), -0.1, 0.05), r"delta=-0.1"),
        (lambda: one_run_refutes(1.0, _trial(10, 5, 5), 0.1, 0.0), r"significance=0.0"),
        (lambda: one_run_refutes_gaussian(-1.0, _trial(10, 5, 5), 0.05), r"mu=-1.0 is below 0"),
        (lambda: one_run_refutes_gaussian(1.0, _trial(10, 5, 5), 1.0), r"significance=1.0"),
        (lambda: profile_curve([], []), r"0 epsilons and 0 deltas"),
        (lambda: profile_curve([1.0], [0.1, 0.2]), r"1 epsilons and 2 deltas"),
        (lambda: profile_curve([-1.0], [0.1]), r"epsilon in \[0, 700\]"),
        (lambda: profile_curve([1.0], [1.1]), r"deltas from 1.1 to 1.1"),
        (lambda: hull_vertices(np.array([1.0, math.nan]), np.ones(2)), r"within of shape \(2,\)"),
        (lambda: hull_vertices(np.ones(2), np.ones(0)), r"without of shape \(0,\)"),
        (lambda: largest_over_trials([], one_run_refutes_gaussian, significance=0.05, most=9), r"trials=\(\)"),
        (lambda: fewest_observations(0.05, epsilon=-1.0), r"epsilon=-1.0"),
        (lambda: fewest_observations(0.05, delta=1.0), r"delta=1.0"),
        (lambda: fewest_for_mu(math.nan, 0.05), r"mu=nan"),
        (lambda: fewest_guesses(0.0), r"significance=0.0"),
    ],
)
def test_senseless_input_is_refused_by_name(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def _errors(alarms: int, misses: int, count: int) -> Errors:
    return Errors(false_alarms=alarms, without=count, misses=misses, within=count)


def _trial(canaries: int, guesses: int, right: int) -> Trial:
    return Trial(canaries=canaries, guesses=guesses, right=right)


def _plain(delta: float, errors: Errors, significance: float) -> float:
    return epsilon_from_errors(errors, delta, significance)
