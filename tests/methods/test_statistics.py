"""α and β against a float64 recursion, on active coordinates only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import Release
from adadpigu.errors import InputError
from adadpigu.methods import AdaDPIGU
from adadpigu.methods.importance import LayerPower
from adadpigu.methods.statistics import Statistics, StatisticsOptions
from trials import mask_of

MakeRelease = Callable[..., Release]
LAYERS = torch.tensor([0, 0, 0, 1, 1])


def make(options: StatisticsOptions, start: float = 1.0) -> Statistics:
    return Statistics(options, variance=torch.full((5,), start, dtype=torch.float64), groups=LAYERS)


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("per_layer", [False, True])
def test_the_recursion_equals_numpy_and_frozen_coordinates_do_not_move(
    debias: bool, per_layer: bool, release: MakeRelease
) -> None:
    options = StatisticsOptions(
        mean_decay=0.9, variance_decay=0.8, offset=0.01, debias=debias, floor=1e-3, ceiling=2.0, per_layer=per_layer
    )
    statistics = make(options)
    active = np.array([0, 2, 3, 4])
    alpha, beta = np.zeros(5), np.ones(5)
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 0.3, 5)
    for _ in range(6):
        g = rng.normal(size=5) * 1.5
        query = GradientSum(clip_norm=float("inf"), active=mask_of(active, 5))
        statistics.update(release(torch.tensor(g)[None], query), noise_variance=torch.tensor(noise))
        spread = (g - alpha) ** 2 - (noise if debias else 0)
        if per_layer:
            spread = np.where(LAYERS.numpy() == 0, spread[[0, 2]].mean(), spread[[3, 4]].mean())
        spread = spread.clip(1e-3, 2.0)
        beta[active] = (0.8 * beta + 0.2 * spread)[active]
        alpha[active] = (0.9 * alpha + 0.1 * g)[active]
        np.testing.assert_allclose(statistics.variance.numpy(), beta, rtol=1e-10)
        np.testing.assert_allclose(statistics.mean.numpy(), alpha, rtol=1e-10)
    assert statistics.mean[1] == 0
    assert statistics.variance[1] == 1
    np.testing.assert_allclose(statistics.scale().numpy(), np.sqrt(beta) + 0.01)


def test_held_statistics_never_move(release: MakeRelease) -> None:
    statistics = make(StatisticsOptions())
    statistics.update(release(torch.randn(1, 5)), noise_variance=torch.zeros(5))
    assert statistics.variance_held
    assert statistics.mean.tolist() == [0.0] * 5
    assert statistics.variance.tolist() == [1.0] * 5


def test_returning_coordinates_start_afresh_from_the_median(release: MakeRelease) -> None:
    statistics = make(StatisticsOptions(mean_decay=0.5, variance_decay=0.5, offset=0.1))
    statistics.variance[:] = torch.tensor([1.0, 5.0, 2.0, 9.0, 3.0])
    statistics.init_returned(mask_of([3], 5), mask_of([0, 2, 4], 5))
    assert statistics.variance.tolist() == [1.0, 5.0, 2.0, 2.0, 3.0]


def test_returning_coordinates_share_their_layers_beta_where_it_is_shared() -> None:
    statistics = make(StatisticsOptions(variance_decay=0.5, offset=0.1, per_layer=True))
    statistics.variance[:] = torch.tensor([4.0, 1.0, 4.0, 1.0, 1.0])
    statistics.init_returned(mask_of([1, 3], 5), mask_of([0, 2], 5))
    assert statistics.variance.tolist() == [4.0, 4.0, 4.0, 4.0, 1.0]


def test_layer_power_is_the_fourth_root_of_debiased_energy_with_geometric_mean_one(release: MakeRelease) -> None:
    power = LayerPower(LAYERS)
    rows = torch.tensor([[3.0, 3.0, 3.0, 1.0, 1.0], [3.0, 3.0, 3.0, 1.0, 1.0]])
    for row in rows:
        power.update(release(row[None]), noise_variance=0.5)
    expected = np.array([8.5, 0.5]) ** 0.25
    expected /= np.sqrt(expected.prod())
    np.testing.assert_allclose(power.variance().numpy(), (expected**2)[LAYERS.numpy()], rtol=1e-6)


def test_a_layer_without_visible_signal_still_gets_a_positive_scale(release: MakeRelease) -> None:
    power = LayerPower(LAYERS)
    power.update(release(torch.tensor([[2.0, 2.0, 2.0, 0.1, 0.1]])), noise_variance=0.5)
    assert (power.variance() > 0).all()
    silent = LayerPower(LAYERS)
    silent.update(release(torch.zeros(1, 5)), noise_variance=0.5)
    assert silent.variance().tolist() == [1.0] * 5


@pytest.mark.parametrize(
    "bad",
    [
        {"mean_decay": 1.1},
        {"variance_decay": -0.1},
        {"offset": -1.0},
        {"floor": 2.0, "ceiling": 1.0},
        {"variance_decay": 0.9},
        {"floor": -1.0},
        {"offset": float("nan")},
    ],
)
def test_options_that_break_the_scale_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError):
        StatisticsOptions(**bad)  # type: ignore[arg-type]


def test_a_held_beta_stays_where_stage_1_put_it_even_when_alpha_moves(release: MakeRelease) -> None:
    start = torch.tensor([4.0, 4.0, 0.25, 0.25, 1.0])
    statistics = Statistics(StatisticsOptions(mean_decay=0.5), variance=start, groups=LAYERS)
    statistics.update(release(torch.ones(1, 5)), noise_variance=torch.zeros(5))
    statistics.init_returned(mask_of([2], 5), mask_of([0, 1], 5))
    assert statistics.variance.tolist() == start.tolist()
    assert statistics.mean.tolist() == [0.5] * 5


def test_a_start_outside_the_clamp_is_brought_into_it() -> None:
    options = StatisticsOptions(floor=0.5, ceiling=2.0)
    assert Statistics(options, variance=torch.tensor([0.1, 1.0, 9.0]), groups=LAYERS[:3]).variance.tolist() == [
        0.5,
        1.0,
        2.0,
    ]


def test_a_silent_layer_gets_a_hundredth_of_the_least_visible_power(release: MakeRelease) -> None:
    power = LayerPower(LAYERS)
    power.update(release(torch.tensor([[3.0, 3.0, 3.0, 0.0, 0.0]])), noise_variance=1.0)
    root = np.array([8.0, 0.08]) ** 0.25
    np.testing.assert_allclose(power.variance().numpy()[[0, 4]], (root / np.sqrt(root.prod())) ** 2, rtol=1e-5)


def test_a_scale_of_zero_is_refused_with_options_that_exist() -> None:
    options = StatisticsOptions(offset=0.0, floor=0.0, variance_decay=1.0)
    with pytest.raises(InputError, match="above 0: raise ") as refusal:
        Statistics(options, variance=torch.zeros(2), groups=torch.zeros(2, dtype=torch.long))
    named = set(str(refusal.value).replace(",", "").split(": raise ")[1].split()) - {"or"}
    assert named <= {field.name for field in dataclasses.fields(AdaDPIGU)}
