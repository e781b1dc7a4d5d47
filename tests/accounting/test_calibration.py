"""Calibration finds a σ just inside the budget, or says why there is none."""

from __future__ import annotations

import dataclasses
import math

import pytest

from adadpigu.accounting import Budget, Plan, PlannedDraw, PlannedStage, calibrate, epsilon, plan_for
from adadpigu.accounting.calibration import affordable_prefix
from adadpigu.errors import BudgetError, InputError

DELTA = 1e-5


def three_stages(sigma: float, *, fixed: float = 20.0) -> Plan:
    """Two stages that share σ, a third whose noise is twice that, and one draw with a noise of its own."""
    batch = PlannedDraw(name="batch", sample_rate=0.1, noise_multiplier=sigma)
    quieter = PlannedDraw(name="batch", sample_rate=0.2, noise_multiplier=2 * sigma)
    own = PlannedDraw(name="own", sample_rate=0.05, noise_multiplier=fixed)
    return Plan(
        stages=(
            PlannedStage(name="importance", steps=10, draws=(batch,)),
            PlannedStage(name="training", steps=50, draws=(batch, own)),
            PlannedStage(name="polish", steps=20, draws=(quieter,)),
        )
    )


@pytest.mark.parametrize(
    ("rate", "steps", "target", "delta"),
    [
        (512 / 1437, 300, 4.0, DELTA),
        (1 / 60, 12_000, 4.0, DELTA),
        (0.01, 1000, 0.01, DELTA),
        (0.001, 100_000, 0.01, DELTA),
        (0.5, 1, 50.0, DELTA),
        (0.5, 1, 0.01, DELTA),
        (0.001, 1, 1.0, DELTA),
        (1.0, 1, 1.0, DELTA),
        (1.0, 100_000, 50.0, DELTA),
        (0.2, 30, 8.0, 1e-9),
        (0.01, 1000, 0.01, 1e-10),  # below what RDP's largest order can certify: bracketed by PLD
    ],
)
def test_the_budget_is_met_and_nearly_used(rate: float, steps: int, target: float, delta: float) -> None:
    found = calibrate(plan_for(rate, steps), epsilon=target, delta=delta)
    assert target - min(0.01, 0.006 * target) < found.epsilon <= target
    assert found.epsilon == epsilon(found.plan.event(), delta)
    assert found.plan == plan_for(rate, steps)(found.noise_multiplier)


@pytest.mark.parametrize("target", [0.5, 3.0])
def test_all_stages_and_draws_share_the_budget(target: float) -> None:
    found = calibrate(three_stages, epsilon=target, delta=DELTA)
    assert target - 0.01 < epsilon(three_stages(found.noise_multiplier).event(), DELTA) <= target


def test_the_exact_gaussian_sigma_is_found() -> None:
    found = calibrate(plan_for(1.0, 1), epsilon=1.0, delta=DELTA)
    assert found.noise_multiplier == pytest.approx(3.730631635, rel=0.005)


def test_a_budget_that_fixed_draws_exceed_is_refused_with_their_cost() -> None:
    cost = epsilon(three_stages(math.inf, fixed=0.8).event(), DELTA)
    with pytest.raises(BudgetError, match=rf"epsilon=0\.5: too small; .* already cost {cost:.4g}"):
        calibrate(lambda sigma: three_stages(sigma, fixed=0.8), epsilon=0.5, delta=DELTA)


def test_a_plan_in_which_sigma_changes_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="steps=0"):
        calibrate(plan_for(0.1, 0), epsilon=1.0, delta=DELTA)
    with pytest.raises(InputError, match="no draw whose noise"):
        calibrate(lambda _: plan_for(0.1, 10)(2.0), epsilon=9.0, delta=DELTA)


def test_a_delta_that_would_allow_no_noise_at_all_is_refused() -> None:
    with pytest.raises(InputError, match=r"delta=0\.01: must be below 0\.001"):
        calibrate(plan_for(0.001, 1), epsilon=1.0, delta=0.01)


def test_a_budget_nobody_could_spend_is_refused() -> None:
    with pytest.raises(BudgetError, match="epsilon=1000000"):
        calibrate(plan_for(1.0, 1), epsilon=1_000_000, delta=DELTA)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_is_no_positive_number_is_named_and_refused(value: float) -> None:
    with pytest.raises(InputError, match=f"epsilon={value}: must be a finite number above 0"):
        Budget(epsilon=value)
    with pytest.raises(InputError, match=f"epsilon={value}"):
        calibrate(plan_for(0.1, 1), epsilon=value, delta=DELTA)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_a_delta_outside_the_open_unit_interval_is_named_and_refused(value: float) -> None:
    with pytest.raises(InputError, match=f"delta={value}: must lie strictly between 0 and 1"):
        Budget(epsilon=1.0, delta=value)


def test_a_budget_cannot_be_changed_afterwards() -> None:
    budget = Budget(epsilon=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.epsilon = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(("rate", "sigma", "target"), [(0.1, 2.0, 1.81), (512 / 1437, 5.0, 4.0)])
def test_affordable_steps_are_the_last_that_fit(rate: float, sigma: float, target: float) -> None:
    steps = affordable_prefix(plan_for(rate, 10**6)(sigma), epsilon=target, delta=DELTA)
    assert epsilon(plan_for(rate, steps)(sigma).event(), DELTA) <= target
    assert epsilon(plan_for(rate, steps + 1)(sigma).event(), DELTA) > target


def test_no_step_is_affordable_without_noise_or_with_too_little() -> None:
    assert affordable_prefix(plan_for(0.1, 10**6)(0.0), epsilon=1.0, delta=DELTA) == 0
    assert affordable_prefix(plan_for(0.1, 10**6)(0.5), epsilon=0.1, delta=DELTA) == 0


def test_an_affordable_prefix_ends_inside_a_stage_or_with_the_plan() -> None:
    plan = three_stages(3.0)
    whole = epsilon(plan.event(), DELTA)
    assert affordable_prefix(plan, epsilon=whole, delta=DELTA) == plan.steps == 80
    half = affordable_prefix(plan, epsilon=whole * 0.9, delta=DELTA)
    assert epsilon(plan.prefix(half).event(), DELTA) <= whole * 0.9
    assert epsilon(plan.prefix(half + 1).event(), DELTA) > whole * 0.9
