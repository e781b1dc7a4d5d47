"""What a followed run reports, against its own definition step by step and against expectations in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adadpigu.errors import InputError
from adadpigu_paper.theory.known_problems import Quadratic, Recipe, followed
from adadpigu_paper.theory.second_moments import exact_poisson_moment

RECORDS = np.random.default_rng(1).standard_normal((6, 3))
PROBLEM = Quadratic(curvature=np.array([1.0, 2.0, 4.0]), records=RECORDS)
MASK = np.array([True, False, True])


def test_loss_and_gradients_are_those_of_the_sum_over_records() -> None:
    theta = np.array([0.3, -1.0, 2.0])
    losses = [0.5 * float((theta - x) @ (PROBLEM.curvature * (theta - x))) for x in RECORDS]
    least = [0.5 * float((PROBLEM.best - x) @ (PROBLEM.curvature * (PROBLEM.best - x))) for x in RECORDS]
    assert float(PROBLEM.excess(theta)) == pytest.approx(np.mean(losses) - np.mean(least))
    assert PROBLEM.gradients(theta).mean(axis=0) == pytest.approx(PROBLEM.gradient(theta))
    step = 1e-6 * np.array([0.0, 1.0, 0.0])
    slope = (PROBLEM.excess(theta + step) - PROBLEM.excess(theta - step)) / 2e-6
    assert float(slope) == pytest.approx(PROBLEM.gradient(theta)[1], rel=1e-6)
    assert PROBLEM.smoothness == 4.0


def test_a_full_batch_run_without_noise_is_masked_clipped_descent() -> None:
    theta, inner, energy, bias = np.array([2.0, 2.0, -2.0]), 0.0, 0.0, 0.0
    trace = followed(PROBLEM, Recipe(learning_rate=0.1, steps=7, clip_norm=0.5, mask=MASK), theta, runs=2, seed=0)
    retention = 0.0
    for _ in range(7):
        gradient, update = PROBLEM.curvature * (theta - RECORDS.mean(axis=0)), np.zeros(3)
        for record in RECORDS:
            own = MASK * PROBLEM.curvature * (theta - record)
            update += own * min(1.0, 0.5 / math.sqrt(own @ own)) / 6
        inner, energy = inner + gradient @ update / 7, energy + gradient @ gradient / 7
        bias += float(np.sum((gradient - update) ** 2)) / 7
        retention = max(retention, float(np.sum((MASK * gradient) ** 2) / (gradient @ gradient)))
        theta = theta - 0.1 * update
    assert trace.inner_product == pytest.approx([inner, inner])
    assert trace.gradient == pytest.approx([energy, energy])
    assert trace.squared_bias == pytest.approx([bias, bias])
    assert trace.end == pytest.approx(2 * [float(PROBLEM.excess(theta))])
    assert trace.largest_retention == pytest.approx(retention)


def test_one_poisson_step_with_noise_ends_where_expected() -> None:
    """E L(θ₂) in closed form against 20,000 runs; false-alarm rate below 1e-6 (5.5 deviations of a normal)."""
    even = Quadratic(curvature=np.full(3, 2.0), records=RECORDS)
    recipe = Recipe(learning_rate=0.3, steps=1, clip_norm=0.5, mask=MASK, sample_rate=0.4, noise_multiplier=1.5)
    start = np.array([1.0, -1.0, 0.5])
    trace = followed(even, recipe, start, runs=20_000, seed=5)
    bounded = recipe.bounded(even, start)
    moment = exact_poisson_moment(bounded, 0.4) + 2 * (1.5 * 0.5 / 2.4) ** 2
    inner = float(even.gradient(start) @ bounded.mean(axis=0))
    expected = float(even.excess(start)) - 0.3 * inner + 0.3**2 * moment
    assert trace.inner_product[0] == pytest.approx(inner)
    error = float(trace.end.std(ddof=1)) / math.sqrt(20_000)
    assert abs(float(trace.end.mean()) - expected) < 5.5 * error


def test_shapes_and_curvatures_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"shapes \[2\], \[6, 3\]"):
        Quadratic(curvature=np.ones(2), records=RECORDS)
    with pytest.raises(InputError, match=r"curvature=0\.0"):
        Quadratic(curvature=np.array([1.0, 0.0, 1.0]), records=RECORDS)
