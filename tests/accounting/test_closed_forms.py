"""Each formula is held to what it claims, and the paper's slips are shown to be slips."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.accounting import draw_event, epsilon, plan_for
from adadpigu.accounting.closed_forms import (
    dpsgd_theorem_sigma,
    gaussian_delta,
    gaussian_epsilon,
    rdp_to_epsilon_improved,
)
from adadpigu.errors import InputError
from adadpigu_paper.theory.gaussian import (
    amplified_by_sampling,
    classic_gaussian_sigma,
    gaussian_sigma,
    rdp_of_gaussian,
    rdp_to_epsilon_classic,
)

DELTA = 1e-5
small_epsilons = st.floats(min_value=0.01, max_value=0.999)
deltas = st.floats(min_value=1e-12, max_value=1e-2)


@given(small_epsilons, deltas)
def test_the_classic_sigma_gives_the_privacy_it_claims(epsilon_: float, delta: float) -> None:
    assert gaussian_delta(classic_gaussian_sigma(epsilon_, delta), epsilon_) <= delta


@given(st.floats(min_value=0.01, max_value=0.5))
def test_the_papers_misplaced_root_does_not(epsilon_: float) -> None:
    misplaced = math.sqrt(2 * math.log(1.25 / DELTA) / epsilon_)
    assert gaussian_delta(misplaced, epsilon_) > DELTA


def test_the_classic_sigma_scales_with_the_sensitivity_and_refuses_epsilon_from_one_on() -> None:
    assert classic_gaussian_sigma(0.5, DELTA, sensitivity=3.0) == pytest.approx(3 * classic_gaussian_sigma(0.5, DELTA))
    for refused in (1.0, 8.0):
        with pytest.raises(InputError, match=f"epsilon={refused}.*gaussian_sigma"):
            classic_gaussian_sigma(refused, DELTA)


def test_the_classic_formula_would_fail_where_it_is_refused() -> None:
    """At large ε the formula, taken at its word, leaves too little noise: the reason for the refusal."""
    assert gaussian_delta(math.sqrt(2 * math.log(1.25 / DELTA)) / 50, 50.0) > DELTA


@pytest.mark.parametrize(
    ("sigma", "exact"), [(0.5, 9.997256146), (1.0, 4.377178095681), (2.0, 1.993091404), (4.0, 0.926341504)]
)
def test_the_exact_gaussian_epsilon_meets_its_golden_values(sigma: float, exact: float) -> None:
    assert gaussian_epsilon(sigma, DELTA) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(
    ("epsilon_", "delta", "exact"), [(1.0, 1e-5, 3.730631635), (8.0, 1e-5, 0.600229072), (1.0, 1e-6, 4.224678889)]
)
def test_the_exact_gaussian_sigma_meets_its_golden_values(epsilon_: float, delta: float, exact: float) -> None:
    assert gaussian_sigma(epsilon_, delta) == pytest.approx(exact, abs=1e-9)


@given(st.floats(min_value=0.01, max_value=100), deltas)
def test_exact_sigma_and_epsilon_are_inverse(epsilon_: float, delta: float) -> None:
    sigma = gaussian_sigma(epsilon_, delta)
    assert gaussian_epsilon(sigma, delta) == pytest.approx(epsilon_, rel=1e-6)
    assert gaussian_delta(sigma, epsilon_) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("sigma", "epsilon_"), [(1.0, 0.7), (0.4, 3.0), (2.5, 0.1)])
def test_the_exact_delta_is_the_hockey_stick_divergence(sigma: float, epsilon_: float) -> None:
    """Against the defining integral ∫ (p − e^ε p')₊ by the trapezoid rule."""

    def density(x: float, mean: float) -> float:
        return math.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    points, width = 200_000, 24 * sigma / 200_000
    grid = (1 - 12 * sigma + width * i for i in range(points))
    total = width * math.fsum(max(0.0, density(x, 1.0) - math.exp(epsilon_) * density(x, 0.0)) for x in grid)
    assert gaussian_delta(sigma, epsilon_) == pytest.approx(total, abs=1e-7)


def test_the_extremes_of_one_gaussian() -> None:
    assert gaussian_epsilon(0.0, DELTA) == math.inf
    assert gaussian_epsilon(math.inf, DELTA) == 0.0
    assert gaussian_epsilon(1e7, DELTA) == 0.0
    assert gaussian_delta(0.0, 1.0) == 1.0
    assert gaussian_delta(math.inf, 1.0) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "steps", "target", "lowest", "highest"),
    [(1 / 60, 12_000, 4.0, 2.4, 2.6), (0.01, 100, 1.0, 2.5, 2.7), (256 / 60_000, 234, 8.0, 1000.0, math.inf)],
)
def test_the_dpsgd_theorem_misses_its_target_in_both_directions(
    rate: float, steps: int, target: float, lowest: float, highest: float
) -> None:
    sigma = dpsgd_theorem_sigma(sample_rate=rate, steps=steps, epsilon=target, delta=DELTA)
    assert lowest <= epsilon(plan_for(rate, steps)(sigma).event(), DELTA) <= highest


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("sigma", [0.8, 3.0])
def test_amplification_bounds_one_sampled_gaussian(rate: float, sigma: float) -> None:
    bound, delta = amplified_by_sampling(gaussian_epsilon(sigma, DELTA), DELTA, rate)
    assert delta == rate * DELTA
    assert epsilon(draw_event(rate, [sigma]), delta) <= bound + 2e-4  # the accountant's interval is 1e-4


