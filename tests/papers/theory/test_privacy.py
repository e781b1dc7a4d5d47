"""The privacy theorems of docs/theory-privacy.md: masks, sampling, and steps that follow from earlier releases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from torch import Tensor

from adadpigu.accounting import draw_event, epsilon
from adadpigu.accounting.closed_forms import gaussian_delta
from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import GaussianMechanism
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import unseal
from conftest import bounded, one_draw_ledger, released

SIGMA, CLIP = 1.3, 0.5
MASK = torch.tensor([True, True, False, True, False, False])


def query(mask: Tensor | None = MASK, top_k: float = 1.0) -> GradientSum:
    """A stage-2 sum whose α and √β + μ are no longer where they started."""
    center, scale = torch.linspace(-0.2, 0.3, 6), torch.linspace(0.5, 2.0, 6)
    return GradientSum(clip_norm=CLIP, active=mask, center=center, scale=scale, top_k=top_k)


def moved(rows: Tensor, record: Tensor, asked: GradientSum) -> float:
    """How far one record more moves the sum, in units of the clip norm."""
    with_it, without = (unseal(bounded(found, asked)) for found in (torch.cat([rows, record[None]]), rows))
    return float((with_it - without).norm()) / CLIP


def shifted_delta(shift: float, epsilon_: float | np.ndarray, sigma: float = SIGMA) -> np.ndarray:
    """δ of N(shift, σ²) against N(0, σ²) at any ε, below 0 too."""
    at = np.asarray(epsilon_, dtype=float)
    if shift == 0:
        return np.asarray(np.maximum(0.0, -np.expm1(at)))
    upper, lower = shift / (2 * sigma) - at * sigma / shift, -shift / (2 * sigma) - at * sigma / shift
    return np.asarray(ndtr(upper) - np.exp(at) * ndtr(lower))


def sampled_delta(rate: float, sigma: float, epsilon_: float, shift: float = 1.0) -> float:
    """The larger δ of (1 − q) N(0, σ²) + q N(shift, σ²) against N(0, σ²), in both directions, in closed form."""
    scaled = math.exp(epsilon_)

    def crossing(ratio: float) -> float:  # where q·e^{(cx − c²/2)/σ²} is that large
        return shift / 2 + sigma**2 / shift * math.log(ratio / rate)

    above = crossing(scaled - 1 + rate)
    removed = rate * ndtr((shift - above) / sigma) - (scaled - 1 + rate) * ndtr(-above / sigma)
    spare = 1 - scaled * (1 - rate)
    if spare <= 0:
        return float(removed)
    below = crossing(spare / scaled)
    added = spare * ndtr(below / sigma) - scaled * rate * ndtr((below - shift) / sigma)
    return float(max(removed, added))


def test_releases_of_neighbours_agree_on_masked_coordinates_and_differ_by_the_clipped_record_elsewhere() -> None:
    """Under the same noise: exactly 0 outside the mask, whatever the records are; inside, the sums' difference."""
    torch.manual_seed(0)
    rows, record = torch.randn(5, 6).double(), 3 * torch.randn(6).double()
    asked = query()
    made = []
    for found in (rows, torch.cat([rows, record[None]])):
        mechanism = GaussianMechanism(one_draw_ledger(SIGMA), ReproducibleRandomness(7))
        made.append(released(mechanism, found, asked, sigma=SIGMA)[asked.name].value)
    without, with_it = made
    assert (without[~MASK] == 0).all()
    assert (with_it[~MASK] == 0).all()
    assert (without[MASK] != 0).all()
    own = unseal(bounded(record[None], asked))
    assert torch.allclose(with_it - without, own, atol=1e-12)
    assert float(own.norm()) == pytest.approx(CLIP)


