"""The best guesser against closed forms, quadrature and published figures; how rarely it refutes: test_coverage.py."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from guessing import trial_of
from scipy.integrate import quad
from scipy.stats import binom, norm

from adadpigu.accounting import draw_event, plan_for
from adadpigu.accounting.closed_forms import gaussian_delta
from adadpigu.audit.estimators import Trial, mu_epsilon
from adadpigu.audit.order_statistics import BestGuesser, best_guesser

DELTA = 1e-5


@cache
def gaussian(mu: float) -> BestGuesser:
    return best_guesser(draw_event(1.0, [1 / mu]))


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0])
def test_of_gaussians_so_many_of_the_surest_are_wrong(mu: float) -> None:
    """A loss μx − μ²/2 is beyond ±t for x beyond μ/2 ± t/μ."""
    for t in (0.0, 0.1, 1.0, 4.0):
        high, low = mu / 2 + t / mu, mu / 2 - t / mu
        wrong = (norm.sf(high) + norm.cdf(low - mu)) / 2
        share = wrong + (norm.sf(high - mu) + norm.cdf(low)) / 2
        if share < 1e-12:
            continue
        found = float(gaussian(mu).wrong_share(np.array([share]))[0])
        assert found == pytest.approx(wrong / share, rel=2e-3, abs=1e-6)
        assert found <= wrong / share * (1 + 1e-9) + 1e-12


def test_of_one_sampled_draw_both_sides_count_as_they_are() -> None:
    """Likelihood ratios are bounded below by 1 − q: who says "out" can never be sure, who says "in" can."""
    q, sigma = 0.3, 0.6
    guesser = best_guesser(draw_event(q, [sigma]))

    def ratio(x: float) -> float:
        return 1 - q + q * float(np.exp((x - 0.5) / sigma**2))

    for t in (0.0, 0.2, 2.0):
        high = 0.5 + sigma**2 * np.log((np.exp(t) - 1 + q) / q)
        low = 0.5 + sigma**2 * np.log((np.exp(-t) - 1 + q) / q) if np.exp(-t) > 1 - q else -np.inf
        below, above = ((1 - q) * norm.cdf(x, 0, sigma) + q * norm.cdf(x, 1, sigma) for x in (low, high))
        wrong = (norm.sf(high, 0, sigma) + below) / 2
        share = wrong + (1 - above + norm.cdf(low, 0, sigma)) / 2
        assert ratio(high) == pytest.approx(np.exp(t))
        assert float(guesser.wrong_share(np.array([share]))[0]) == pytest.approx(wrong / share, rel=5e-3)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_guess_about_each_canary_is_the_binomial_test(mu: float) -> None:
    for right in (30, 45, 50):
        found = gaussian(mu).p_value(trial_of(50, 50, right))
        assert found == pytest.approx(binom.sf(right - 1, 50, norm.cdf(mu / 2)), rel=1e-3)


@pytest.mark.parametrize("canaries", [2, 5])
def test_the_surest_of_a_few_canaries_is_right_as_often_as_quadrature_has_it(canaries: int) -> None:
    mu = 1.5

    def beyond(t: float) -> float:
        return float(norm.sf(t / mu - mu / 2) + norm.cdf(-t / mu - mu / 2))

    def integrand(t: float) -> float:  # the largest of n losses has size t, and its sign is right
        likely = norm.pdf(t / mu - mu / 2) / mu
        return float(canaries * (1 - beyond(t)) ** (canaries - 1) * likely)

    right = quad(integrand, 0, 40)[0]
    assert gaussian(mu).p_value(trial_of(canaries, 1, 1)) == pytest.approx(right, rel=5e-3)
    assert gaussian(mu).p_value(trial_of(canaries, 1, 0)) == pytest.approx(1.0)


@pytest.mark.parametrize(("guesses", "wrong", "epsilon"), [(500, 7, 7.03), (2500, 194, 7.61)])
def test_ideal_scores_of_5000_canaries_show_what_is_published_of_them(guesses: int, wrong: int, epsilon: float) -> None:
    trial = trial_of(5000, guesses, guesses - wrong)
    low, high = 1.0, 2.5
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian(middle).p_value(trial) < 0.05 else (low, middle)
    assert mu_epsilon(low, DELTA) == pytest.approx(epsilon, abs=0.02)


def test_what_is_likely_is_never_refuted_and_all_is_where_nothing_is_claimed() -> None:
    assert best_guesser(plan_for(0.5, 3)(0.0).event()).p_value(Trial.without_errors(1000, 1000)) == 1.0
    nothing = best_guesser(plan_for(0.5, 0)(1.0).event())
    assert nothing.p_value(trial_of(100, 40, 30)) == pytest.approx(binom.sf(29, 40, 0.5), rel=1e-6)


def test_fewer_points_of_a_profile_refute_less() -> None:
    few, trial = np.linspace(0, 12, 13), trial_of(1000, 500, 450)
    deltas = np.array([gaussian_delta(1.0, loss) for loss in few])
    assert BestGuesser.of_profiles(few, deltas, deltas).p_value(trial) > gaussian(1.0).p_value(trial)
