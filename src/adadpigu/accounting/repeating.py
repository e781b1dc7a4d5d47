"""The best of a random number of private runs, accounted as one event (Papernot and Steinke 2022). Public numbers only.

A run that is repeated K times, of which only the best by a *private* score is shown, costs little more than one run if
K is drawn from a law that is fixed beforehand and nobody learns K. The bounds are Rényi DP; no PLD of it is known.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from adadpigu.accounting.events import DpEvent, leaves, repeated
from adadpigu.accounting.plan import Budget, Plan
from adadpigu.errors import BudgetError, check, check_known

Numbers = NDArray[np.float64]
Law = Literal["geometric", "poisson"]
ORDERS: tuple[float, ...] = tuple(map(float, (*range(2, 64), 128, 256, 512)))
"""whole ones: of every draw they are finite sums, so that two plans can be compared at each"""
_LARGEST_SIGMA = 2.0**14
_EXACT = 1.001  # ratio of two noise multipliers that are as good as one


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How often a run is made, of which the best is kept.

    >>> Repeats(mean=8).shape, Repeats(law="poisson", mean=8).shape
    (1.0, inf)
    """

    law: Law = "geometric"
    mean: float
    run: Plan | None = None
    """the plan that every run is charged as, whatever it costs less; None: its own"""

    def __post_init__(self) -> None:
        check_known("law", self.law, get_args(Law))
        fits = math.isfinite(self.mean) and self.mean >= 1
        check("mean_runs", self.mean, fits, "must be a finite number of at least 1")

    @property
    def shape(self) -> float:
        """Of the truncated negative binomial law: 1 is geometric, infinity Poisson."""
        return 1.0 if self.law == "geometric" else math.inf

    def event(self, plan: Plan) -> DpEvent:
        """All runs and the choice among them, as one event."""
        return repeated(leaves((self.run or plan).event()).items(), float(self.mean), self.shape)

    def draw(self, rng: np.random.Generator) -> int:
        """K. The first draw counts: whoever draws again until it suits has another law."""
        return int(rng.geometric(1 / self.mean) if self.law == "geometric" else rng.poisson(self.mean))

    def to_json(self) -> dict[str, object]:
        return {"law": self.law, "mean": self.mean}


def repeated_epsilon(event: DpEvent, delta: float, *, classic: bool = False) -> float:
    """ε at δ of events of which some are repeats, by Rényi DP."""
    from dp_accounting import rdp

    values = _rdp(tuple(leaves(event).items()))
    if classic:
        pairs = zip(ORDERS, values, strict=True)
        return min(value + math.log(1 / delta) / (order - 1) for order, value in pairs)
    return float(rdp.compute_epsilon(ORDERS, values, delta)[0])


def repeated_profile(event: DpEvent, epsilons: Sequence[float]) -> list[float]:
    """δ at each ε, by Rényi DP: never too low."""
    orders, values = np.array(ORDERS), np.array(_rdp(tuple(leaves(event).items())))
    logs = (orders - 1) * (values - np.array(epsilons)[:, None] + np.log1p(-1 / orders)) - np.log(orders)
    apart = 0.5 * np.log(-np.expm1(-np.minimum(values.min(), 700.0)))  # by the Kullback-Leibler divergence, at ε = 0
    found = np.exp(np.minimum(0.0, np.minimum(logs.min(axis=1), apart)))
    return [float(delta) for delta in _tightened(np.exp(np.array(epsilons)), found)]


def _tightened(odds: Numbers, deltas: Numbers) -> Numbers:
    """Smaller δ where larger ε imply it: being (ε, δ)-private either way round, a test has α false and β true positives
    with β ≤ min(e^ε α + δ, 1 − e^−ε(1 − δ − α)), so β − tα ≤ δ + (e^ε − t)(1 − δ)/(1 + e^ε) for every t ≤ e^ε."""
    implied = deltas + (odds - odds[:, None]) * (1 - deltas) / (1 + odds)
    found: Numbers = np.minimum(deltas, np.where(odds >= odds[:, None], implied, np.inf).min(axis=1))
    return found


@functools.lru_cache(maxsize=256)
def _rdp(events: tuple[tuple[DpEvent, int], ...]) -> tuple[float, ...]:
    import dp_accounting as dp

    from adadpigu.accounting.accountants import quiet_orders

    quiet_orders()
    accountant = dp.rdp.RdpAccountant(list(ORDERS))
    for event, count in events:
        accountant.compose(event, count)
    # `_rdp`, since dp_accounting 0.5 has no public name for it
    return tuple(float(value) if value >= 0 else math.inf for value in accountant._rdp)


def calibrate_repeated(plan_at: Callable[[float], Plan], repeats: Repeats, budget: Budget) -> tuple[float, Plan]:
    """About the least σ at which all runs together keep the budget, and the plan of one of them.

    Where every run is charged as a given plan, the least at which this one costs no more, at any Rényi order.
    """

    def fits(sigma: float) -> bool:
        if repeats.run is not None:
            return _costs_no_more(plan_at(sigma), repeats.run)
        return repeated_epsilon(repeats.event(plan_at(sigma)), budget.delta) <= budget.epsilon

    high = 1.0
    while not fits(high):
        high *= 2
        if high > _LARGEST_SIGMA:
            told = f"the choice among {repeats.mean:g} runs on average and their scores alone cost more"
            raise BudgetError(f"epsilon={budget.epsilon}, delta={budget.delta}: too small; {told}")
    low = high / 2
    while fits(low):
        low, high = low / 2, low
    while high / low > _EXACT:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high, plan_at(high)


def _costs_no_more(plan: Plan, other: Plan) -> bool:
    costs, limits = (_rdp(tuple(leaves(each.event()).items())) for each in (plan, other))
    return all(cost <= limit * (1 + 1e-12) for cost, limit in zip(costs, limits, strict=True))