def test_amplification_is_tight_for_one_release_when_a_record_is_removed() -> None:
    bound, delta = amplified_by_sampling(gaussian_epsilon(1.0, DELTA), DELTA, 0.1)
    assert epsilon(draw_event(0.1, [1.0]), delta) == pytest.approx(bound, abs=2e-4)


def test_amplification_changes_nothing_without_sampling_and_removes_all_at_rate_zero() -> None:
    assert amplified_by_sampling(2.0, DELTA, 1.0) == pytest.approx((2.0, DELTA))
    assert amplified_by_sampling(2.0, DELTA, 0.0) == (0.0, 0.0)
    assert amplified_by_sampling(1000.0, DELTA, 0.5)[0] == pytest.approx(1000 + math.log(0.5))


@pytest.mark.parametrize("order", [1.5, 2.0, 7.0])
def test_the_rdp_of_a_gaussian_is_its_renyi_divergence(order: float) -> None:
    """Against 1/(α−1) ln ∫ p^α p'^(1−α) by the trapezoid rule."""
    sigma, points = 1.7, 100_000
    width = 60 * sigma / points
    grid = [order - 30 * sigma + width * i for i in range(points)]
    log_terms = (-(order * (x - 1) ** 2 + (1 - order) * x**2) / (2 * sigma**2) for x in grid)
    integral = width * math.fsum(map(math.exp, log_terms)) / (sigma * math.sqrt(2 * math.pi))
    assert rdp_of_gaussian(order, sigma) == pytest.approx(math.log(integral) / (order - 1), rel=1e-9)


@given(st.floats(min_value=1.05, max_value=500), st.floats(min_value=0.3, max_value=50), deltas)
def test_both_conversions_hold_and_the_improved_one_is_never_worse(order: float, sigma: float, delta: float) -> None:
    rho = rdp_of_gaussian(order, sigma)
    improved, classic = rdp_to_epsilon_improved(order, rho, delta), rdp_to_epsilon_classic(order, rho, delta)
    assert gaussian_epsilon(sigma, delta) <= improved + 1e-9
    assert improved <= classic


def test_a_renyi_order_of_one_or_less_is_refused() -> None:
    for function in (rdp_to_epsilon_classic, rdp_to_epsilon_improved):
        with pytest.raises(InputError, match=r"order=1\.0"):
            function(1.0, 1.0, DELTA)
    with pytest.raises(InputError, match=r"order=0\.5"):
        rdp_of_gaussian(0.5, 1.0)
    assert rdp_of_gaussian(2.0, 0.0) == math.inf
