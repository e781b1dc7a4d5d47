"""Gradient encoding: the projection's laws, runs recomputed in float64, and what it equals where nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adadpigu.core.mechanism import Release
from adadpigu.core.sensitive import unseal
from adadpigu.data.public import PublicRecords, process_records
from adadpigu.methods import DPSGD
from adadpigu.methods.base import MethodState, RunContext, Stage
from adadpigu_systems.encoding import GradientEncoding, PublicEncoding, SignedSums, _State
from adadpigu_systems.projection import PCDPSGD
from float64_world import DATA, LR, SIGMA, B, clipped_sum, gradients, record
from replays import breaches, neighbours
from trials import small_net, weights

START = weights(small_net()).double().numpy()
D = len(START)
MADE = process_records(40, DATA.train.take(torch.arange(1))[0], 10, 3)
PUBLIC = PublicRecords(inputs=MADE.inputs, targets=MADE.targets, origin="made up")


def matrix(code: SignedSums, size: int) -> np.ndarray:
    """E, by its columns."""
    return code.encoded(torch.eye(size, dtype=torch.float64)).T.numpy()


def drawn(size: int, together: int, seed: int) -> SignedSums:
    return SignedSums.draw(size, together, np.random.default_rng(seed))


@pytest.mark.parametrize(("size", "together"), [(12, 3), (13, 4), (7, 7), (9, 1)])
def test_a_projection_is_signed_sums_of_every_coordinate_once(size: int, together: int) -> None:
    code = drawn(size, together, 0)
    e = matrix(code, size)
    assert e.shape == (code.count, size) == (-(-size // together), size)
    np.testing.assert_array_equal(np.abs(e).sum(0), np.ones(size))
    assert (np.abs(e).sum(1) <= together).all()
    values = torch.randn(code.count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(code.decoded(values).numpy(), e.T @ values.numpy(), atol=1e-15)
    if together == 1:
        np.testing.assert_array_equal(e.T @ e, np.eye(size))


def test_what_comes_back_is_the_gradient_on_average() -> None:
    """E[EᵀE g] = g within 4 standard errors an entry, by 20,000 projections; their seeds are fixed.

    A correct projection would fail with probability 30·6e-5 under a seed drawn anew.
    """
    g = torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    rng = np.random.default_rng(5)
    back = []
    for _ in range(20_000):
        code = SignedSums.draw(30, 5, rng)
        back.append(code.decoded(code.encoded(g[None])[0]))
    found = torch.stack(back)
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - g).abs() < 4 * error).all()
    spread = (found - g).square().sum(1).mean() / g.square().sum()
    assert 3 < spread < 6  # about d/k


def test_a_run_is_encoded_clipped_released_denoised_and_decoded() -> None:
    method = GradientEncoding(clip_norm=0.3, together=4, renew_every=2)
    recorded, theta = record(method, steps=4, denoise="james-stein"), START
    for t in range(4):
        e = matrix(SignedSums.draw(D, 4, np.random.default_rng([0, t // 2])), D)
        np.testing.assert_allclose(e @ e.T, np.diag(np.abs(e).sum(1)), atol=0)
        rows = [e @ g for g in gradients(theta, recorded.drawn(t))]
        np.testing.assert_allclose(recorded.total(t), clipped_sum(rows, 0.3), atol=1e-9)
        released = recorded.released(t, "code")
        kept = max(0.0, 1 - (len(released) - 2) * (SIGMA * 0.3) ** 2 / (released @ released))
        theta = theta - LR * kept * (e.T @ released) / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_where_nothing_is_joined_and_no_noise_is_added_it_is_dpsgd() -> None:
    ours = record(GradientEncoding(clip_norm=0.3, together=1), steps=4, sigma=1e-12)
    plain = record(DPSGD(clip_norm=0.3), steps=4, sigma=1e-12)
    assert torch.allclose(weights(ours.run.model), weights(plain.run.model), atol=1e-9, rtol=0)
    assert not np.allclose(weights(ours.run.model).numpy(), START, atol=1e-3)


def test_encoding_by_public_directions_is_the_projection_before_the_clip() -> None:
    options: dict[str, Any] = {"rank": 5, "clip_norm": 0.2}
    ours = record(PublicEncoding(**options), steps=3, public=PUBLIC, denoise="soft")
    theirs = record(PCDPSGD(**options), steps=3, public=PUBLIC, denoise="soft")
    assert torch.equal(weights(ours.run.model), weights(theirs.run.model))
    v = ours.recorder.calls[0][0].public["learned['basis 0']"].numpy()
    released = ours.released(0, "embedding")
    clearer = np.sign(released) * np.maximum(np.abs(released) - SIGMA * 0.2 * np.sqrt(2 * np.log(5)), 0)
    one = record(PublicEncoding(**options), steps=1, public=PUBLIC, denoise="soft")
    np.testing.assert_allclose(weights(one.run.model).numpy(), START - LR * v @ clearer / B, atol=1e-9)


class Directions(_State):
    """Signs that follow the un-noised sum: a planted code book."""

    _leaked: Tensor

    def step(self, batches: Any, stage: Stage, index: int) -> Release:
        if index > 0:
            self._code = replace(self._code, signs=self._leaked)
        update = super().step(batches, stage, index)
        total = unseal(batches._mechanism._sums[-1])
        self._leaked = torch.where(self._code.decoded(total) < 0, -1.0, 1.0).double()
        return update


@dataclass(frozen=True, kw_only=True)
class Leaking(GradientEncoding):
    def begin(self, context: RunContext) -> MethodState:
        return Directions(self, context)


def test_replay_catches_a_code_book_from_private_gradients() -> None:
    found = breaches(neighbours(Leaking(), "large", "zero"))
    assert any("another learned['signs']" in text for texts in found.values() for text in texts)


@pytest.mark.parametrize("method", [GradientEncoding(), GradientEncoding(together=50, renew_every=3)])
def test_no_record_moves_the_code_beyond_its_bound(method: GradientEncoding) -> None:
    found = neighbours(method, denoise="james-stein")
    assert breaches(found) == {}
    assert max(result.largest for result in found.values()) > 0.99
