"""The second reckoning of ε agrees with closed forms and with the package's, and refutes an ε that is too low."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import plants_once_missed as missed
import pytest

from adadpigu.accounting import Plan, PlannedDraw, PlannedStage, epsilon, plan_for
from adadpigu.accounting.closed_forms import gaussian_epsilon
from adadpigu.accounting.events import draw_event
from adadpigu.audit.accountant import audit_accountant, charges
from adadpigu.audit.epsilon_integral import integrate_epsilon
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.config import merge, read_preset
from adadpigu.core.sampling import PoissonSampler
from adadpigu.errors import BudgetError


@cache
def subject() -> Subject:
    given = {"epsilon": None, "noise_multiplier": 1.0, "steps": 40, "method": "dpsgd"}
    return subject_of(merge(read_preset("digits-dpsgd"), given), sample_rate=0.05)


@pytest.mark.parametrize(("sigma", "count", "delta"), [(1.0, 1, 1e-5), (3.0, 20, 1e-6), (0.3, 2, 1e-9)])
def test_gaussians_are_reckoned_as_their_closed_form_has_it(sigma: float, count: int, delta: float) -> None:
    found = integrate_epsilon([(1.0, sigma, count)], delta)
    exact = gaussian_epsilon(sigma / count**0.5, delta)
    assert found.least == pytest.approx(exact, rel=1e-6)
    assert found.most == pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(0.02, 0.8, 3000), (0.05, 1.0, 2), (0.25, 2.0, 60), (0.01, 1.1, 9000)]
)
def test_sampled_draws_are_reckoned_just_below_the_packages_own_claim_and_above_one_of_a_step_less(
    q: float, sigma: float, steps: int
) -> None:
    found = integrate_epsilon([(q, sigma, steps)], 1e-5)
    claims = [epsilon(plan_for(q, count)(sigma).event(), 1e-5) for count in (steps - 1, steps)]
    assert claims[0] < found.least
    assert found.least == pytest.approx(claims[1], rel=1e-4)
    assert found.most - found.least <= 1e-5 * found.most


def test_draws_that_cost_nothing_or_everything() -> None:
    assert integrate_epsilon([(0.0, 1.0, 5), (0.5, float("inf"), 5), (0.5, 1.0, 0)], 1e-5).most == 0
    assert integrate_epsilon([(0.5, 0.0, 1)], 1e-5).least == float("inf")


@pytest.mark.slow
def test_where_few_records_are_drawn_the_reckoning_says_how_little_it_knows() -> None:
    found, claim = integrate_epsilon([(0.001, 0.7, 30)], 1e-5), epsilon(plan_for(0.001, 30)(0.7).event(), 1e-5)
    assert found.least <= claim <= found.most * (1 + 1e-4)


def test_an_honest_claim_passes_one_a_little_lower_is_refuted_and_the_run_is_counted() -> None:
    result = audit_accountant(subject())
    assert result.passed, result.findings
    assert not replace(result, epsilon_claimed=result.epsilon_claimed * (1 - 1e-4)).passed
    assert result.observations == result.details["counted_steps"] == 20
    assert result.epsilon_lower == pytest.approx(result.epsilon_claimed, rel=1e-4)
    assert result.epsilon_lower < result.details["epsilon_renyi"]


def test_a_step_less_in_the_accountant_shows_where_the_claim_hides_it() -> None:
    """3,000 steps, whose ε with one fewer is within what calibration leaves: the run of twenty tells."""
    with missed.one_step_too_few():
        result = audit_accountant(replace(subject(), epsilon=100.0))
    assert any("a run of 20 steps says" in line for line in result.findings)


def test_the_samplers_that_are_counted_are_the_runs_own() -> None:
    """One that draws at q and charges for half of it is refused by the ledger, as in any run."""

    class Cheap(PoissonSampler):
        def event(self, noise_multipliers: list[float]) -> Any:
            return draw_event(self.sample_rate / 2, noise_multipliers)

    with missed.sampler_of(Cheap), pytest.raises(BudgetError, match=r"sample_rate=0\.025, .* holds no such draw"):
        audit_accountant(subject())


def test_steps_that_may_be_repeated_are_reckoned() -> None:
    draw = PlannedDraw(name="gradient", sample_rate=0.05, noise_multiplier=1.0)
    plan = Plan(stages=(PlannedStage(name="training", steps=40, draws=(draw,)),), spare=10)
    result = audit_accountant(replace(subject(), plan=plan))
    assert result.details["draws"] == [{"sample_rate": 0.05, "noise_multiplier": 1.0, "count": 50}]
    assert not result.passed


def test_charges_are_counted_from_a_ledgers_lines() -> None:
    event = {"event": "PoissonSampled", "sample_rate": 0.5, "of": {"event": "Gaussian", "noise_multiplier": 2.0}}
    lines: list[dict[str, Any]] = [
        {"charge": 0, "event": event},
        {"reserve": 5, "draws": {"gradient": event, "test": {"event": "NonPrivate"}}},
        {"settle": 2},
        {"torn": 9, "charged": [[event, 4]]},
        {"note": "finished"},
    ]
    assert charges(lines) == {(0.5, 2.0): 8, (1.0, 0.0): 3}
