"""Bound against measurement: every statement of the theory on a problem where the truth is known.

    measure_rows(quick) -> rows (claim, problem, at, measured, corrected, printed) -> drawing.draw

Seeded, float64, seconds on one core. Records are synthetic; nothing sensitive is looked at.
"""

from __future__ import annotations

import math

import numpy as np

from adadpigu_paper.theory.descent import Descent, gradient_norm_bound
from adadpigu_paper.theory.known_problems import Quadratic, Recipe, Still, followed
from adadpigu_paper.theory.retained_energy import Numbers, even_share, retained_energy, top_k_mask
from adadpigu_paper.theory.second_moments import (
    fixed_batch_moment,
    masked_noise_moment,
    poisson_batch_moment,
)
from adadpigu_paper.theory.theorems import (
    clipped_sgd,
    masked_noisy_sgd_whole_gradient,
    printed_clipped_sgd,
    printed_masked_noisy_sgd,
    printed_private_sgd,
    printed_proof_of_clipped_sgd,
    private_sgd,
    update_variance,
)

Row = dict[str, object]

LEMMA, POISSON, FIRST, SECOND, THIRD, BIAS = "lemma", "poisson", "first", "second", "third", "bias"
OWN_TOP_K = ("equal magnitudes, own top-k", "Gaussian, own top-k", "heavy tails, own top-k")
FOREIGN_MASK = "Gaussian, a mask of its smallest"
WALK, CROWD = "straight walk", "64 records, one a batch"
_SEED = 7


def measure_rows(quick: bool) -> list[Row]:
    """All rows; a quick measurement has fewer points, shorter runs and fewer of them."""
    return [
        *lemma_rows(dimension=100 if quick else 1000),
        *poisson_rows(draws=20_000 if quick else 200_000),
        *first_rows(longest=100 if quick else 1000, runs=8 if quick else 32),
        *second_rows(),
        *third_rows(steps=200 if quick else 1000, runs=4 if quick else 16),
        *bias_rows(longest=100 if quick else 1000),
    ]


def lemma_rows(*, dimension: int) -> list[Row]:
    """α over k/d: under a vector's own top-k, which keeps at least k/d, and under another mask, which need not.

    As printed means the share r that the second proof puts in the place of α_t, for a mask that is fixed.
    """
    generator = np.random.default_rng(_SEED)
    normal = generator.standard_normal(dimension)
    vectors = dict(zip(OWN_TOP_K, (np.ones(dimension), normal, generator.standard_t(2, dimension)), strict=True))
    rows = []
    for share in (0.1, 0.3, 0.6, 0.9):
        active = round(share * dimension)
        least = even_share(active, dimension)
        for problem, vector in vectors.items():
            kept = retained_energy(vector, top_k_mask(vector, active))
            rows.append(_row(LEMMA, problem, share, kept, corrected=least, printed=least))
        smallest = top_k_mask(1 / np.abs(normal), active)
        rows.append(_row(LEMMA, FOREIGN_MASK, share, retained_energy(normal, smallest), corrected=0.0, printed=least))
    return rows


def poisson_rows(*, draws: int) -> list[Row]:
    """E‖ḡ‖² over the expected B, for 256 records that all have the same clipped gradient of length C = 1."""
    generator = np.random.default_rng(_SEED)
    rows = []
    for batch_size in (1, 4, 16, 64, 256):
        rate = batch_size / 256
        squares = (generator.binomial(256, rate, draws) / batch_size) ** 2
        bound = poisson_batch_moment(1.0, batch_size=batch_size, sample_rate=rate)
        rows.append(
            _row(POISSON, "equal gradients", batch_size, squares, corrected=bound, printed=fixed_batch_moment(1.0))
        )
    return rows


def first_rows(*, longest: int, runs: int) -> list[Row]:
    """The average inner product over T: on a straight walk, where it meets its bound, and on a crowd of records."""
    rows = []
    for steps in (count for count in (1, 10, 100, 1000) if count <= longest):
        walk = Quadratic(curvature=np.array([4.0]), records=np.zeros((1, 1)))
        rows.append(_first_row(WALK, walk, np.array([steps / 4]), steps=steps, rate=0.25, sample_rate=1.0, runs=1))
        crowd = Quadratic(curvature=np.full(8, 2.0), records=3 * np.random.default_rng(_SEED).standard_normal((64, 8)))
        start = crowd.best + 1.0
        rows.append(_first_row(CROWD, crowd, start, steps=steps, rate=0.1, sample_rate=1 / 64, runs=runs))
    return rows


