"""Denoising is an option of every private method of the loop: what is released is shrunk, what is learned is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adadpigu.core.layout import Layout
from adadpigu.methods import all_methods, make_method
from adadpigu.methods.standalone import Standalone
from float64_world import LR, SIGMA, B, record
from trials import small_net, weights

CLIP = 0.3
START = weights(small_net()).double().numpy()
SYSTEMS: dict[str, dict[str, Any]] = {"dpis": {}, "per-layer": {}, "slaclip": {"quantile": 0.3}}


def test_every_private_method_with_steps_takes_it() -> None:
    methods = [method for method in all_methods().values() if method.private and not issubclass(method, Standalone)]
    assert [method.name for method in methods if not method.denoises] == []


def james_stein(v: np.ndarray, s: float) -> np.ndarray:
    return np.asarray(v * max(0.0, 1 - (len(v) - 2) * s**2 / float((v**2).sum())))


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_update_is_the_release_shrunk_layer_by_layer(name: str) -> None:
    """Of SlaClip the coordinates that carry the slack take no part, and move the bound as they were released."""
    method = make_method(name, {"clip_norm": CLIP, **SYSTEMS[name]})
    recorded, plain = record(method, steps=2, denoise="james-stein"), record(method, steps=1)
    np.testing.assert_array_equal(recorded.released(0), plain.released(0))
    slots = Layout.of(small_net()).layers().values()
    layers, theta = [slice(found[0].start, found[-1].stop) for found in slots], START
    for t in range(2):
        bound = recorded.recorder.calls[t][0].sensitivity
        released = recorded.released(t)
        theta = theta - LR * np.concatenate([james_stein(released[place], SIGMA * bound) for place in layers]) / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)
    if name == "slaclip":
        share = recorded.released(0)[len(START)] * 10**0.5 / (B * CLIP)
        second = recorded.recorder.calls[1][0].sensitivity
        assert second == pytest.approx(CLIP * np.exp(-0.2 * (share - 0.3)), rel=1e-9)


def test_scaled_gradients_are_shrunk_in_the_units_of_their_noise() -> None:
    method = make_method("scale-then-privatise", {"clip_norm": CLIP})
    plain, soft = (record(method, steps=1, optimizer="adam", denoise=kind) for kind in ("none", "soft"))
    np.testing.assert_array_equal(plain.released(0), soft.released(0))
    assert not torch.equal(weights(plain.run.model), weights(soft.run.model))
