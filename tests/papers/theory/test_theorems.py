"""Each theorem where both its sides are known exactly: the corrected bound holds and is met, the printed one fails."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.errors import InputError
from adadpigu_paper.theory.descent import Descent, gradient_norm_bound, inner_product_bound
from adadpigu_paper.theory.known_problems import Quadratic, Recipe, Still, followed
from adadpigu_paper.theory.retained_energy import Mask, Numbers, even_share, retained_energy, top_k_mask
from adadpigu_paper.theory.second_moments import (
    clipped,
    exact_poisson_moment,
    fixed_batch_moment,
    masked_noise_moment,
    poisson_batch_moment,
)
from adadpigu_paper.theory.theorems import (
    break_even_retention,
    clipped_sgd,
    masked_noisy_sgd,
    masked_noisy_sgd_whole_gradient,
    printed_clipped_sgd,
    printed_masked_noisy_sgd,
    printed_private_sgd,
    printed_proof_of_clipped_sgd,
    private_sgd,
    update_variance,
)

seeds = st.integers(0, 2**32 - 1)
SLACK = 1 + 1e-9


def random_problem(seed: int) -> tuple[Quadratic, Numbers, Mask]:
    """Curvatures over four orders of magnitude, records with heavy tails, any start and a mask of any size."""
    generator = np.random.default_rng(seed)
    count, dimension = generator.integers(1, 9), generator.integers(1, 7)
    problem = Quadratic(
        curvature=10 ** generator.uniform(-2, 2, dimension),
        records=generator.standard_t(2, (count, dimension)),
    )
    mask = top_k_mask(generator.standard_normal(dimension), int(generator.integers(1, dimension + 1)))
    return problem, 3 * generator.standard_normal(dimension), mask


def expected_loss_after(problem: Quadratic, recipe: Recipe, theta: Numbers) -> float:
    """E L(θ₂) − min L of one step, in closed form for any diagonal curvature."""
    bounded, rate = recipe.bounded(problem, theta), recipe.sample_rate
    batch_size = rate * len(bounded)
    mean = bounded.mean(axis=0)
    covariance = (1 - rate) / batch_size * np.mean(bounded**2, axis=0)
    covariance = covariance + recipe.mask * (recipe.noise_multiplier * recipe.clip_norm / batch_size) ** 2
    eta = recipe.learning_rate
    return float(problem.excess(theta - eta * mean)) + 0.5 * eta**2 * float(problem.curvature @ covariance)


@given(st.integers(1, 50), st.floats(1.0, 100.0), st.floats(0.01, 100.0))
def test_a_straight_walk_meets_the_first_bound_and_breaks_both_printed_ones(T: int, G: float, C: float) -> None:
    walk = Quadratic(curvature=np.array([G]), records=np.zeros((1, 1)))
    recipe = Recipe(learning_rate=1 / G, steps=T, clip_norm=C, mask=np.ones(1, dtype=bool))
    trace = followed(walk, recipe, np.array([T * C / G]), runs=1, seed=0)
    descent = Descent(smoothness=G, learning_rate=1 / G, steps=T, gap=trace.start)
    measured = float(trace.inner_product[0])
    assert measured == pytest.approx(C**2 * (T + 1) / 2, rel=1e-9)
    assert clipped_sgd(descent, batch_moment=fixed_batch_moment(C)) == pytest.approx(measured, rel=1e-9)
    if T > 1:
        assert printed_clipped_sgd(descent, clip_norm=C) < measured * 0.999
        assert printed_proof_of_clipped_sgd(descent, clip_norm=C) < measured * 0.999


def test_the_two_printed_first_bounds_differ_by_where_the_rate_stands() -> None:
    run = Descent(smoothness=2.0, learning_rate=0.5, steps=10, gap=50.0)
    assert printed_clipped_sgd(run, clip_norm=2.0) == pytest.approx(0.5 * 50 / 10 + 0.5 * 2 * 4 / 20)
    assert printed_proof_of_clipped_sgd(run, clip_norm=2.0) == pytest.approx(50 / (0.5 * 10) + 0.5 * 2 * 4 / 20)


@given(seeds, st.floats(0.01, 3.0), st.integers(1, 20))
def test_the_first_bound_holds_on_any_full_batch_run(seed: int, relative_rate: float, T: int) -> None:
    problem, start, mask = random_problem(seed)
    eta = relative_rate / problem.smoothness
    recipe = Recipe(learning_rate=eta, steps=T, clip_norm=0.7, mask=mask)
    trace = followed(problem, recipe, start, runs=1, seed=0)
    descent = Descent(smoothness=problem.smoothness, learning_rate=eta, steps=T, gap=trace.start)
    bound = clipped_sgd(descent, batch_moment=fixed_batch_moment(0.7))
    assert float(trace.inner_product[0]) <= bound * SLACK
    assert float(trace.gradient[0]) <= gradient_norm_bound(bound, float(trace.squared_bias[0])) * SLACK


@given(seeds, st.floats(0.01, 3.0), st.floats(0.1, 1.0), st.floats(0.0, 5.0))
def test_the_third_bound_holds_in_any_step_and_is_met_where_curvature_is_even(
    seed: int, relative_rate: float, rate: float, sigma: float
) -> None:
    problem, theta, mask = random_problem(seed)
    batch_size, C = rate * len(problem.records), 0.7
    for problem_, even in ((problem, False), (replace(problem, curvature=np.full(len(theta), 2.0)), True)):
        eta = relative_rate / problem_.smoothness
        recipe = Recipe(learning_rate=eta, steps=1, clip_norm=C, mask=mask, sample_rate=rate, noise_multiplier=sigma)
        bounded = recipe.bounded(problem_, theta)
        inner = float(problem_.gradient(theta) @ bounded.mean(axis=0))
        decrease = float(problem_.excess(theta)) - expected_loss_after(problem_, recipe, theta)
        step = Descent(smoothness=problem_.smoothness, learning_rate=eta, steps=1, gap=decrease)
        noise = masked_noise_moment(active=int(mask.sum()), noise_multiplier=sigma, clip_norm=C, batch_size=batch_size)
        moment = poisson_batch_moment(C, batch_size=batch_size, sample_rate=rate)
        scale = abs(inner) + abs(decrease) / eta + moment + noise
        assert inner <= private_sgd(step, batch_moment=moment, noise_moment=noise) + 1e-9 * scale
        if even:
            exact = private_sgd(step, batch_moment=exact_poisson_moment(bounded, rate), noise_moment=noise)
            assert exact == pytest.approx(inner, abs=1e-9 * scale)


def test_the_third_printed_bound_fails_for_a_mask_that_misses_the_gradient() -> None:
    """α = 0: the noise that the mask lets through is said not to be there, and the loss rises by it."""
    problem = Quadratic(curvature=np.ones(5), records=np.zeros((4, 5)))
    mask, theta = np.arange(5) < 4, np.array([0.0, 0.0, 0.0, 0.0, 2.0])
    recipe = Recipe(learning_rate=0.1, steps=1, clip_norm=1.0, mask=mask, noise_multiplier=3.0)
    decrease = float(problem.excess(theta)) - expected_loss_after(problem, recipe, theta)
    step = Descent(smoothness=1.0, learning_rate=0.1, steps=1, gap=decrease)
    inner = float(problem.gradient(theta) @ recipe.bounded(problem, theta).mean(axis=0))
    assert retained_energy(problem.gradient(theta), mask) == inner == 0
    printed = printed_private_sgd(step, clip_norm=1.0, noise_multiplier=3.0, retention=0.0, dimension=5, batch_size=4.0)
    noise = masked_noise_moment(active=4, noise_multiplier=3.0, clip_norm=1.0, batch_size=4.0)
    assert printed < -0.05 < inner <= private_sgd(step, batch_moment=1.0, noise_moment=noise)


def test_the_third_printed_bound_fails_for_poisson_batches_without_any_noise() -> None:
    problem = Quadratic(curvature=np.ones(1), records=np.zeros((4, 1)))
    recipe = Recipe(learning_rate=0.1, steps=1, clip_norm=1.0, mask=np.ones(1, dtype=bool), sample_rate=0.25)
    theta = np.array([5.0])
    decrease = float(problem.excess(theta)) - expected_loss_after(problem, recipe, theta)
    step = Descent(smoothness=1.0, learning_rate=0.1, steps=1, gap=decrease)
    printed = printed_private_sgd(step, clip_norm=1.0, noise_multiplier=0.0, retention=1.0, dimension=1, batch_size=1.0)
    moment = poisson_batch_moment(1.0, batch_size=1.0, sample_rate=0.25)
    assert printed < 5.0 - 0.03
    assert private_sgd(step, batch_moment=moment, noise_moment=0.0) == pytest.approx(5.0, rel=1e-12)


def test_the_third_printed_bound_has_b_times_the_noise_of_a_whole_mask() -> None:
    step = Descent(smoothness=2.0, learning_rate=1.0, steps=1, gap=0.0)
    printed = printed_private_sgd(
        step, clip_norm=1.0, noise_multiplier=2.0, retention=1.0, dimension=10, batch_size=50.0
    )
    noise = masked_noise_moment(active=10, noise_multiplier=2.0, clip_norm=1.0, batch_size=50.0)
    assert printed - 1 == pytest.approx(50 * (private_sgd(step, batch_moment=1.0, noise_moment=noise) - 1))


@given(seeds, st.floats(0.01, 1.9), st.integers(1, 30), st.floats(0.0, 5.0))
def test_the_second_bound_holds_on_any_quadratic_and_is_met_where_curvature_is_even(
    seed: int, relative_rate: float, T: int, noise: float
) -> None:
    """Exact: each coordinate's mean and variance follow a linear recursion."""
    problem, start, mask = random_problem(seed)
    for problem_, even in ((problem, False), (replace(problem, curvature=np.full(len(start), 2.0)), True)):
        eta = relative_rate / problem_.smoothness
        mean, spread, measured = start - problem_.best, np.zeros(len(start)), 0.0
        for _ in range(T):
            measured += float(np.sum((problem_.curvature**2 * (mean**2 + spread))[mask])) / T
            shrink = np.where(mask, 1 - eta * problem_.curvature, 1.0)
            mean, spread = shrink * mean, shrink**2 * spread + mask * (eta * noise / 4) ** 2
        end = 0.5 * float(problem_.curvature @ (mean**2 + spread))
        variance = update_variance(
            kept_gradient_variance=0.0, noise_deviation=noise, active=int(mask.sum()), batch_size=4.0
        )
        beforehand = float(problem_.excess(start))
        descent = Descent(smoothness=problem_.smoothness, learning_rate=eta, steps=T, gap=beforehand)
        assert measured <= masked_noisy_sgd(descent, variance=variance) * SLACK
        afterwards = masked_noisy_sgd(replace(descent, gap=beforehand - end), variance=variance)
        assert measured <= afterwards + 1e-9 * (measured + beforehand / eta)
        if even:
            assert afterwards == pytest.approx(measured, rel=1e-7, abs=1e-9 * (1 + beforehand / eta))


