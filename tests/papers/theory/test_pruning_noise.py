"""What pruning removes follows its closed form for random weights, not for trained ones; and it hides no record."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adadpigu.audit.estimators import one_run_epsilon
from adadpigu.audit.result import REFUTING
from adadpigu.errors import InputError
from adadpigu_paper.theory import pruning_attack as attack
from adadpigu_paper.theory.pruning_noise import (
    measured_share,
    printed_removed_variance,
    removed_part,
    removed_variance,
    threshold_of_rate,
)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 1.5])
def test_the_closed_form_is_met_by_a_million_draws(threshold: float) -> None:
    """1 % of a variance of 10⁶ draws is at least 5 of its standard errors (√(κ − 1)/1000, kurtosis κ < 4.9 here)."""
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal(10), 0.5
    found = removed_part(s * rng.standard_normal((1_000_000, 10)), x[None], threshold)[0]
    assert found.var() == pytest.approx(removed_variance(float(x @ x), s, threshold), rel=0.01)
    assert abs(found.mean()) < 5 * found.std() / 1000


def test_with_all_weights_removed_the_whole_activation_is_and_with_none_nothing() -> None:
    assert removed_variance(3.0, 0.5, math.inf) == 0.75
    assert removed_variance(3.0, 0.5, 100.0) == pytest.approx(0.75, rel=1e-12)
    assert removed_variance(3.0, 0.5, 0.0) == 0.0
    assert threshold_of_rate(0.5, 1.0) == math.inf


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_what_is_removed_is_less_than_its_share_of_the_weights(rate: float) -> None:
    """The removed weights are the smallest: at 50 % they carry 7 % of the variance, not half of it."""
    kept = removed_variance(1.0, 1.0, threshold_of_rate(1.0, rate))
    assert kept < printed_removed_variance(1.0, 1.0, rate)
    assert rate != 0.5 or kept == pytest.approx(0.0716, abs=1e-3)


def test_odd_values_are_refused() -> None:
    for wrong in ({"squared_norm": -1.0}, {"deviation": 0.0}, {"threshold": -1.0}):
        with pytest.raises(InputError):
            removed_variance(**{"squared_norm": 1.0, "deviation": 1.0, "threshold": 1.0} | wrong)


@pytest.fixture(scope="module")
def coins() -> attack.Coins:
    return attack.Coins.toss(0)


@pytest.fixture(scope="module")
def net(coins: attack.Coins) -> torch.nn.Module:
    return attack.trained_without_noise(coins, 0)


def test_the_form_holds_for_a_layer_at_random_and_fails_for_a_trained_one(
    coins: attack.Coins, net: torch.nn.Module
) -> None:
    """At random: 512 outputs, of which 10 % is more than 3 standard errors a record; records share the weights."""
    inputs = coins.inputs.flatten(1).double().numpy()
    drawn = np.random.default_rng(1).standard_normal((512, 64))
    measured, predicted = measured_share(drawn, inputs, 0.5)
    assert measured == pytest.approx(predicted, rel=0.1)
    trained = net[1].weight.detach().double().numpy()  # type: ignore[index]
    measured, predicted = measured_share(trained, inputs, 0.5)
    assert measured < predicted / 2


@pytest.mark.parametrize("rate", attack.RATES)
def test_the_attack_refutes_epsilon_1_of_a_pruned_net(rate: float, coins: attack.Coins) -> None:
    """A net that is ε = 1 private would be found so with a chance of 1e-6 at most."""
    trial = coins.attack(attack.pruned(attack.trained_without_noise(coins, 0), rate))
    assert one_run_epsilon(trial, attack.DELTA, REFUTING) > 1.5


def test_the_same_attack_refutes_nothing_of_dp_sgd_at_epsilon_1(coins: attack.Coins) -> None:
    """False alarms: 1e-6."""
    trial = coins.attack(attack.trained_privately(coins, 0))
    assert one_run_epsilon(trial, attack.DELTA, REFUTING) <= 1


def test_pruning_is_a_function_of_the_weights(coins: attack.Coins) -> None:
    """Two prunings of equal weights are equal to the bit; so many entries are zero as were asked for."""
    once, again = (attack.pruned(attack.small_net(3), 0.9) for _ in range(2))
    for a, b in zip(once.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    weight = next(iter(once.parameters()))
    assert int((weight == 0).sum()) == int(0.9 * weight.numel())
