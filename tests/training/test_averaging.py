"""Averages of the weights against their definitions, and the gate before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from adadpigu.audit.tapes import Recorder
from adadpigu.core.mechanism import Release
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.features.front import Front, Fronted, ReleasedNorm
from adadpigu.methods import DPSGD
from adadpigu.training.learned import WeightAverage, exponential, tail_mean
from trials import run_small, small_net, weights

Make = Callable[..., Release]


def averaged(values: list[np.ndarray], decay: float, start: np.ndarray) -> np.ndarray:
    """The definition in float64, one weight at a time."""
    average = start.astype(np.float64)
    for t, value in enumerate(values, start=1):
        d = min(decay, (1 + t) / (10 + t))
        average = d * average + (1 - d) * value
    return average


def iterates(recorder: Recorder, lr: float) -> list[np.ndarray]:
    """The weights after each step of a run of DP-SGD without momentum, from what it released."""
    theta, found = weights(small_net()).double().numpy(), []
    for released in recorder.released:
        if "gradient" in released:
            theta = theta - lr * released["gradient"].value.double().numpy() / 40
            found.append(theta)
    return found


def test_an_exponential_average_forgets_its_start_fast(release: Make) -> None:
    average = WeightAverage(exponential(0.5), torch.zeros(2))
    average.begin_step()
    average.update(release(torch.ones(1, 2)))
    decay = 2 / 11
    torch.testing.assert_close(average.value, torch.full((2,), 1 - decay))
    average.begin_step()
    average.update(release(average.value[None]))
    assert average.value.tolist() == pytest.approx([1 - decay] * 2)


@pytest.mark.parametrize("decay", [0.1, 0.5, 0.8, 0.999])
def test_an_exponential_average_follows_its_definition(release: Make, decay: float) -> None:
    """Over 50 steps the warm-up alone decides at a decay of 0.999, and the decay from step 8 and 35 at 0.5 and 0.8."""
    values = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    average = WeightAverage(exponential(decay), torch.ones(3))
    for count, value in enumerate(values, start=1):
        average.begin_step()
        average.update(release(value[None]))
        expected = averaged([v.double().numpy() for v in values[:count]], decay, np.ones(3))
        np.testing.assert_allclose(average.value.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [exponential(0.9), tail_mean(1.0, 4)])
def test_an_average_changes_neither_its_start_nor_the_weights_it_takes(
    release: Make, share: Callable[[int], float]
) -> None:
    start = torch.full((2,), 5.0)
    average = WeightAverage(share, start)
    assert average.value.tolist() == [5.0, 5.0]
    taken = [release(torch.full((1, 2), float(value))) for value in range(4)]
    for weight in taken:
        average.begin_step()
        average.update(weight)
    assert start.tolist() == [5.0, 5.0]
    assert [weight.value.tolist() for weight in taken] == [[float(value)] * 2 for value in range(4)]


@pytest.mark.parametrize(("share", "count"), [(0.14, 7), (0.28, 14), (0.56, 28), (0.145, 8)])
def test_a_share_that_rounding_puts_just_above_a_whole_number_of_steps_is_that_number(
    release: Make, share: float, count: int
) -> None:
    """0.14 · 50 is 7.000000000000001 in floating point; 0.145 · 50 is 7.25, and truly more than 7."""
    average = WeightAverage(tail_mean(share, 50), torch.zeros(1))
    for value in range(1, 51):
        average.begin_step()
        average.update(release(torch.tensor([[float(value)]])))
    assert average.value.item() == pytest.approx(np.mean(range(51 - count, 51)))


@pytest.mark.parametrize(("share", "expected"), [(0.1, 10.0), (0.2, 9.5), (0.3, 9.0), (0.5, 8.0), (1.0, 5.5)])
def test_a_tail_average_is_the_mean_of_the_last_weights(release: Make, share: float, expected: float) -> None:
    average = WeightAverage(tail_mean(share, 10), torch.zeros(1))
    for value in range(1, 11):
        average.begin_step()
        average.update(release(torch.tensor([[float(value)]])))
    assert average.value.item() == pytest.approx(expected)


def test_before_the_tail_the_average_is_the_last_weights(release: Make) -> None:
    average = WeightAverage(tail_mean(0.1, 10), torch.zeros(1))
    for value in range(1, 6):
        average.begin_step()
        average.update(release(torch.tensor([[float(value)]])))
        assert average.value.item() == value


@pytest.mark.parametrize("share", [exponential(0.9), tail_mean(0.5, 4)])
def test_an_average_takes_a_release_and_nothing_else(share: Callable[[int], float]) -> None:
    average = WeightAverage(share, torch.zeros(2))
    with pytest.raises(PrivacyLineError, match="takes a Release"):
        average.update(torch.ones(2))  # type: ignore[arg-type]


def test_a_run_keeps_the_tail_average_of_its_own_iterates() -> None:
    last = [weights(run_small(DPSGD(), steps=4, sigma=1.5).model)]
    averaged = weights(run_small(DPSGD(), steps=4, sigma=1.5, tail=0.25).model)
    torch.testing.assert_close(averaged, last[0])
    assert not torch.equal(weights(run_small(DPSGD(), steps=4, tail=1.0).model), last[0])


@pytest.mark.parametrize("decay", [0.2, 0.4, 0.9])
def test_a_run_keeps_the_exponential_average_of_its_iterates(decay: float) -> None:
    recorder = Recorder()
    run = run_small(DPSGD(), steps=8, lr=0.5, momentum=0.0, ema=decay, tape=recorder)
    expected = averaged(iterates(recorder, 0.5), decay, weights(small_net()).double().numpy())
    np.testing.assert_allclose(weights(run.model).numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("share", "count"), [(0.5, 2), (0.3, 1), (1.0, 3)])
def test_the_stage_that_releases_normalisation_is_no_part_of_the_tail(share: float, count: int) -> None:
    recorder = Recorder()
    norm = Front(None, ReleasedNorm(1, clip=1.0, noise_multiplier=8.0))
    run = run_small(DPSGD(), steps=3, lr=0.5, momentum=0.0, tail=share, front=norm, tape=recorder)
    assert run.steps == 4
    assert isinstance(run.model, Fronted)
    found = iterates(recorder, 0.5)
    assert len(found) == 3
    expected = np.mean(found[-count:], axis=0)
    np.testing.assert_allclose(weights(run.model.body).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_ema_and_tail_together_are_refused() -> None:
    with pytest.raises(InputError, match=r"ema=0.9 and tail=0.5"):
        run_small(DPSGD(), ema=0.9, tail=0.5)
    with pytest.raises(InputError, match="tail=0"):
        run_small(DPSGD(), tail=0.0)
