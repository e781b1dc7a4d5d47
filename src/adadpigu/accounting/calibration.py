"""The noise a budget needs: the σ at which a whole plan, all stages together, spends just under (ε, δ).

Rényi accounting over whole orders brackets σ in milliseconds, a coarse privacy loss distribution narrows it, and the
tight one has the last word, so that a search costs two or three tight evaluations. Everything here is public.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from adadpigu.accounting import accountants
from adadpigu.accounting.events import spending_of
from adadpigu.accounting.plan import Budget, Plan
from adadpigu.accounting.pld import SMALLEST_SIGMA
from adadpigu.errors import BudgetError, InputError

_LARGEST_SIGMA = 2.0**40

Cost = Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A noise multiplier, the plan it gives, and the PLD ε that the plan spends in full."""

    noise_multiplier: float
    epsilon: float
    plan: Plan


def calibrate(plan_at: Callable[[float], Plan], *, epsilon: float, delta: float) -> Calibration:
    """A σ with `epsilon − 0.01 < ε(σ) ≤ epsilon` under PLD, within 0.5 % of a budget below 2.

    `plan_at` gives the plan for a noise multiplier and must accept infinity, which stands for its cost without the
    draws that σ scales: a plan may hold draws with a noise of their own. When those alone exceed the budget, no σ
    helps, and a `BudgetError` says what they cost.

    >>> from adadpigu.accounting import plan_for
    >>> found = calibrate(plan_for(sample_rate=0.1, steps=100), epsilon=2.0, delta=1e-5)
    >>> 1.99 < found.epsilon <= 2.0
    True
    """
    _check_calibratable(plan_at, Budget(epsilon=epsilon, delta=delta))

    def quick(sigma: float) -> float:
        return accountants.quick_epsilon(plan_at(sigma).event(), delta)

    def tight(sigma: float) -> float:
        return accountants.epsilon(plan_at(sigma).event(), delta)

    def rough(sigma: float) -> float:
        return accountants.rdp_epsilon(spending_of(plan_at(sigma).event()), delta, accountants.WHOLE_ORDERS)[0]

    start = _upper_sigma(rough, epsilon) or _upper_sigma(quick, epsilon)
    if start is None:
        raise BudgetError(f"epsilon={epsilon}, delta={delta}: no noise multiplier below {_LARGEST_SIGMA:g} meets it")
    near = _solve(quick, epsilon, 0.8 * start, start)
    sigma = near if _in_window(tight(near), epsilon) else _solve(tight, epsilon, 0.998 * near, 1.001 * near)
    return Calibration(noise_multiplier=sigma, epsilon=tight(sigma), plan=plan_at(sigma))


def affordable_prefix(plan: Plan, *, epsilon: float, delta: float) -> int:
    """How many steps from the start of this plan, across its stages, the budget pays for; its noise stays as it is."""

    def quick(steps: int) -> float:
        return accountants.quick_epsilon(plan.prefix(steps).event(), delta)

    def tight(steps: int) -> float:
        return accountants.epsilon(plan.prefix(steps).event(), delta)

    reach = 1
    while reach < plan.steps and quick(reach) <= epsilon:
        reach *= 2
    guess = _last_within(quick, epsilon, 0, min(reach, plan.steps) + 1)
    low, high = guess, guess + 1
    while low > 0 and tight(low) > epsilon:
        low, high = low * 99 // 100, low
    while high <= plan.steps and tight(high) <= epsilon:
        low, high = high, high + 1 + high // 100
    return _last_within(tight, epsilon, low, min(high, plan.steps + 1))


def _last_within(cost: Callable[[int], float], epsilon: float, low: int, high: int) -> int:
    """The last count below `high` whose cost is within ε; the cost of `low` is, the cost of `high` is not."""
    return low + bisect.bisect_right(range(low + 1, high), epsilon, key=cost)


def _check_calibratable(plan_at: Callable[[float], Plan], budget: Budget) -> None:
    """Refuse a plan that no σ can fit, or in which σ changes nothing."""
    fixed, scaled = plan_at(math.inf), plan_at(1.0)
    if spending_of(fixed.event()) == spending_of(scaled.event()):
        raise InputError(f"steps={scaled.steps}: the plan holds no draw whose noise could be calibrated")
    spending = spending_of(scaled.event())
    drawn = 1.0 if spending.precision else spending.chance_of_being_drawn()
    if drawn <= budget.delta:  # publishing every drawn record would satisfy it
        raise InputError(f"delta={budget.delta}: must be below {drawn:.3g}, the chance that a record is drawn at all")
    cost = accountants.epsilon(fixed.event(), budget.delta)
    if cost > budget.epsilon:
        spent = f"the draws with a noise of their own already cost {cost:.4g} at delta={budget.delta}"
        raise BudgetError(f"epsilon={budget.epsilon}: too small; {spent}")


def _upper_sigma(cost: Cost, epsilon: float) -> float | None:
    """A σ, on the √√2 grid around 1, that meets the budget while the next smaller one on the grid does not."""
    high, ratio = 1.0, 2.0
    while cost(high) > epsilon:
        high *= 2
        if high > _LARGEST_SIGMA:
            return None
    while high / 2 >= SMALLEST_SIGMA and cost(high / 2) <= epsilon:
        high /= 2
    while ratio > 1.2:
        ratio = math.sqrt(ratio)
        if cost(high / ratio) <= epsilon:
            high /= ratio
    return high


def _window(epsilon: float) -> float:
    """How far below a budget its σ may stay."""
    return min(0.01, 0.005 * epsilon)


def _in_window(cost: float, epsilon: float) -> bool:
    return epsilon - _window(epsilon) < cost <= epsilon


def _solve(cost: Cost, epsilon: float, low: float, high: float) -> float:
    """σ in the accepted window, from a bracket that is checked and widened first (regula falsi, then bisection).

    log ε is close to linear in log σ, so that the secant lands in the window after one or two evaluations.
    """
    aim = epsilon - _window(epsilon) / 5

    def height(sigma: float) -> float:
        return math.log(min(max(cost(sigma), 1e-12), 1e12) / aim)

    above, below = height(low), height(high)
    while above <= 0 and low >= SMALLEST_SIGMA / 0.8:
        low, high, below = low * 0.8, low, above
        above = height(low)
    if above <= 0:
        raise BudgetError(f"epsilon={epsilon}: no noise multiplier of {SMALLEST_SIGMA:g} or more spends as much")
    while below > 0 and high < 8 * _LARGEST_SIGMA:
        low, high, above = high, high * 1.25, below
        below = height(high)
    for attempt in range(60):
        slope_share = above / (above - below) if above > below else 0.5
        share = min(max(slope_share, 0.02), 0.98) if attempt < 6 else 0.5
        sigma = low * math.exp(share * math.log(high / low))
        here = height(sigma)
        if _in_window(cost(sigma), epsilon):
            return sigma
        low, above, high, below = (sigma, here, high, below) if here > 0 else (low, above, sigma, here)
    return high
