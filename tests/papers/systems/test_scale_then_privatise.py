"""Scale, then privatise: Adam by hand in float64, a scale of one as DP-SGD, neighbours, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adadpigu.errors import InputError
from adadpigu.methods import DPSGD
from adadpigu_systems import scale_then_privatise
from adadpigu_systems.scale_then_privatise import ScaleThenPrivatise
from float64_world import SIGMA, B, clipped_sum, gradients, record
from replays import replay
from trials import prepare_small, run_small, small_digits, small_net, weights

RATE = 0.01
OPTIONS: dict[str, dict[str, Any]] = {
    "as published": {"normalise": False, "offset": 1e-3, "clip_norm": 30.0},
    "with both offsets": {"normalise": False, "offset": 0.1, "square_offset": 0.04},
    "normalised": {},
    "without its noise": {"debias": True, "noise_floor": 0.3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_run_is_adams_by_hand(options: dict[str, Any]) -> None:
    method = ScaleThenPrivatise(**options)
    recorded, theta = record(method, steps=4, optimizer="adam", lr=RATE), weights(small_net()).double().numpy()
    m, v, before = np.zeros(910), np.zeros(910), np.ones(910)
    for t in range(4):
        seen = v / (1 - 0.999**t) if t else v
        if method.debias:
            noise = (before * SIGMA * method.clip_norm / B) ** 2
            seen = np.maximum(seen - noise, method.noise_floor * noise)
        scale = np.sqrt(seen + method.square_offset) + method.offset
        before = scale = scale / np.exp(np.log(scale).mean()) if method.normalise else scale
        rows = [g / scale for g in gradients(theta, recorded.drawn(t))]
        np.testing.assert_allclose(recorded.total(t), clipped_sum(rows, method.clip_norm), atol=1e-8)
        ghat = scale * recorded.released(t) / B
        m, v = 0.9 * m + 0.1 * ghat, 0.999 * v + 0.001 * ghat**2
        theta = theta - RATE * (m / (1 - 0.9 ** (t + 1))) / (np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8)
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-8)
    assert options.get("debias") or len(np.unique(np.round(scale, 12))) > 100


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "adagrad"])
def test_a_scale_of_one_is_dpsgd_to_the_bit(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_then_privatise._State, "_from", lambda _, v: torch.ones_like(v))
    one, other = (
        run_small(method, optimizer=optimizer, lr=RATE) for method in (ScaleThenPrivatise(clip_norm=0.5), DPSGD())
    )
    assert torch.equal(weights(one.model), weights(other.model))


@pytest.mark.parametrize("debias", [False, True])
def test_the_scale_is_the_same_on_neighbours(debias: bool) -> None:
    """The tape compares it bit by bit."""

    def prepared(data: Any) -> Any:
        return prepare_small(ScaleThenPrivatise(debias=debias), data, steps=5, optimizer="adam", lr=RATE)

    found = replay(prepared, small_digits(), removed=7)
    assert not found.breaches
    assert found.largest > 0


@pytest.mark.parametrize("optimizer", ["sgd", "asgd", "rprop"])
def test_an_optimiser_without_a_second_moment_is_refused_in_one_line(optimizer: str) -> None:
    with pytest.raises(InputError, match=r"keeps no second moment, .*; allowed: adam, adamw") as caught:
        prepare_small(ScaleThenPrivatise(), optimizer=optimizer)
    assert "\n" not in str(caught.value)