@given(st.integers(1, 10**6), st.floats(0.1, 10.0), st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_at_the_papers_rate_the_second_bound_has_a_short_form(T: int, G: float, gap: float, variance: float) -> None:
    descent = Descent.at_paper_rate(smoothness=G, steps=T, gap=gap)
    short = (2 * G * gap + variance) / (2 * math.sqrt(T) - 1)
    assert masked_noisy_sgd(descent, variance=variance) == pytest.approx(short, rel=1e-9)


def still_run(T: int) -> Still:
    return Still(steps=T, frozen=np.full(4, math.sqrt(3 / 4)))


@pytest.mark.parametrize("state", [1, -1])
def test_a_still_run_is_what_it_says(state: int) -> None:
    """Unbiased, of the variance it states, always at ±1, and masked by the top-1 of its gradient."""
    still = still_run(400)
    outcomes = still.deviations(state)
    assert sum(chance for _, chance in outcomes) == pytest.approx(1.0)
    assert sum(chance * deviation for deviation, chance in outcomes) == pytest.approx(0.0, abs=1e-12)
    assert sum(chance * deviation**2 for deviation, chance in outcomes) == pytest.approx(still.variance)
    after = [state - still.learning_rate * (state + deviation) for deviation, _ in outcomes]
    assert after == pytest.approx([state, -state])
    gradient = np.array([float(state), *still.frozen])
    assert float(gradient @ gradient) == pytest.approx(still.gradient)
    assert top_k_mask(gradient, 1).tolist() == [True, False, False, False, False]
    assert retained_energy(gradient, top_k_mask(gradient, 1)) == pytest.approx(0.25)


def test_the_second_printed_bound_fails_where_the_mask_is_the_top_1_of_every_gradient() -> None:
    still = still_run(400)
    run = Descent.at_paper_rate(smoothness=1.0, steps=400, gap=still.gap)
    printed = printed_masked_noisy_sgd(
        run, gradient_variance=still.variance, noise_deviation=0.0, retention=0.25, dimension=5, batch_size=1.0
    )
    assert printed == pytest.approx(2.75)
    assert printed < still.gradient == pytest.approx(4.0)
    whole = masked_noisy_sgd_whole_gradient(run, variance=still.variance, least_retention=0.25)
    assert still.gradient <= whole < 1.12 * still.gradient
    met = masked_noisy_sgd_whole_gradient(replace(run, gap=0.0), variance=still.variance, least_retention=0.25)
    assert met == pytest.approx(still.gradient)


def test_the_share_r_in_the_place_of_the_retention_fails_for_a_fixed_mask() -> None:
    """The second proof's averaged line: half of the coordinates kept, the gradient in the other half, which stays."""
    run = Descent.at_paper_rate(smoothness=1.0, steps=100, gap=0.5)
    gradient, mask = np.array([0.0, 1.0]), np.array([True, False])
    printed = printed_masked_noisy_sgd(
        run,
        gradient_variance=0.0,
        noise_deviation=0.0,
        retention=even_share(1, 2),
        dimension=2,
        batch_size=1.0,
    )
    assert printed < float(gradient @ gradient)
    retention = retained_energy(gradient, mask)
    assert masked_noisy_sgd_whole_gradient(run, variance=0.0, least_retention=retention) == math.inf


def test_a_mask_that_follows_the_noise_sees_noise_with_a_mean() -> None:
    """Over all signs of the noise, the gradient being (3, 3): E⟨∇L, m ⊙ z⟩ is 0 for a fixed mask, 1.5 for this one."""
    gradient = np.array([3.0, 3.0])
    noises = [np.array(signs) for signs in itertools.product([-1.0, 1.0], repeat=2)]
    fixed = np.mean([gradient @ (np.array([1, 0]) * noise) for noise in noises])
    following = np.mean([gradient @ (top_k_mask(gradient + noise, 1) * noise) for noise in noises])
    assert (fixed, following) == (0.0, 1.5)


def test_clipping_can_turn_the_mean_round_and_the_first_bound_does_not_mind() -> None:
    gradients = np.array([[10.0], [-1.0], [-1.0]])
    inner = float(gradients.mean() * clipped(gradients, 1.0).mean())
    assert inner == pytest.approx(-8 / 9)
    assert inner <= inner_product_bound(Descent(smoothness=1.0, learning_rate=0.01, steps=1, gap=0.0), 1.0)


def test_clipped_descent_rests_where_the_gradient_is_large_and_the_bias_accounts_for_it() -> None:
    """Nine records at 0, one at 10, C = 1: rest at 1/9, where the gradient is −8/9 and the bias as long."""
    problem = Quadratic(curvature=np.ones(1), records=np.array([[10.0]] + 9 * [[0.0]]))
    recipe = Recipe(learning_rate=0.01, steps=50, clip_norm=1.0, mask=np.ones(1, dtype=bool))
    trace = followed(problem, recipe, np.array([1 / 9]), runs=1, seed=0)
    bound = inner_product_bound(Descent(smoothness=1.0, learning_rate=0.01, steps=50, gap=0.0), 1.0)
    gradient = float(trace.gradient[0])
    assert gradient == pytest.approx(64 / 81, rel=1e-9)
    assert bound < gradient / 100  # read as a bound on the gradient, the theorem would be false
    assert gradient <= gradient_norm_bound(bound, float(trace.squared_bias[0])) < gradient + 0.011


@given(seeds, st.floats(0.0, 50.0))
def test_a_mask_pays_in_the_bound_above_the_break_even_retention_and_not_below(seed: int, noise: float) -> None:
    generator = np.random.default_rng(seed)
    run = Descent.at_paper_rate(smoothness=1.0, steps=100, gap=float(generator.uniform(0, 5)))
    masked = update_variance(kept_gradient_variance=1.0, noise_deviation=noise, active=3, batch_size=8.0)
    whole = update_variance(kept_gradient_variance=2.0, noise_deviation=noise, active=12, batch_size=8.0)
    even = break_even_retention(run, masked_variance=masked, whole_variance=whole)
    without = masked_noisy_sgd(run, variance=whole)
    for retention, pays in ((min(1.0, 1.01 * even), True), (0.99 * even, False)):
        bound = masked_noisy_sgd_whole_gradient(run, variance=masked, least_retention=retention)
        assert (bound < without) is pays


def test_bad_numbers_are_named() -> None:
    good = Descent(smoothness=1.0, learning_rate=0.1, steps=1, gap=1.0)
    for field, value in (("smoothness", 0.0), ("learning_rate", -1.0), ("steps", 0), ("gap", math.nan)):
        with pytest.raises(InputError, match=f"{field}={value}"):
            replace(good, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"learning_rate=2\.0.*below 2/smoothness"):
        masked_noisy_sgd(replace(good, learning_rate=2.0), variance=1.0)
    with pytest.raises(InputError, match=r"least_retention=1\.5"):
        masked_noisy_sgd_whole_gradient(good, variance=1.0, least_retention=1.5)
    with pytest.raises(InputError, match="steps=0"):
        Descent.at_paper_rate(smoothness=1.0, steps=0, gap=1.0)
    with pytest.raises(InputError, match="squared_bias=-1"):
        gradient_norm_bound(1.0, -1.0)
    with pytest.raises(InputError, match="noise_deviation=-2"):
        update_variance(kept_gradient_variance=1.0, noise_deviation=-2.0, active=1, batch_size=1.0)
