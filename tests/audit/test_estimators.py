"""Estimators: golden values of shared/facts/auditing.md, closed forms and properties (coverage: test_coverage.py)."""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np
import pytest
from guessing import ends, errors_of, hull_vertices, ideal, largest_over_hull, trial_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from adadpigu.accounting import calibrate, epsilon, plan_for
from adadpigu.audit.estimators import (
    Errors,
    Trial,
    epsilon_from_errors,
    fewest,
    gaussian_curve,
    gaussian_mu,
    largest_refuted,
    mu_epsilon,
    one_run_epsilon,
    one_run_mu,
    one_run_refutes,
    one_run_refutes_curve,
    profile_curve,
    rate_above,
)
from adadpigu_paper.theory.gaussian import gaussian_sigma

DELTA = 1e-5
CERTAIN = 1e-6


def expected(count: int, mu: float, threshold: float) -> Errors:
    """The errors of a threshold between N(0, 1) and N(μ, 1), rounded."""
    alarms, misses = round(count * norm.sf(threshold)), round(count * norm.cdf(threshold - mu))
    return Errors(false_alarms=alarms, without=count, misses=misses, within=count)


def by_gaussian_curve(mu: float, trial: Trial, significance: float) -> bool:
    return one_run_refutes_curve(gaussian_curve(mu), trial, significance)


# golden values


@pytest.mark.parametrize(
    ("shift", "vertices", "one_run", "curve"), [(1.0, 386, 1.13346, 2.164749), (2.0, 374, 2.311945, 4.7218075)]
)
def test_ten_thousand_ideal_scores_a_world_give_the_golden_values(
    shift: float, vertices: int, one_run: float, curve: float
) -> None:
    within, without = ideal(10_000, shift)
    assert len(hull_vertices(within, without)) == vertices
    pure = partial(one_run_refutes, delta=1e-6)
    found = largest_over_hull(within, without, pure, significance=0.05, most=60)
    assert found == pytest.approx(one_run, abs=1e-6)
    mu = largest_over_hull(within, without, by_gaussian_curve, significance=0.05, most=20)
    assert mu_epsilon(mu, 1e-6) == pytest.approx(curve, abs=1.5e-6)


@pytest.mark.slow
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


# properties


@given(
    count=st.integers(1, 300), errors=st.integers(0, 299), other=st.integers(0, 300), delta=st.sampled_from([0.0, 0.01])
)
def test_more_errors_show_less_and_more_certainty_shows_less(count: int, errors: int, other: int, delta: float) -> None:
    errors, other = errors % count, other % (count + 1)
    better, worse = errors_of(errors, other, count), errors_of(errors + 1, other, count)
    for estimate in (gaussian_mu, partial(_plain, delta)):
        assert estimate(worse, 0.05) <= estimate(better, 0.05)
        assert estimate(better, CERTAIN) <= estimate(better, 0.05)
        assert estimate(better, 0.05) == estimate(errors_of(other, errors, count), 0.05)
        assert 0 <= estimate(better, 0.05) < math.inf


@settings(deadline=None, max_examples=40)
@given(
    guesses=st.integers(1, 80), right=st.integers(0, 79), idle=st.integers(0, 50), delta=st.sampled_from([0.0, 1e-4])
)
def test_more_right_guesses_show_more_and_more_certainty_shows_less(
    guesses: int, right: int, idle: int, delta: float
) -> None:
    right %= guesses
    fewer, more = trial_of(guesses + idle, guesses, right), trial_of(guesses + idle, guesses, right + 1)
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
    trial = trial_of(guesses + idle, guesses, right % (guesses + 1))
    refuted = [one_run_refutes(value, trial, delta, significance) for value in np.linspace(0, 12, 61)]
    assert refuted == sorted(refuted, reverse=True)


def test_all_wrong_or_a_coin_or_nothing_seen_shows_nothing() -> None:
    wrong = Errors(false_alarms=50, without=50, misses=50, within=50)
    coin = Errors(false_alarms=500, without=1000, misses=500, within=1000)
    for errors in (wrong, coin, Errors.without_errors(0)):
        assert gaussian_mu(errors, 0.05) == 0
        assert epsilon_from_errors(errors, DELTA, 0.05) == 0
    one_sided = Errors(false_alarms=50, without=50, misses=0, within=50)
    assert gaussian_mu(one_sided, 0.05) == epsilon_from_errors(one_sided, DELTA, 0.05) == 0
    for right in (0, 1, 500):
        trial = trial_of(1000, 1000, right)
        assert one_run_epsilon(trial, DELTA, 0.05) == one_run_mu(trial, 0.05) == 0
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
            assert one_run_epsilon(Trial.without_errors(guesses, guesses), 0.0, significance) == pytest.approx(
                exact, abs=1e-8
            )


def test_the_search_never_says_more_than_is_refuted() -> None:
    assert 0.7 - 1e-9 <= largest_refuted(lambda value: value <= 0.7, most=10) <= 0.7
    assert largest_refuted(lambda value: False, most=10) == 0.0
    assert largest_refuted(lambda value: True, most=10) == pytest.approx(10)


# how many are needed


@pytest.mark.parametrize("significance", [0.3, 0.05, 0.01, CERTAIN])
@pytest.mark.parametrize(("claim", "delta"), [(0.0, 0.0), (0.0, 1e-5), (1.0, 1e-5), (8.0, 1e-5), (3.0, 0.2)])
def test_the_fewest_observations_have_their_closed_form(claim: float, delta: float, significance: float) -> None:
    """(β/2)^(1/n) > 1 − (1 − δ)/(1 + e^ε)."""
    needed = math.log(significance / 2) / math.log1p(-(1 - delta) / (1 + math.exp(claim)))
    count = fewest(lambda n: epsilon_from_errors(Errors.without_errors(n), delta, significance) > claim)
    assert count - 1 <= needed * (1 + 1e-9)
    assert needed < count * (1 + 1e-9)


@pytest.mark.parametrize("significance", [0.3, 0.05, 0.01, CERTAIN])
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.7, 4.0])
def test_the_fewest_for_mu_have_their_closed_form(mu: float, significance: float) -> None:
    """(β/2)^(1/n) > 1 − Φ(−μ/2)."""
    needed = math.log(significance / 2) / math.log1p(-norm.sf(mu / 2))
    count = fewest(lambda n: gaussian_mu(Errors.without_errors(n), significance) > mu)
    assert count - 1 <= needed * (1 + 1e-9)
    assert needed < count * (1 + 1e-9)


@pytest.mark.parametrize("significance", [0.3, 0.05, 0.01, CERTAIN])
@pytest.mark.parametrize("claim", [0.0, 1.0, 3.0])
def test_the_fewest_guesses_are_enough_and_one_less_is_not(claim: float, significance: float) -> None:
    count = fewest(lambda n: one_run_refutes(claim, Trial.without_errors(n, n), 0.0, significance))
    for canaries in (count, 10 * count):
        enough, short = Trial.without_errors(canaries, count), Trial.without_errors(canaries, count - 1)
        assert one_run_epsilon(enough, 0.0, significance) > claim >= one_run_epsilon(short, 0.0, significance)
        curve = profile_curve([claim], [0.0])
        assert one_run_refutes_curve(curve, enough, significance)
        assert not one_run_refutes_curve(curve, short, significance)


def _plain(delta: float, errors: Errors, significance: float) -> float:
    return epsilon_from_errors(errors, delta, significance)
