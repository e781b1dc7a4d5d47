"""AdaDPIGU, every option at a value that matters, against a float64 re-computation of the algorithm from its releases.

The oracle knows the design's formulas and nothing of the package's code: it takes the recorded releases, walks the
algorithm (scores, ranking, mask, α, β, weights) in numpy, and recomputes every bounded sum by looped autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from adadpigu.core import standardising
from adadpigu.core.bounding import GradientSum
from adadpigu.core.standardising import Standardiser
from adadpigu.errors import InputError
from adadpigu.methods import AdaDPIGU, Layers, Masked
from adadpigu.methods.adadpigu_state import AdaDPIGUState
from adadpigu.methods.importance import Importance, rank
from adadpigu.methods.mask import MaskSchedule
from adadpigu.methods.statistics import Statistics, StatisticsOptions
from float64_world import LR, SIGMA, B, clipped_sum, gradients, record
from trials import small_net, weights

STEPS, FIRST, CLIP = 9, 3, 0.3
LAYERS = np.repeat([0, 1], [64 * 12 + 12, 12 * 10 + 10])
HELD: dict[str, Any] = {
    "schedule": "constant",
    "mean_decay": 1.0,
    "variance_decay": 1.0,
    "offset": 0.0,
    "floor": 0.0,
    "ceiling": math.inf,
}
"""mask or scale alone; what a setting moves, it names"""
WHOLE: dict[str, Any] = {"retention": 0.4, "mean_decay": 0.8, "variance_decay": 0.7, "offset": 0.05, "top_k": 0.4}
"""mask, unfreezing, α, β and top-k together, each quick enough to matter in a few steps"""
SETTINGS: dict[str, dict[str, Any]] = {
    "mask alone": HELD,
    "no mask": {**HELD, "retention": 1.0, "variance_start": "stage-1"},
    "signed scores": {**HELD, "retention": 0.3, "score": "signed"},
    "energy scores": {**HELD, "retention": 0.3, "score": "energy"},
    "linear": {**HELD, "retention": 0.3, "schedule": "linear", "unfreeze_by": 0.5},
    "cosine": {**HELD, "retention": 0.3, "schedule": "cosine"},
    "steps": {**HELD, "retention": 0.3, "schedule": "steps", "stairs": 2},
    "up to a share": {**HELD, "retention": 0.3, "schedule": "linear", "unfreeze_to": 0.7},
    "layer by layer": {**HELD, "retention": 0.3, "schedule": "linear", "order": "layers"},
    "head first": {**HELD, "retention": 0.2, "schedule": "linear", "head_first": True},
    "top-k": {**HELD, "top_k": 0.4},
    "as coded": {**HELD, "top_k": 0.4, "top_k_of": "all"},
    "beta": {**HELD, "beta": 0.25, "offset": 0.1},
    "moving": {**HELD, "mean_decay": 0.8, "variance_decay": 0.7, "offset": 0.05},
    "debiased": {**HELD, "variance_decay": 0.7, "offset": 0.05, "debias": True, "floor": 1e-4, "ceiling": 0.5},
    "per layer": {**HELD, "variance_decay": 0.7, "offset": 0.05, "per_layer": True, "mean_decay": 0.9},
    "from stage 1": {**HELD, "variance_start": "stage-1"},
    "pruned": {**HELD, "retention": 0.5, "mode": "prune", "schedule": "linear"},
    "defaults": {},
    "as written": {"top_k": 0.6, "top_k_of": "all", "mode": "prune"},
    "whole": WHOLE,
    "whole, C by a quantile": {**WHOLE, "clip_quantile": 0.6, "clip_rate": 2.0, "count_noise": 3.0},
    "noise floor, only the shape of beta": {
        **WHOLE,
        **{"variance_start": "noise", "normalise": True, "debias": True, "noise_floor": 0.3, "floor": 0.0},
    },
    "blocks, held": {**HELD, "variance_start": "stage-1", "blocks": 7},
    "blocks, moving": {**WHOLE, "blocks": 7, "debias": True},
    "mask where it pays": {**WHOLE, "restrict": "worthwhile"},
    "beta of the optimiser": {
        **WHOLE,
        **{"variance_from": "optimiser", "debias": True, "noise_floor": 0.2, "normalise": True, "floor": 1e-12},
    },
}


class Oracle:
    """The algorithm's state in float64."""

    def __init__(self, options: dict[str, Any], sigma: float = SIGMA, per_owner: int = 1) -> None:
        self.o, self.sigma, self.per_owner = options, sigma, per_owner
        self.theta = weights(small_net()).double().numpy()
        self.d = len(self.theta)
        self.score, self.halves = np.zeros(self.d), np.zeros((2, self.d))
        self.alpha, self.beta = np.zeros(self.d), np.ones(self.d)
        self.groups, self.bound, self.square = LAYERS.copy(), CLIP, np.zeros(self.d)
        sigma_b = options.get("count_noise")
        self.share = 0.0 if sigma_b is None else (sigma / (2 * sigma_b)) ** 2
        self.mask = np.arange(self.d)
        self.ranking = np.arange(self.d)

    def ratio(self, step: int) -> float:
        r, kind, stairs = self.o["retention"], self.o["schedule"], self.o["stairs"]
        part = min(1.0, step / (self.o["unfreeze_by"] * (STEPS - FIRST - 1)))
        cosine = 0.5 - 0.5 * math.cos(math.pi * part)
        steps = math.floor(part * stairs) / stairs
        grown = {"constant": 0.0, "linear": part, "cosine": cosine, "steps": steps}[kind]
        return float(r + (self.o["unfreeze_to"] - r) * grown)

    def learn_importance(self, ghat: np.ndarray, step: int) -> None:
        kind = self.o["score"]
        self.score += {"absolute": np.abs(ghat), "signed": ghat, "energy": ghat**2}[kind]
        self.halves[step % 2] += ghat**2 - self.noise**2

    @property
    def noise(self) -> float:
        """Of a mean gradient that is not scaled."""
        return float(self.sigma * self.per_owner * self.bound / np.sqrt(1 - self.share) / B)

    def end_stage_1(self) -> None:
        o, order = self.o, np.argsort(-self.halves[0], kind="stable")
        scores = np.abs(self.score)
        if o["order"] == "layers":
            scores = np.array([scores[k == LAYERS].mean() for k in (0, 1)])[LAYERS]
        self.ranking = np.argsort(-scores, kind="stable")
        if o["head_first"]:
            head = LAYERS[self.ranking] == 1
            self.ranking = np.concatenate([self.ranking[head], self.ranking[~head]])
        measured = self.halves[1] / (FIRST // 2)
        if o["restrict"] == "worthwhile":
            frozen = order[math.floor(o["retention"] * self.d + 1e-9) :]
            self.worth = float(measured[frozen].mean()) / self.noise**2
            if self.worth >= 1:
                o["retention"] = 1.0
        if o["blocks"]:
            self.groups[order] = np.arange(self.d) * o["blocks"] // self.d
        starts = {"constant": o["beta"], "noise": self.noise**2}
        if o["variance_start"] == "stage-1":
            power = measured if o["blocks"] else self.halves.sum(axis=0) / FIRST
            powers = np.array([power[k == self.groups].mean() for k in range(self.groups.max() + 1)])
            root = np.maximum(powers, powers[powers > 0].min() / 100) ** 0.25
            self.beta = ((root / np.exp(np.log(root).mean())) ** 2)[self.groups]
        else:
            self.beta = np.full(self.d, starts[o["variance_start"]])
        self.beta = self.beta.clip(o["floor"], o["ceiling"])

    def move_mask(self, step: int) -> None:
        before = self.mask
        self.mask = np.sort(self.ranking[: math.floor(self.ratio(step) * self.d + 1e-9)])
        back = np.setdiff1d(self.mask, before)
        if step > 0 and len(back):
            self.alpha[back] = 0.0
            if self.o["variance_decay"] < 1 and self.o["variance_from"] == "releases":
                median = np.sort(self.beta[before])[(len(before) - 1) // 2]
                for k, j in zip(self.groups[back], back, strict=True):
                    others = before[self.groups[before] == k]
                    shared = self.o["blocks"] > 0 and len(others) > 0
                    self.beta[j] = self.beta[others].mean() if shared else median
        if self.o["variance_from"] == "optimiser":
            seen = 1 - 0.99 ** (FIRST + step)
            self.beta[self.mask] = self.cleaned(self.square / seen, self.scale * self.noise)[self.mask]

    @property
    def scale(self) -> np.ndarray:
        scale = np.sqrt(self.beta) + self.o["offset"]
        return np.asarray(scale / np.exp(np.log(scale[self.mask]).mean()) if self.o["normalise"] else scale)

    def effective(self) -> np.ndarray:
        if self.o["mode"] != "prune":
            return self.theta
        return np.where(np.isin(np.arange(self.d), self.mask), self.theta, 0.0)

    def standardise(self, g: np.ndarray) -> np.ndarray:
        z: np.ndarray = ((g - self.alpha) / self.scale)[self.mask]
        of = len(z) if self.o["top_k_of"] == "active" else self.d
        kept = min(len(z), math.floor(self.o["top_k"] * of + 1e-9))
        z[np.argsort(np.abs(z))[: len(z) - kept]] = 0.0
        return z

    def cleaned(self, spread: np.ndarray, noise: np.ndarray) -> np.ndarray:
        o, m = self.o, self.mask
        if o["debias"]:
            spread = spread - noise**2
        if o["per_layer"] or o["blocks"]:
            for k in np.unique(self.groups[m]):
                spread[k == self.groups] = spread[m][self.groups[m] == k].mean()
        return np.asarray(np.maximum(spread, o["noise_floor"] * noise**2).clip(o["floor"], o["ceiling"]))

    def learn(self, released: np.ndarray) -> np.ndarray:
        """ĝ from a release, after which α and β have moved."""
        o, m, scale = self.o, self.mask, self.scale
        g1, g2 = o["mean_decay"], o["variance_decay"]
        ghat = np.zeros(self.d)
        ghat[m] = (released / B * scale + self.alpha)[m]
        if g2 < 1 and o["variance_from"] == "releases":
            spread = self.cleaned((ghat - self.alpha) ** 2, scale * self.noise)
            self.beta[m] = (g2 * self.beta + (1 - g2) * spread)[m]
        self.alpha[m] = (g1 * self.alpha + (1 - g1) * ghat)[m]
        return ghat

    def follow(self, within: float) -> None:
        self.bound *= math.exp(-self.o["clip_rate"] * (within / B + 0.5 - self.o["clip_quantile"]))

    def descend(self, ghat: np.ndarray) -> None:
        m = self.mask
        if self.o["variance_from"] == "optimiser":
            self.square[m] = (0.99 * self.square + 0.01 * ghat**2)[m]
            ghat[m] = (0.1 * ghat / (np.sqrt(self.square) + 1e-8))[m]
        self.theta = self.theta - LR * ghat


def compare(settings: dict[str, Any], sigma: float = SIGMA, per_owner: int = 1) -> Oracle:
    """Records a run and walks the algorithm along its releases; fails where a sum or the weights differ."""
    method = AdaDPIGU(importance_steps=FIRST, clip_norm=CLIP, **settings)
    by_moments = settings.get("variance_from") == "optimiser"
    optimiser = {"optimizer": "rmsprop", "lr": 0.1 * LR} if by_moments else {}
    recorded = record(method, per_owner, steps=STEPS, sigma=sigma, **optimiser)
    oracle = Oracle(method.options(), sigma, per_owner)
    for t in range(STEPS):
        drawn, total, released = recorded.drawn(t), recorded.total(t), recorded.released(t)
        if t == FIRST:
            oracle.end_stage_1()
        if t >= FIRST:
            oracle.move_mask(t - FIRST)
        plain = gradients(oracle.effective(), drawn)
        rows = plain if t < FIRST else [oracle.standardise(g) for g in plain]
        np.testing.assert_allclose(total[oracle.mask], clipped_sum(rows, oracle.bound), atol=1e-6)
        assert set(np.flatnonzero(total)) <= set(oracle.mask)
        assert set(np.flatnonzero(released)) <= set(oracle.mask)
        ghat = released / B if t < FIRST else oracle.learn(released)
        if t < FIRST:
            oracle.learn_importance(ghat, t)
        if oracle.share:
            count = sum(0.5 if np.linalg.norm(z) <= oracle.bound else -0.5 for z in rows)
            np.testing.assert_allclose(recorded.total(t, query=1), count)
            oracle.follow(float(recorded.released(t, "within")[0]))
        oracle.descend(ghat)
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), oracle.effective(), atol=1e-8)
    first = np.sort(oracle.ranking[: math.floor(oracle.o["retention"] * oracle.d + 1e-9)])
    assert recorded.run.mask is not None
    assert recorded.run.importance is not None
    assert recorded.run.mask.nonzero().flatten().tolist() == first.tolist()
    np.testing.assert_allclose(recorded.run.importance.numpy(), np.abs(oracle.score) / FIRST, rtol=1e-5)
    return oracle


