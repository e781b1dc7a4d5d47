"""The energy-retention lemma is held to its bound and its case of equality; what the paper makes of it is refuted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adadpigu.errors import InputError
from adadpigu_paper.theory.retained_energy import (
    Numbers,
    even_share,
    expected_energy,
    printed_expected_energy,
    retained_energy,
    top_k_mask,
)

entries = st.floats(min_value=-1e6, max_value=1e6, allow_subnormal=False)
vectors = st.integers(1, 12).flatmap(lambda size: arrays(np.float64, size, elements=entries))


@given(vectors, st.data())
def test_own_top_k_keeps_at_least_its_even_share_and_the_inner_product_is_that_energy(
    vector: Numbers, data: st.DataObject
) -> None:
    active = data.draw(st.integers(1, len(vector)))
    mask = top_k_mask(vector, active)
    assert mask.sum() == active
    kept = retained_energy(vector, mask)
    assert even_share(active, len(vector)) - 1e-12 <= kept <= 1
    assert float(vector @ (mask * vector)) == pytest.approx(kept * float(vector @ vector), rel=1e-12, abs=1e-300)


@given(vectors, st.data())
def test_no_mask_of_the_same_size_keeps_more_than_top_k(vector: Numbers, data: st.DataObject) -> None:
    """Against every mask there is."""
    assume(len(vector) <= 6)
    active = data.draw(st.integers(1, len(vector)))
    best = retained_energy(vector, top_k_mask(vector, active))
    for chosen in itertools.combinations(range(len(vector)), active):
        mask = np.isin(np.arange(len(vector)), chosen)
        assert retained_energy(vector, mask) <= best + 1e-12


@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=2, max_size=12), st.floats(1e-3, 1e3), st.data())
def test_equal_magnitudes_and_no_others_keep_just_the_even_share(
    signs: list[float], size: float, data: st.DataObject
) -> None:
    vector = size * np.array(signs)
    active = data.draw(st.integers(1, len(signs) - 1))
    share = even_share(active, len(signs))
    assert retained_energy(vector, top_k_mask(vector, active)) == pytest.approx(share, rel=1e-12)
    vector[data.draw(st.integers(0, len(signs) - 1))] *= data.draw(st.sampled_from([0.0, 0.9, 1.1, 5.0]))
    assert retained_energy(vector, top_k_mask(vector, active)) > share + 1e-4


def test_another_mask_may_keep_nothing() -> None:
    """What the paper's proof calls r, the second theorem's α_t under a fixed mask, has no lower bound."""
    vector, mask = np.array([0.0, 0.0, 0.0, 1.0]), np.array([True, True, True, False])
    assert retained_energy(vector, mask) == 0 < even_share(3, 4)


@pytest.mark.parametrize("active", [1, 3])
def test_the_corollarys_supremum_is_one_for_every_k(active: int) -> None:
    """The paper places it in (0, 1)."""
    vector = np.where(np.arange(10) < active, 2.0, 0.0)
    assert retained_energy(vector, top_k_mask(vector, active)) == 1


def test_a_zero_vector_loses_nothing_and_tiny_ones_are_not_taken_for_it() -> None:
    mask = np.array([True, False])
    assert retained_energy(np.zeros(2), mask) == 1
    assert retained_energy(np.array([3e-200, 4e-200]), mask) == pytest.approx(0.36)


def test_noise_under_a_mask_that_does_not_see_it_keeps_its_even_share_and_under_its_own_top_k_more() -> None:
    """Exact for two standard normals: E max(z₁², z₂²) = 1 + 2/π, of a total of 2; by quadrature in polar angle."""
    fixed = expected_energy(np.ones(2), np.array([True, False])) / 2
    assert fixed == even_share(1, 2) == 0.5
    angles = (np.arange(100_000) + 0.5) * (2 * math.pi / 100_000)
    plane = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    own = np.mean([retained_energy(point, top_k_mask(point, 1)) for point in plane[::100]])
    assert own == pytest.approx((1 + 2 / math.pi) / 2, abs=1e-5)


def test_the_gradients_retention_bounds_no_noise() -> None:
    """The paper's use of the corollary: noise in the mask is said to have α_t of its energy, α_t the gradient's."""
    gradient, mask = np.array([0.1, 0.1, 1.0, 1.0]), np.array([True, True, False, False])
    noise = np.ones(4)
    assert expected_energy(noise, mask) > printed_expected_energy(4.0, retained_energy(gradient, mask))
    top = top_k_mask(gradient, 2)
    inside = np.where(top, 1.0, 0.0)  # deviations of records, all of them in the gradient's own top-k
    gradient = np.array([0.9, 0.9, 1.0, 1.0])
    assert expected_energy(inside, top) > printed_expected_energy(inside.sum(), retained_energy(gradient, top))


@pytest.mark.parametrize("active", [0, 5])
def test_a_mask_of_no_or_too_many_coordinates_is_refused(active: int) -> None:
    with pytest.raises(InputError, match=f"active={active}.*dimension=4"):
        top_k_mask(np.ones(4), active)
