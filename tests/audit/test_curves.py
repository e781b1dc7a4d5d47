"""Trade-off curves against closed forms: of Gaussians, of privacy profiles, of a claim's plan."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from guessing import trial_of
from scipy.stats import norm

from adadpigu.accounting import calibrate, plan_for
from adadpigu.accounting.closed_forms import gaussian_delta
from adadpigu.accounting.events import Spending, spending_of
from adadpigu.accounting.pld import pld_epsilon, privacy_profile
from adadpigu.audit.estimators import (
    Curve,
    Trial,
    claim_curve,
    gaussian_curve,
    one_run_refutes_curve,
    profile_curve,
)
from adadpigu_paper.theory.gaussian import gaussian_sigma

DELTA = 1e-5


POWERS = (1e-12, 1e-6, 0.01, 0.2, 0.5, 0.8, 0.99, 1 - 1e-6)


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0])
def test_a_gaussians_profile_gives_its_curve_and_never_more(mu: float) -> None:
    epsilons = np.linspace(0.0, 12 * mu + mu**2, 4000).tolist()
    curve = profile_curve(epsilons, [gaussian_delta(1 / mu, value) for value in epsilons])
    exact = gaussian_curve(mu)
    for power in POWERS:
        assert curve(power) == pytest.approx(exact(power), rel=1e-4)
        assert curve(power) <= exact(power) * (1 + 1e-9)


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0])
def test_the_curve_of_a_claimed_gaussian_is_gaussian_down_to_rare_powers(mu: float) -> None:
    claim, exact = claim_curve(plan_for(1.0, 4)(2 / mu).event()), gaussian_curve(mu)
    for power in (1e-9, *POWERS[1:]):
        assert claim(power) == pytest.approx(exact(power), rel=1e-4)


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


@pytest.mark.slow
def test_the_claims_curve_refutes_more_than_the_gaussian_of_the_same_epsilon() -> None:
    plan = plan_for(0.02, 3000)
    claim = claim_curve(plan(calibrate(plan, epsilon=8.0, delta=DELTA).noise_multiplier).event())
    gaussian = gaussian_curve(1 / gaussian_sigma(8.0, DELTA))
    by_claim, by_gaussian = (
        next(v for v in range(980, 1001) if one_run_refutes_curve(curve, trial_of(5000, 1000, v), 0.05))
        for curve in (claim, gaussian)
    )
    assert 980 < by_claim < by_gaussian


def test_no_privacy_gives_a_curve_that_nothing_refutes_and_no_release_one_that_a_coin_meets() -> None:
    nothing = claim_curve(plan_for(0.1, 10)(0.0).event())
    assert not one_run_refutes_curve(nothing, Trial.without_errors(1000, 1000), 0.05)
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