@pytest.mark.parametrize("name", SETTINGS)
def test_every_sum_and_the_final_weights_equal_the_algorithm_in_float64(name: str) -> None:
    compare(SETTINGS[name])


def _following(sigma: float) -> dict[str, Any]:
    """C by a quantile whose count takes much of the event."""
    return {**WHOLE, "clip_quantile": 0.6, "clip_rate": 2.0, "count_noise": 0.6 * sigma}


@pytest.mark.parametrize("per_owner", [1, 2])
def test_beta_starts_from_the_noise_of_all_records_of_an_owner_beside_a_count(per_owner: int) -> None:
    compare({**_following(SIGMA), "variance_start": "noise"}, per_owner=per_owner)


@pytest.mark.parametrize("option", [{"variance_start": "noise"}, {"variance_from": "optimiser"}])
def test_beta_in_units_of_its_own_works_without_another_option(option: dict[str, Any]) -> None:
    found = compare(option, sigma=0.01)
    assert np.log(found.scale[found.mask]).mean() == pytest.approx(0, abs=1e-9)  # C is in units of the gradient
    assert found.o["floor"] < found.beta.min() < 1e-6  # and β below what is the floor elsewhere


def test_only_beta_in_units_of_its_own_changes_what_floor_and_normalise_are() -> None:
    for method, usual in ((AdaDPIGU, 1e-6), (Masked, 0.0), (Layers, 0.0)):
        assert (method().floor, method().normalise) == (usual, False)
        assert method(variance_start="noise").normalise
    plain = AdaDPIGU.from_options({"variance_start": "noise", "normalise": "off", "floor": "off"})
    assert (plain.floor, plain.normalise) == (0.0, False)
    assert AdaDPIGU.from_options(plain.options()) == plain


