"""DPDR: both parts against float64 numpy, what they become without bounds and noise, shares, and a planted leak."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adadpigu.core.mechanism import Release
from adadpigu.core.sensitive import unseal
from adadpigu.methods import DPSGD
from adadpigu.methods.base import MethodState, RunContext
from adadpigu_systems.dpdr import DPDR, _State, across, least_noise_share
from float64_world import LR, SIGMA, B, clipped_sum, gradients, record
from replays import breaches, neighbours
from trials import small_net, weights

START = weights(small_net()).double().numpy()
D = len(START)


class Along(DPDR):
    """DPDR whose direction is e₁ for good."""

    def begin(self, context: RunContext) -> MethodState:
        made = _State(self, context)
        made._average[0] = 1.0
        return made


def test_what_lies_across_is_orthogonal_and_both_parts_make_the_gradient() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 40, dtype=torch.float64, generator=rng)
    u = torch.randn(40, dtype=torch.float64, generator=rng)
    u /= u.norm()
    rest = across(rows, u)
    torch.testing.assert_close(rest @ u, torch.zeros(7).double(), atol=1e-14, rtol=0)
    torch.testing.assert_close(rest + (rows @ u)[:, None] * u, rows, atol=1e-14, rtol=0)


def test_the_scalars_share_makes_the_updates_noise_least() -> None:
    for d, along, other in [(26_010, 0.5, 0.5), (900, 2.0, 0.3), (10, 0.1, 1.0)]:
        p = np.linspace(1e-5, 1 - 1e-5, 1_000_001)
        total = along**2 / p + d * other**2 / (1 - p)
        assert p[total.argmin()] == pytest.approx(least_noise_share(d, along, other), abs=2e-6)


@pytest.mark.parametrize(("share", "until"), [(None, 1.0), (0.2, 0.6)])
def test_a_run_is_the_formulas_walked_from_release_to_release(share: float | None, until: float) -> None:
    method = DPDR(clip_norm=0.3, along_clip=0.2, along_share=share, decay=0.7, until=until)
    recorded, theta, average = record(method, steps=5), START, np.zeros(D)
    for t in range(5):
        rows = gradients(theta, recorded.drawn(t))
        if t == 0 or t >= 5 * until:
            np.testing.assert_allclose(recorded.total(t), clipped_sum(rows, 0.3), atol=1e-9)
            update = recorded.released(t) / B
        else:
            u = average / np.linalg.norm(average)
            along = [np.array([g @ u]) for g in rows]
            np.testing.assert_allclose(recorded.total(t), clipped_sum(along, 0.2), atol=1e-9)
            rest = [g - (g @ u) * u for g in rows]
            np.testing.assert_allclose(recorded.total(t, 1), clipped_sum(rest, 0.3), atol=1e-9)
            s, v = recorded.released(t, "along"), recorded.released(t, "across")
            update = (v - (v @ u) * u + s * u) / B
        theta, average = theta - LR * update, 0.7 * average + 0.3 * update
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_a_draw_is_one_event_at_sigma() -> None:
    recorded = record(DPDR(until=1.0), steps=2)
    plain = record(DPSGD(), steps=2)
    assert recorded.run.epsilon == plain.run.epsilon
    shares = [call.share for call in recorded.recorder.calls[1]]
    assert sum(shares) == pytest.approx(1, abs=1e-15)
    made = recorded.recorder.released[1]
    deviations = [made[name].noise_stddev / 0.5 for name in ("along", "across")]  # type: ignore[operator]
    assert sum(d**-2 for d in deviations) ** -0.5 == pytest.approx(SIGMA, rel=1e-12)


def test_without_bounds_and_noise_the_update_is_the_mean_gradient() -> None:
    recorded, theta = record(DPDR(clip_norm=1e3, until=1.0, decay=0.0), steps=3, sigma=1e-12), START
    for t in range(3):
        theta = theta - LR * np.sum(gradients(theta, recorded.drawn(t)), axis=0) / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-8)


def test_along_the_first_coordinate_it_is_two_masked_sums() -> None:
    recorded = record(Along(clip_norm=0.3, along_clip=0.01, until=1.0), steps=1)
    rows = gradients(START, recorded.drawn(0))
    np.testing.assert_allclose(recorded.total(0), clipped_sum([g[:1] for g in rows], 0.01), atol=1e-12)
    masked = clipped_sum([np.concatenate([[0.0], g[1:]]) for g in rows], 0.3)
    np.testing.assert_allclose(recorded.total(0, 1), masked, atol=1e-9)


class Unnoised(_State):
    """The direction of the un-noised sum: a leak."""

    def _decomposed(self, batches: Any, u: Tensor) -> Release:
        update = super()._decomposed(batches, u)
        self._average = unseal(batches._mechanism._sums[-1]).clone()
        return update


class Leaking(DPDR):
    def begin(self, context: RunContext) -> MethodState:
        return Unnoised(self, context)


def test_replay_catches_a_direction_from_private_gradients() -> None:
    found = breaches(neighbours(Leaking(until=1.0), "large", "zero"))
    assert any("another learned['direction']" in text for texts in found.values() for text in texts)


@pytest.mark.parametrize("method", [DPDR(until=1.0), DPDR(until=1.0, along_clip=0.01, along_share=0.5, decay=0.0)])
def test_no_record_moves_either_part_beyond_its_bound(method: DPDR) -> None:
    found = neighbours(method)
    assert breaches(found) == {}
    assert max(result.largest for result in found.values()) > 0.99
