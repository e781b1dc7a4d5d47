"""Per-layer clipping: a run in float64, one layer as DP-SGD, and what covers one layer's bound alone is caught."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from adadpigu.audit.adversarial import adversarial_records
from adadpigu.core.bounding import MappedSum
from adadpigu.core.layout import Layout
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.methods import DPSGD
from adadpigu_systems import per_layer
from adadpigu_systems.per_layer import PerLayer, bounds, clip_layers
from float64_world import DATA, LR, B, gradients, record
from replays import replay
from trials import prepare_small, run_small, small_digits, small_net, weights

LAYERS = [slice(0, 64 * 12 + 12), slice(64 * 12 + 12, 910)]


@pytest.mark.parametrize("shares", ["equal", "size"])
def test_each_layer_of_a_record_is_clipped_by_itself(shares: Literal["equal", "size"]) -> None:
    recorded, theta = record(PerLayer(clip_norm=0.4, shares=shares), steps=3), weights(small_net()).double().numpy()
    parts = [0.5, 0.5] if shares == "equal" else [780 / 910, 130 / 910]
    for t in range(3):
        wanted = np.zeros(910)
        for g in gradients(theta, recorded.drawn(t)):
            for part, place in zip(parts, LAYERS, strict=True):
                wanted[place] += g[place] * min(1.0, 0.4 * part**0.5 / np.linalg.norm(g[place]))
        np.testing.assert_allclose(recorded.total(t), wanted, atol=1e-9)
        assert recorded.recorder.calls[t][0].sensitivity == 0.4
        theta = theta - LR * recorded.released(t) / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_of_one_layer_it_is_dpsgd() -> None:
    """Up to the rounding of a sum in float64: the map clips, and then the sum."""

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()

    one, other = (
        run_small(method, data=DATA, net=net, steps=5, randomness=ReproducibleRandomness(3))
        for method in (PerLayer(clip_norm=0.3), DPSGD(clip_norm=0.3))
    )
    torch.testing.assert_close(weights(one.model), weights(other.model), atol=1e-11, rtol=0)


@pytest.mark.parametrize("shares", ["equal", "size"])
def test_squares_of_the_bounds_add_up(shares: str) -> None:
    made = bounds(Layout.of(small_net()), 0.7, shares)
    assert len(made) == 2
    assert float(made.square().sum()) == pytest.approx(0.49, rel=1e-12)


def test_no_record_passes_the_bound_of_all_layers_together() -> None:
    rng, most = torch.Generator().manual_seed(0), bounds(Layout.of(small_net()), 0.7, "size")
    rows = torch.randn(200, 910, dtype=torch.float64, generator=rng) * torch.logspace(-4, 4, 200).double()[:, None]
    index = Layout.of(small_net()).layer_index()
    made = clip_layers(rows, layers=index, most=most)
    assert float(made.norm(dim=1).max()) == pytest.approx(0.7, rel=1e-9)
    for number, place in enumerate(LAYERS):
        assert float(made[:, place].norm(dim=1).max()) <= float(most[number]) * (1 + 1e-12)


def test_noise_for_one_layer_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: C for every layer, and noise for C in place of √(Σ C²). Without the second, the sum's own clip holds."""
    data, method = small_digits(), PerLayer(clip_norm=0.5)
    loud = adversarial_records(data)["large"]

    def prepared(data: Any) -> Any:
        return prepare_small(method, data, steps=3)

    assert not replay(prepared, data, added=loud).breaches
    monkeypatch.setattr(per_layer, "bounds", lambda layout, clip_norm, _: torch.full((2,), clip_norm).double())
    assert not replay(prepared, data, added=loud).breaches
    wide: Any = lambda clip_norm, **rest: MappedSum(clip_norm=clip_norm * 2**0.5, **rest)  # noqa: E731
    monkeypatch.setattr(per_layer, "MappedSum", wide)
    monkeypatch.setattr(MappedSum, "sensitivity", property(lambda query: query.clip_norm / 2**0.5))
    assert any("above its sensitivity 0.5" in breach for breach in replay(prepared, data, added=loud).breaches)


def test_what_is_charged_is_dpsgds_event() -> None:
    one, other = map(partial(prepare_small, data=small_digits()), (PerLayer(), DPSGD()))
    assert one.epsilons == other.epsilons