@pytest.mark.parametrize(
    ("sigma", "per_owner", "follows"),
    [(0.12, 1, False), (0.14, 1, False), (0.08, 1, True), (0.1, 1, True), (0.06, 2, False), (0.066, 2, False)],
)
def test_a_mask_is_used_just_where_the_power_it_freezes_is_below_the_noise(
    sigma: float, per_owner: int, follows: bool
) -> None:
    settings = {**(_following(sigma) if follows else WHOLE), "restrict": "worthwhile"}
    assert 0.75 < compare(settings, sigma, per_owner).worth < 1.3


def _ranked_upside_down(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Importance, "ranking", lambda self: rank(self.scores).flip(0))


def _unfreezes_a_step_early(plant: pytest.MonkeyPatch) -> None:
    ratio = MaskSchedule.ratio
    plant.setattr(MaskSchedule, "ratio", lambda self, step, steps: ratio(self, step + 1, steps))


def _alpha_not_subtracted(plant: pytest.MonkeyPatch) -> None:
    made = Standardiser.__init__

    def without(self: Standardiser, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.center = None

    plant.setattr(Standardiser, "__init__", without)


def _restored_without_alpha(plant: pytest.MonkeyPatch) -> None:
    restore = GradientSum.restore
    plant.setattr(GradientSum, "restore", lambda self, *given: restore(replace(self, center=None), *given))


def _decays_swapped(plant: pytest.MonkeyPatch) -> None:
    made = Statistics.__init__

    def swapped(self: Statistics, o: StatisticsOptions, **named: Any) -> None:
        made(self, replace(o, mean_decay=o.variance_decay, variance_decay=o.mean_decay), **named)

    plant.setattr(Statistics, "__init__", swapped)


def _scaled_by_beta_itself(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Statistics, "scale", lambda self, active=None: self.variance + self._options.offset)


def _top_k_after_the_clip(plant: pytest.MonkeyPatch) -> None:
    selected = standardising.largest_standardised

    def late(rows: torch.Tensor, center: torch.Tensor, weight: torch.Tensor, count: int, _: object) -> Iterator[Any]:
        z = (rows - center) * weight
        clipped = z * (CLIP / z.norm(dim=1, keepdim=True)).clamp(max=1.0)
        return selected(clipped, None, None, count)

    plant.setattr(standardising, "largest_standardised", late)


def _top_k_of_all(plant: pytest.MonkeyPatch) -> None:
    keep = AdaDPIGUState._keep_entries
    plant.setattr(AdaDPIGUState, "_keep_entries", lambda self, count: keep(self, self._mask.size))


PLANTS = [
    *(_ranked_upside_down, _unfreezes_a_step_early, _alpha_not_subtracted, _restored_without_alpha),
    *(_decays_swapped, _scaled_by_beta_itself, _top_k_after_the_clip, _top_k_of_all),
]


@pytest.mark.parametrize("plant", PLANTS)
def test_a_slip_in_any_part_of_the_whole_method_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(WHOLE)


def test_fifteen_of_two_hundred_steps_are_spent_on_importance_unless_told_otherwise() -> None:
    assert [s.steps for s in AdaDPIGU().stages(200)] == [15, 185]
    assert [s.steps for s in AdaDPIGU().stages(10)] == [1, 9]
    assert [s.steps for s in AdaDPIGU(importance_steps=7).stages(10)] == [7, 3]
    assert [s.steps for s in AdaDPIGU(retention=1.0).stages(10)] == [10]
    assert [s.steps for s in Layers().stages(40)] == [3, 37]


def test_each_name_means_its_parts() -> None:
    """The name of the paper is that of its whole method; what lacks a part is called otherwise."""
    whole, masked, layers = AdaDPIGU(), Masked(), Layers()
    assert (whole.retention, whole.schedule, whole.mean_decay, whole.variance_decay) == (0.6, "linear", 0.9, 0.999)
    assert (whole.offset, whole.beta, whole.floor, whole.ceiling, whole.top_k) == (1e-6, 1.0, 1e-6, 1e6, 1.0)
    assert (masked.retention, masked.schedule, masked.mean_decay, masked.variance_decay) == (0.6, "linear", 1.0, 1.0)
    assert (layers.retention, layers.variance_start, layers.variance_decay) == (1.0, "stage-1", 1.0)


@pytest.mark.parametrize("of", ["active", "all"])
def test_a_top_k_that_keeps_nothing_is_refused_in_one_line(of: Any) -> None:
    with pytest.raises(InputError, match=r"^top_k=0.0001 keeps none of \d+ coordinates; allowed: at least 1/\d+$"):
        record(AdaDPIGU(top_k=1e-4, top_k_of=of), steps=STEPS)