def _first_row(
    name: str, problem: Quadratic, start: Numbers, *, steps: int, rate: float, sample_rate: float, runs: int
) -> Row:
    everything = np.ones(len(start), dtype=bool)
    recipe = Recipe(learning_rate=rate, steps=steps, clip_norm=1.0, mask=everything, sample_rate=sample_rate)
    trace = followed(problem, recipe, start, runs=runs, seed=_SEED)
    descent = Descent(smoothness=problem.smoothness, learning_rate=rate, steps=steps, gap=trace.start)
    moment = poisson_batch_moment(1.0, batch_size=sample_rate * len(problem.records), sample_rate=sample_rate)
    corrected, printed = clipped_sgd(descent, batch_moment=moment), printed_clipped_sgd(descent, clip_norm=1.0)
    row = _row(FIRST, name, steps, trace.inner_product, corrected=corrected, printed=printed)
    return {**row, "proof": printed_proof_of_clipped_sgd(descent, clip_norm=1.0)}


def second_rows() -> list[Row]:
    """‖∇L‖² over α for T = 10,000 steps that leave it as it is: exact. The mask is the top-1 of every gradient."""
    rows = []
    for retention in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
        outside = 1 / retention - 1
        entries = max(1, math.ceil(1.01 * outside))
        still = Still(steps=10_000, frozen=np.full(entries, math.sqrt(outside / entries)))
        descent = Descent.at_paper_rate(smoothness=1.0, steps=still.steps, gap=still.gap)
        variance = update_variance(kept_gradient_variance=still.variance, noise_deviation=0.0, active=1, batch_size=1.0)
        printed = printed_masked_noisy_sgd(
            descent,
            gradient_variance=still.variance,
            noise_deviation=0.0,
            retention=retention,
            dimension=1 + entries,
            batch_size=1.0,
        )
        corrected = masked_noisy_sgd_whole_gradient(descent, variance=variance, least_retention=retention)
        rows.append(_row(SECOND, "still", retention, still.gradient, corrected=corrected, printed=printed))
    return rows


def third_rows(*, steps: int, runs: int) -> list[Row]:
    """The average inner product of masked DP-SGD over the expected B, under a fixed mask that misses the gradient.

    Half of 16 coordinates are kept, the other half is where the minimum is far away. As in the paper's one-step form, Δ
    is the decrease. The printed bound is given the largest α_t of all steps, the kindest reading of it.
    """
    generator = np.random.default_rng(_SEED)
    problem = Quadratic(curvature=np.full(16, 1.0), records=2 * generator.standard_normal((128, 16)))
    mask = np.arange(16) < 8
    start = problem.best + np.where(mask, 0.0, 10.0)
    rows = []
    for batch_size in (1, 4, 16, 64, 128):
        rate, sigma = 0.2, 2.0
        recipe = Recipe(
            learning_rate=rate,
            steps=steps,
            clip_norm=1.0,
            mask=mask,
            sample_rate=batch_size / 128,
            noise_multiplier=sigma,
        )
        trace = followed(problem, recipe, start, runs=runs, seed=_SEED)
        decrease = trace.start - float(trace.end.mean())
        descent = Descent(smoothness=1.0, learning_rate=rate, steps=steps, gap=decrease)
        moment = poisson_batch_moment(1.0, batch_size=batch_size, sample_rate=batch_size / 128)
        noise = masked_noise_moment(active=8, noise_multiplier=sigma, clip_norm=1.0, batch_size=batch_size)
        printed = printed_private_sgd(
            descent,
            clip_norm=1.0,
            noise_multiplier=sigma,
            retention=trace.largest_retention,
            dimension=16,
            batch_size=batch_size,
        )
        corrected = private_sgd(descent, batch_moment=moment, noise_moment=noise)
        rows.append(_row(THIRD, "fixed mask", batch_size, trace.inner_product, corrected=corrected, printed=printed))
    return rows


def bias_rows(*, longest: int) -> list[Row]:
    """‖∇L‖² over T with nine records at 0 and one at 10, all of them in every batch, C = 1: clipping stops at 1/9."""
    problem = Quadratic(curvature=np.ones(1), records=np.array([[10.0]] + 9 * [[0.0]]))
    rows = []
    for steps in (count for count in (1, 3, 10, 30, 100, 300, 1000) if count <= longest):
        recipe = Recipe(learning_rate=0.2, steps=steps, clip_norm=1.0, mask=np.ones(1, dtype=bool))
        trace = followed(problem, recipe, np.array([-2.0]), runs=1, seed=_SEED)
        descent = Descent(smoothness=1.0, learning_rate=0.2, steps=steps, gap=trace.start)
        inner = clipped_sgd(descent, batch_moment=fixed_batch_moment(1.0))
        row = _row(
            BIAS,
            "one outlier in ten",
            steps,
            trace.gradient,
            corrected=gradient_norm_bound(inner, float(trace.squared_bias.mean())),
            printed=None,
        )
        rows.append({**row, "inner_product": float(trace.inner_product.mean()), "inner_product_bound": inner})
    return rows


def _row(
    claim: str, problem: str, at: float, measured: Numbers | float, *, corrected: float, printed: float | None
) -> Row:
    values = np.atleast_1d(measured)
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return {
        "claim": claim,
        "problem": problem,
        "at": at,
        "measured": float(values.mean()),
        "standard_error": error,
        "corrected": corrected,
        "printed": printed,
    }
