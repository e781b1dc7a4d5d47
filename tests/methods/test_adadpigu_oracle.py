"""AdaDPIGU, every option at a value that matters, against a float64 re-computation of the algorithm from its releases.

The oracle knows the design's formulas and nothing of the package's code: it takes the recorded releases, walks the
algorithm (scores, ranking, mask, α, β, weights) in numpy, and recomputes every bounded sum by looped autograd.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from float64_world import LR, SIGMA, B, clipped_sum, gradients, record

from adadpigu.methods import AdaDPIGU
from trials import small_net, weights

STEPS, FIRST, CLIP = 9, 3, 0.3
LAYERS = np.repeat([0, 1], [64 * 12 + 12, 12 * 10 + 10])
SETTINGS: dict[str, dict[str, Any]] = {
    "mask alone": {"retention": 0.6},
    "no mask": {"retention": 1.0},
    "signed scores": {"retention": 0.3, "score": "signed"},
    "energy scores": {"retention": 0.3, "score": "energy"},
    "linear": {"retention": 0.3, "schedule": "linear", "unfreeze_by": 0.5},
    "cosine": {"retention": 0.3, "schedule": "cosine"},
    "steps": {"retention": 0.3, "schedule": "steps", "stairs": 2},
    "top-k": {"retention": 0.6, "top_k": 0.4},
    "beta": {"retention": 0.6, "beta": 0.25, "offset": 0.1},
    "moving": {"retention": 0.6, "mean_decay": 0.8, "variance_decay": 0.7, "offset": 0.05},
    "debiased": {"variance_decay": 0.7, "offset": 0.05, "debias": True, "floor": 1e-4, "ceiling": 0.5},
    "per layer": {"retention": 0.6, "variance_decay": 0.7, "offset": 0.05, "per_layer": True, "mean_decay": 0.9},
    "unfreezing while moving": {
        "retention": 0.3,
        "schedule": "linear",
        "mean_decay": 0.8,
        "variance_decay": 0.7,
        "offset": 0.05,
    },
    "from stage 1": {"retention": 0.6, "variance_start": "stage-1"},
    "pruned": {"retention": 0.5, "mode": "prune", "schedule": "linear"},
}


class Oracle:
    """The algorithm's state in float64."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.o = options
        self.theta = weights(small_net()).double().numpy()
        self.d = len(self.theta)
        self.score, self.power = np.zeros(self.d), np.zeros(2)
        start = min(max(options.get("beta", 1.0), options.get("floor", 0.0)), options.get("ceiling", np.inf))
        self.alpha, self.beta = np.zeros(self.d), np.full(self.d, start)
        self.mask = np.arange(self.d)
        self.ranking = np.arange(self.d)

    def ratio(self, step: int) -> float:
        r, kind, stairs = self.o["retention"], self.o.get("schedule", "constant"), self.o.get("stairs", 4)
        part = min(1.0, step / (self.o.get("unfreeze_by", 1.0) * (STEPS - FIRST - 1)))
        cosine = 0.5 - 0.5 * math.cos(math.pi * part)
        steps = math.floor(part * stairs) / stairs
        return float(r + (1 - r) * {"constant": 0.0, "linear": part, "cosine": cosine, "steps": steps}[kind])

    def learn_importance(self, ghat: np.ndarray) -> None:
        kind = self.o.get("score", "absolute")
        self.score += {"absolute": np.abs(ghat), "signed": ghat, "energy": ghat**2}[kind]
        debiased = ghat**2 - (SIGMA * CLIP / B) ** 2
        self.power += np.array([debiased[k == LAYERS].mean() for k in (0, 1)]) / FIRST

    def end_stage_1(self) -> None:
        self.ranking = np.argsort(-np.abs(self.score), kind="stable")
        if self.o.get("variance_start") == "stage-1":
            root = np.maximum(self.power, self.power[self.power > 0].min() / 100) ** 0.25
            self.beta = ((root / np.sqrt(root.prod())) ** 2)[LAYERS]

    def move_mask(self, step: int) -> None:
        before = self.mask
        self.mask = np.sort(self.ranking[: math.floor(self.ratio(step) * self.d + 1e-9)])
        back = np.setdiff1d(self.mask, before)
        if step > 0 and len(back):
            self.alpha[back] = 0.0
            if self.o.get("variance_decay", 1.0) < 1:
                self.beta[back] = np.sort(self.beta[before])[(len(before) - 1) // 2]

    @property
    def scale(self) -> np.ndarray:
        return np.asarray(np.sqrt(self.beta) + self.o.get("offset", 0.0))

    def effective(self) -> np.ndarray:
        if self.o.get("mode") != "prune":
            return self.theta
        return np.where(np.isin(np.arange(self.d), self.mask), self.theta, 0.0)

    def standardise(self, g: np.ndarray) -> np.ndarray:
        z: np.ndarray = ((g - self.alpha) / self.scale)[self.mask]
        kept = math.floor(self.o.get("top_k", 1.0) * len(z))
        z[np.argsort(np.abs(z))[: len(z) - kept]] = 0.0
        return z

    def learn(self, released: np.ndarray) -> np.ndarray:
        """ĝ from a release, after which α and β have moved."""
        o, m, scale = self.o, self.mask, self.scale
        g1, g2 = o.get("mean_decay", 1.0), o.get("variance_decay", 1.0)
        ghat = np.zeros(self.d)
        ghat[m] = (released / B * scale + self.alpha)[m]
        spread = (ghat - self.alpha) ** 2
        if o.get("debias"):
            spread = spread - (scale * SIGMA * CLIP / B) ** 2
        if o.get("per_layer"):
            for k in (0, 1):
                spread[k == LAYERS] = spread[m][LAYERS[m] == k].mean()
        if g2 < 1:
            spread = spread.clip(o.get("floor", 0.0), o.get("ceiling", np.inf))
            self.beta[m] = (g2 * self.beta + (1 - g2) * spread)[m]
        self.alpha[m] = (g1 * self.alpha + (1 - g1) * ghat)[m]
        return ghat


@pytest.mark.parametrize("name", SETTINGS)
def test_every_sum_and_the_final_weights_equal_the_algorithm_in_float64(name: str) -> None:
    options = {"retention": 0.6, **SETTINGS[name]}
    method = AdaDPIGU(importance_steps=FIRST, clip_norm=CLIP, **options)
    recorded = record(method, steps=STEPS)
    oracle = Oracle(options)
    for t in range(STEPS):
        drawn, total, released = recorded.drawn(t), recorded.total(t), recorded.released(t)
        if t < FIRST:
            np.testing.assert_allclose(total, clipped_sum(gradients(oracle.theta, drawn), CLIP), atol=1e-6)
            ghat = released / B
            oracle.learn_importance(ghat)
        else:
            if t == FIRST:
                oracle.end_stage_1()
            oracle.move_mask(t - FIRST)
            rows = [oracle.standardise(g) for g in gradients(oracle.effective(), drawn)]
            expected = clipped_sum(rows, CLIP)
            np.testing.assert_allclose(total[oracle.mask], expected, atol=1e-6)
            assert set(np.flatnonzero(total)) <= set(oracle.mask)
            assert set(np.flatnonzero(released)) <= set(oracle.mask)
            ghat = oracle.learn(released)
        oracle.theta = oracle.theta - LR * ghat
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), oracle.effective(), atol=1e-8)


def test_a_twentieth_of_the_steps_is_spent_on_importance_unless_told_otherwise() -> None:
    assert [s.steps for s in AdaDPIGU().stages(200)] == [10, 190]
    assert [s.steps for s in AdaDPIGU().stages(10)] == [1, 9]
    assert [s.steps for s in AdaDPIGU(importance_steps=7).stages(10)] == [7, 3]
    assert [s.steps for s in AdaDPIGU(retention=1.0).stages(10)] == [10]
    assert [s.steps for s in AdaDPIGU(retention=1.0, variance_start="stage-1").stages(40)] == [2, 38]
