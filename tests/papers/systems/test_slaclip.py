"""SlaClip: the joint bound, what the coordinates say, a run in float64, and a bound that finds a known quantile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadpigu.accounting import Ledger
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.data import TensorRecords
from adadpigu.errors import PrivacyLineError
from adadpigu.training import TrainingOptions, prepare
from adadpigu.training.loop import Session
from adadpigu.training.resuming import Begun
from adadpigu_systems.slaclip import SlaClip, with_slack
from float64_world import DATA, LR, B, gradients, record
from trials import prepare_small, small_digits, small_net, weights

C = 0.3


@pytest.mark.parametrize("coordinates", [1, 2, 10, 100])
def test_no_gradient_passes_the_bound_with_its_slack(coordinates: int) -> None:
    """10⁵ gradients of norms from 0 to far above C, edges of bins among them."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(100_000, 7, dtype=torch.float64, generator=rng)
    norms = C * 10 ** (6 * torch.rand(100_000, dtype=torch.float64, generator=rng) - 4)
    norms[:1000], norms[1000] = C * torch.arange(1000, dtype=torch.float64) / 500, 0.0
    rows *= (norms / rows.norm(dim=1))[:, None]
    made = with_slack(rows, clip_norm=C, coordinates=coordinates)
    assert made.shape == (100_000, 7 + coordinates)
    assert float(made.norm(dim=1).max()) <= C * (1 + 1e-12)
    assert float(made[1000].norm()) == pytest.approx(C, rel=1e-12)
    assert bool((made[:, 7:] >= 0).all())


def test_the_coordinates_are_the_share_below_on_average_over_each_bin() -> None:
    norms = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    made = with_slack(norms[:, None], clip_norm=0.8, coordinates=4)[:, 1:].mean(0) * 4**0.5 / 0.8
    for k in range(4):
        grid = 0.8 - 0.2 * k - 0.2 * (torch.arange(20_000) + 0.5).double() / 20_000
        share = torch.searchsorted(norms.sort().values, grid).double().mean() / 500
        assert float(made[k]) == pytest.approx(float(share), abs=1e-4)


def looped(rows: list[np.ndarray], bound: float, count: int) -> np.ndarray:
    total = np.zeros(len(rows[0]) + count)
    for g in rows:
        norm = float(np.linalg.norm(g))
        slack = np.sqrt(count) * max(bound - norm, 0.0)
        for k in range(count):  # fill one after the other
            s = min(slack, bound / np.sqrt(count))
            total[len(g) + k] += s
            slack -= s
        total[: len(g)] += g * min(1.0, bound / norm)
    return total


def test_a_run_moves_its_bound_by_what_was_released() -> None:
    method = SlaClip(clip_norm=C, coordinates=3, clip_rate=1.0, quantile=0.7)
    recorded, theta, bound = record(method, steps=5), weights(small_net()).double().numpy(), C
    for t in range(5):
        np.testing.assert_allclose(recorded.total(t), looped(gradients(theta, recorded.drawn(t)), bound, 3), atol=1e-8)
        assert recorded.recorder.calls[t][0].sensitivity == pytest.approx(bound, rel=1e-12)
        assert recorded.recorder.released[t]["gradient"].noise_stddev == pytest.approx(1.5 * bound, rel=1e-12)
        released = recorded.released(t)
        theta = theta - LR * released[:910] / B
        bound *= np.exp(-(released[910] * np.sqrt(3) / (B * bound) - 0.7))
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-8)


class OfInputs(nn.Module):
    """A net whose gradient is its input, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.line(x)
        return made


@pytest.mark.parametrize("start", [0.05, 20.0])
def test_the_bound_finds_a_known_quantile(start: float) -> None:
    """Norms uniform on [0, 2], γ = ½, K = 10: C(1 − 1/20)/2 = ½. Six standard deviations of log C at the end."""
    x = torch.randn(2000, 4, generator=torch.Generator().manual_seed(2))
    x *= (torch.linspace(0, 2, 2000) / x.norm(dim=1))[:, None]
    records = TensorRecords(x, torch.zeros(2000, dtype=torch.long))
    data = replace(DATA, train=records, test=None, records=2000, classes=None, shape=(4,))
    ready = prepare(
        OfInputs(),
        data,
        method=SlaClip(clip_norm=start),
        budget=None,
        delta=1e-5,
        loss=lambda outputs, targets: outputs.squeeze(1),
        options=TrainingOptions(noise_multiplier=0.5, batch_size=200, steps=100, lr=1e-9, evaluate_every=100),
    )
    with Ledger(ready.plan) as ledger:
        session = Session(Begun(prepared=ready, ledger=ledger), randomness=ReproducibleRandomness(0))
        session.run()
    state: Any = session.learned.method_state
    assert state.clip_norm == pytest.approx(1 / 0.95, rel=0.1)


def test_what_moves_the_bound_is_a_release() -> None:
    state: Any = SlaClip().begin(prepare_small(SlaClip(), small_digits()).run_context())
    with pytest.raises(PrivacyLineError, match="takes a Release"):
        state.follow(torch.tensor(0.5))