@given(st.integers(0, 10_000), st.sampled_from([1.0, 0.4]), st.floats(0.0, 6.0))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_mask_and_top_k_change_no_profile_for_a_record_inside_and_hide_one_outside(
    seed: int, top_k: float, epsilon_: float
) -> None:
    torch.manual_seed(seed)
    rows, record = torch.randn(3, 6).double(), 10 * torch.randn(6).double()
    inside = shifted_delta(moved(rows, record, query(top_k=top_k)), epsilon_)
    whole = shifted_delta(moved(rows, record, query(None, top_k=top_k)), epsilon_)
    assert inside == pytest.approx(float(whole), rel=1e-6, abs=1e-12)
    assert inside == pytest.approx(gaussian_delta(SIGMA, epsilon_), rel=1e-6, abs=1e-12)
    asked = query()
    assert asked.center is not None
    outside = torch.where(MASK, asked.center.double(), record)
    assert moved(rows, outside, query(top_k=top_k)) == pytest.approx(0.0, abs=1e-12)


@given(st.floats(0.01, 0.9), st.floats(0.5, 4.0), st.floats(0.01, 3.0), st.floats(0.05, 0.99))
@settings(deadline=None)
def test_a_shorter_record_costs_less_under_sampling(rate: float, sigma: float, epsilon_: float, shift: float) -> None:
    assert sampled_delta(rate, sigma, epsilon_, shift) <= sampled_delta(rate, sigma, epsilon_) + 1e-12


@pytest.mark.parametrize(("rate", "sigma"), [(1 / 60, 1.0), (0.1, 2.0), (0.5, 0.8)])
def test_what_a_step_is_charged_is_the_theorems_pair(rate: float, sigma: float) -> None:
    for delta in (1e-3, 1e-5):
        charged = epsilon(draw_event(rate, [sigma]), delta)
        assert sampled_delta(rate, sigma, charged) <= delta * (1 + 1e-6)
        assert sampled_delta(rate, sigma, 0.99 * charged - 1e-3) > delta


def two_steps(epsilon_: float, kept: np.ndarray, first: np.ndarray) -> float:
    """δ of a release r of N(1, σ²) against N(0, σ²), then of a second whose mask, chosen by r, may keep the record.

    ∫ p(r) δ_r(ε − ln(p(r)/q(r))) dr, where δ_r belongs to the second release.
    """
    loss = (first - 0.5) / SIGMA**2
    density = np.exp(-((first - 1) ** 2) / (2 * SIGMA**2)) / (SIGMA * math.sqrt(2 * math.pi))
    second = np.where(kept, shifted_delta(1.0, epsilon_ - loss), shifted_delta(0.0, epsilon_ - loss))
    return float(np.trapezoid(density * second, first))


@pytest.mark.parametrize("epsilon_", [0.1, 1.0, 3.0])
def test_a_mask_that_follows_an_earlier_release_costs_no_more_than_two_plain_steps(epsilon_: float) -> None:
    first = np.linspace(-20, 20, 200_001)
    plain = gaussian_delta(SIGMA / math.sqrt(2), epsilon_)
    assert two_steps(epsilon_, np.ones_like(first, dtype=bool), first) == pytest.approx(plain, rel=1e-6)
    for threshold in (-1.0, 0.0, 1.0, 2.0):
        found = two_steps(epsilon_, first > threshold, first)
        assert gaussian_delta(SIGMA, epsilon_) <= found * (1 + 1e-6) <= plain * (1 + 2e-6)


def test_a_mask_from_the_sum_itself_is_not_private_at_any_noise() -> None:
    """The printed theorem's mask, if it is learned from records without noise: which coordinate moves tells of one."""
    others, record = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double(), torch.tensor([0.0, 3.0]).double()
    moves = []
    for rows in (others, torch.cat([others, record[None]])):
        total = rows.sum(dim=0)
        asked = GradientSum(clip_norm=1.0, active=total == total.max())
        mechanism = GaussianMechanism(one_draw_ledger(100.0), ReproducibleRandomness(1))
        moves.append(released(mechanism, rows, asked, sigma=100.0)[asked.name].value != 0)
    assert moves[0].tolist() == [True, False]
    assert moves[1].tolist() == [False, True]
