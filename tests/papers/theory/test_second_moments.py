"""Moments of clipped Poisson batches against every batch there is, and the noise's against the generator of normals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adadpigu.errors import InputError
from adadpigu_paper.theory.retained_energy import Numbers
from adadpigu_paper.theory.second_moments import (
    clipped,
    exact_poisson_moment,
    fixed_batch_moment,
    masked_noise_moment,
    poisson_batch_moment,
    printed_clipped,
)

rows = st.tuples(st.integers(1, 6), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-10, 10, allow_subnormal=False))
)
rates = st.floats(0.05, 1.0)


def enumerated(vectors: Numbers, rate: float) -> tuple[Numbers, float]:
    """E ḡ and E‖ḡ‖² over all batches, each with its probability."""
    count, mean, square = len(vectors), np.zeros(vectors.shape[1]), 0.0
    for taken in itertools.product([0, 1], repeat=count):
        chance = math.prod(rate if one else 1 - rate for one in taken)
        batch = np.array(taken) @ vectors / (rate * count)
        mean, square = mean + chance * batch, square + chance * float(batch @ batch)
    return mean, square


@given(rows, rates, st.floats(0.1, 20))
def test_a_poisson_batch_has_the_moment_that_all_its_batches_give_and_stays_below_the_bound(
    gradients: Numbers, rate: float, clip_norm: float
) -> None:
    vectors = clipped(gradients, clip_norm)
    mean, square = enumerated(vectors, rate)
    assert mean == pytest.approx(vectors.mean(axis=0), abs=1e-9)
    assert exact_poisson_moment(vectors, rate) == pytest.approx(square, rel=1e-9, abs=1e-12)
    assert square <= poisson_batch_moment(clip_norm, batch_size=rate * len(vectors), sample_rate=rate) * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_poisson_bound_is_attained_and_the_papers_is_exceeded(rate: float) -> None:
    vectors = np.tile([0.6, 0.8], (5, 1))
    exact = enumerated(vectors, rate)[1]
    assert poisson_batch_moment(1.0, batch_size=5 * rate, sample_rate=rate) == pytest.approx(exact, rel=1e-12)
    assert exact > fixed_batch_moment(1.0)


def test_a_full_batch_is_no_longer_than_the_clip() -> None:
    assert poisson_batch_moment(3.0, batch_size=7, sample_rate=1.0) == fixed_batch_moment(3.0) == 9.0


@given(rows, st.floats(0.1, 20))
def test_a_clip_shortens_long_rows_to_its_bound_and_leaves_short_ones(gradients: Numbers, clip_norm: float) -> None:
    norms, after = np.linalg.norm(gradients, axis=1), np.linalg.norm(clipped(gradients, clip_norm), axis=1)
    assert after == pytest.approx(np.minimum(norms, clip_norm), rel=1e-12)


def test_the_printed_clip_is_upside_down() -> None:
    gradients = np.array([[30.0, 40.0], [0.03, 0.04]])
    assert np.linalg.norm(printed_clipped(gradients, 1.0), axis=1) == pytest.approx([50.0, 0.0025])
    assert np.linalg.norm(clipped(gradients, 1.0), axis=1) == pytest.approx([1.0, 0.05])


def test_masked_noise_has_the_energy_of_one_draw_on_the_sum() -> None:
    """4,000 vectors of 50 kept normals: E‖·‖²/(kσ²C²/B²) is χ² over its degrees, n = 200,000.

    False-alarm rate below 1e-6: the relative deviation is √(2/n) = 0.0032, allowed are five of them.
    """
    mask = np.arange(200) % 4 == 0
    drawn = np.random.default_rng(3).normal(0.0, 1.5 * 0.7, (4000, 200)) * mask / 16
    claimed = masked_noise_moment(active=50, noise_multiplier=1.5, clip_norm=0.7, batch_size=16)
    ratio = float(np.mean(np.sum(drawn**2, axis=1))) / claimed
    assert abs(ratio - 1) < 5 * math.sqrt(2 / 200_000)
    by_record = 50 * (1.5 * 0.7) ** 2 / 16  # the third proof: a draw a record, averaged
    assert by_record == pytest.approx(16 * claimed)


@pytest.mark.parametrize("rate", [0.0, 1.5, math.nan])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match=f"sample_rate={rate}"):
        poisson_batch_moment(1.0, batch_size=2, sample_rate=rate)


def test_a_clip_or_batch_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"clip_norm=0\.0"):
        fixed_batch_moment(0.0)
    with pytest.raises(InputError, match=r"batch_size=0\.0"):
        masked_noise_moment(active=1, noise_multiplier=1.0, clip_norm=1.0, batch_size=0.0)
    with pytest.raises(InputError, match="active=0"):
        masked_noise_moment(active=0, noise_multiplier=1.0, clip_norm=1.0, batch_size=1.0)
