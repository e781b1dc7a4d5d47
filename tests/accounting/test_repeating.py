"""The best of a random number of runs: against the published bounds reckoned apart, and against exact laws."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from adadpigu.accounting import Budget, Plan, epsilon, event_from_json, event_to_json, plan_for
from adadpigu.accounting.membership import membership_bounds
from adadpigu.accounting.repeating import Repeats, calibrate_repeated, repeated_profile
from adadpigu.errors import BudgetError, InputError

DELTA = 1e-5


def gaussian(sigma: float) -> Plan:
    return plan_for(1.0, 1)(sigma)


def least(function: Callable[[float], float]) -> float:
    return float(minimize_scalar(lambda x: function(1 + math.exp(x)), bounds=(-6, 7), method="bounded").fun)


def reckoned(sigma: float, repeats: Repeats) -> float:
    """Papernot and Steinke 2022, theorems 2 and 6, for a Gaussian of RDP α/2σ², over all real orders."""
    mean = repeats.mean

    def rho(order: float) -> float:
        return order / (2 * sigma**2)

    if repeats.law == "geometric":
        extra = 2 * least(lambda order: (1 - 1 / order) * rho(order) + math.log(mean) / order)

        def whole(order: float) -> float:
            return rho(order) + extra + math.log(mean) / (order - 1)
    else:

        def whole(order: float) -> float:
            near = math.log1p(1 / (order - 1))
            apart = math.exp(least(lambda at: (at - 1) * (rho(at) - near + math.log1p(-1 / at)) - math.log(at)))
            return rho(order) + mean * min(1.0, apart) + math.log(mean) / (order - 1)

    return least(
        lambda order: whole(order) + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
    )


@pytest.mark.parametrize("law", ["geometric", "poisson"])
@pytest.mark.parametrize(("sigma", "mean"), [(1.0, 3.0), (2.0, 10.0), (4.0, 5.0)])
def test_epsilon_is_the_published_bound(law: str, sigma: float, mean: float) -> None:
    repeats = Repeats(law=law, mean=mean)  # type: ignore[arg-type]
    found, expected = epsilon(repeats.event(gaussian(sigma)), DELTA), reckoned(sigma, repeats)
    assert expected * (1 - 1e-3) <= found <= expected * 1.06


@pytest.mark.parametrize(("sigma", "mean"), [(0.7, 2.0), (1.0, 10.0), (3.0, 10.0)])
def test_what_the_best_score_of_geometrically_many_shows_is_covered(sigma: float, mean: float) -> None:
    """The mechanism releases its score, N(0 or 1, σ²), and the highest of K is shown: its law is known exactly."""
    x = np.linspace(-9 * sigma, 1 + 9 * sigma, 40_001)

    def best(shift: float) -> np.ndarray:
        below = norm.cdf((x - shift) / sigma)
        return np.diff(below / mean / (1 - (1 - 1 / mean) * below))  # Σ γ(1 − γ)^(k−1) F^k

    without, within = best(0.0), best(1.0)
    epsilons = [0.0, 0.5, 1.0, 2.0, 4.0]
    bounds = repeated_profile(Repeats(mean=mean).event(gaussian(sigma)), epsilons)
    for value, bound in zip(epsilons, bounds, strict=True):
        for one, other in ((within, without), (without, within)):
            assert np.maximum(one - math.exp(value) * other, 0).sum() <= bound + 1e-9


def test_repeats_cost_more_than_one_run_and_less_than_as_many_as_are_made() -> None:
    run, ten = plan_for(0.1, 100)(3.0), plan_for(0.1, 1000)(3.0)
    assert epsilon(run.event(), DELTA) < epsilon(Repeats(mean=10).event(run), DELTA) < epsilon(ten.event(), DELTA)


def test_more_runs_less_noise_and_a_smaller_delta_cost_more() -> None:
    costs = [epsilon(Repeats(mean=mean).event(plan_for(0.1, 60)(2.0)), DELTA) for mean in (1, 2, 8, 30)]
    assert costs == sorted(costs)
    assert epsilon(Repeats(mean=8).event(plan_for(0.1, 60)(1.5)), DELTA) > costs[2]
    assert epsilon(Repeats(mean=8).event(plan_for(0.1, 60)(2.0)), 1e-7) > costs[2]


def test_the_event_is_one_that_any_accountant_replays() -> None:
    from dp_accounting.rdp import RdpAccountant

    event = Repeats(mean=5).event(plan_for(0.05, 200)(1.2))
    again = event_from_json(json.loads(json.dumps(event_to_json(event))))
    assert again == event
    assert epsilon(event, DELTA) == pytest.approx(RdpAccountant().compose(again).get_epsilon(DELTA), rel=0.02)
    poisson = Repeats(law="poisson", mean=5).event(gaussian(1.0))
    assert event_from_json(json.loads(json.dumps(event_to_json(poisson)))) == poisson


def test_noise_is_found_for_a_budget_of_all_runs() -> None:
    sigma, plan = calibrate_repeated(plan_for(0.1, 60), Repeats(mean=8), Budget(epsilon=3.0))
    assert 2.98 < epsilon(Repeats(mean=8).event(plan), DELTA) <= 3.0
    assert plan.stages[0].draws[0].noise_multiplier == sigma
    with pytest.raises(BudgetError, match="too small"):
        calibrate_repeated(plan_for(0.1, 60), Repeats(mean=1000), Budget(epsilon=0.01))


def test_a_run_that_is_charged_as_another_costs_no_more_at_any_order() -> None:
    from adadpigu.accounting.accountants import rdp_values
    from adadpigu.accounting.events import spending_of
    from adadpigu.accounting.repeating import ORDERS

    reference = plan_for(0.1, 60)(2.0)
    _, plan = calibrate_repeated(plan_for(0.3, 20), Repeats(mean=8, run=reference), Budget(epsilon=3.0))
    costs, limits = (rdp_values(spending_of(each.event()), ORDERS) for each in (plan, reference))
    assert all(cost <= limit * (1 + 1e-9) for cost, limit in zip(costs, limits, strict=True))
    assert any(cost > 0.98 * limit for cost, limit in zip(costs, limits, strict=True) if math.isfinite(limit))
    assert Repeats(mean=8, run=reference).event(plan) == Repeats(mean=8).event(reference)


@pytest.mark.parametrize(("law", "fewest"), [("geometric", 1), ("poisson", 0)])
def test_the_number_of_runs_follows_its_law(law: str, fewest: int) -> None:
    """The mean of 20,000 draws lies within 5.5 standard deviations (1e-7)."""
    repeats, rng = Repeats(law=law, mean=6), np.random.default_rng(3)  # type: ignore[arg-type]
    draws = np.array([repeats.draw(rng) for _ in range(20_000)])
    assert draws.min() == fewest or law == "poisson"
    assert abs(draws.mean() - 6) < 5.5 * draws.std() / math.sqrt(len(draws))


@pytest.mark.parametrize(
    ("options", "message"), [({"mean": 0.5}, "mean_runs=0.5"), ({"mean": 3, "law": "uniform"}, "law")]
)
def test_what_is_no_law_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Repeats(**options)  # type: ignore[arg-type]


def test_guesses_about_the_best_of_several_gain_more_than_about_one_and_stay_below_certainty() -> None:
    one, best = (membership_bounds(event) for event in (gaussian(2.0).event(), Repeats(mean=5).event(gaussian(2.0))))
    assert one.advantage < best.advantage < 1
    assert one.true_positive_rates["0.01"] < best.true_positive_rates["0.01"] < 1
