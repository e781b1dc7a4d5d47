"""Averages of the weights against their definitions, and the gate before them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.mechanism import Release
from adadpigu.methods import DPSGD
from adadpigu.training.averaging import ExponentialAverage, TailAverage
from trials import run_small, weights

Make = Callable[..., Release]


def test_an_exponential_average_forgets_its_start_fast(release: Make) -> None:
    average = ExponentialAverage(0.5, torch.zeros(2))
    average.update(release(torch.ones(1, 2)))
    decay = 2 / 11
    torch.testing.assert_close(average.value, torch.full((2,), 1 - decay))
    average.update(release(average.value[None]))
    assert average.value.tolist() == pytest.approx([1 - decay] * 2)


@pytest.mark.parametrize(("share", "expected"), [(0.1, 10.0), (0.2, 9.5), (0.3, 9.0), (0.5, 8.0), (1.0, 5.5)])
def test_a_tail_average_is_the_mean_of_the_last_weights(release: Make, share: float, expected: float) -> None:
    average = TailAverage(share, 10, torch.zeros(1))
    for value in range(1, 11):
        average.update(release(torch.tensor([[float(value)]])))
    assert average.value.item() == pytest.approx(expected)


def test_before_the_tail_the_average_is_the_last_weights(release: Make) -> None:
    average = TailAverage(0.1, 10, torch.zeros(1))
    for value in range(1, 6):
        average.update(release(torch.tensor([[float(value)]])))
        assert average.value.item() == value


@pytest.mark.parametrize("average", [ExponentialAverage(0.9, torch.zeros(2)), TailAverage(0.5, 4, torch.zeros(2))])
def test_an_average_takes_a_release_and_nothing_else(average: ExponentialAverage | TailAverage) -> None:
    with pytest.raises(PrivacyLineError, match="takes a Release"):
        average.update(torch.ones(2))  # type: ignore[arg-type]


def test_a_run_keeps_the_tail_average_of_its_own_iterates() -> None:
    last = [weights(run_small(DPSGD(), steps=4, sigma=1.5).model)]
    averaged = weights(run_small(DPSGD(), steps=4, sigma=1.5, tail=0.25).model)
    torch.testing.assert_close(averaged, last[0])
    assert not torch.equal(weights(run_small(DPSGD(), steps=4, tail=1.0).model), last[0])


def test_ema_and_tail_together_are_refused() -> None:
    with pytest.raises(InputError, match=r"ema=0.9 and tail=0.5"):
        run_small(DPSGD(), ema=0.9, tail=0.5)
    with pytest.raises(InputError, match="tail=0"):
        run_small(DPSGD(), tail=0.0)
