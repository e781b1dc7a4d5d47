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

from adadpigu.accounting.events import DpEvent, leaves
from adadpigu.accounting.plan import Budget, Plan
from adadpigu.errors import BudgetError, check, check_known

Law = Literal["geometric", "poisson"]
ORDERS: tuple[float, ...] = (*(1 + tenth / 10 for tenth in range(1, 100)), *map(float, (*range(11, 64), 128, 256, 512)))
_LARGEST_SIGMA = 2.0**20
_EXACT = 1.002  # ratio of two noise multipliers that are as good as one


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How often a run is made, of which the best is kept.

    >>> Repeats(mean=8).shape, Repeats(law="poisson", mean=8).shape
    (1.0, inf)
    """

    law: Law = "geometric"
    mean: float

    def __post_init__(self) -> None:
        check_known("law", self.law, get_args(Law))
        fits = math.isfinite(self.mean) and self.mean >= 1
        check("mean_runs", self.mean, fits, "must be a finite number of at least 1")

    @property
    def shape(self) -> float:
        """Of the truncated negative binomial law: 1 is geometric, infinity Poisson."""
        return 1.0 if self.law == "geometric" else math.inf

    def event(self, run: DpEvent) -> DpEvent:
        """All runs and the choice among them, as one event."""
        from dp_accounting import dp_event

        parts = tuple(dp_event.SelfComposedDpEvent(event, count) for event, count in leaves(run).items())
        whole = dp_event.ComposedDpEvent(parts)  # a tuple, so that it can be a key
        return dp_event.RepeatAndSelectDpEvent(event=whole, mean=float(self.mean), shape=self.shape)

    def draw(self, rng: np.random.Generator) -> int:
        """K. The first draw counts: whoever draws again until it suits has another law."""
        return int(rng.geometric(1 / self.mean) if self.law == "geometric" else rng.poisson(self.mean))

    def to_json(self) -> dict[str, object]:
        return {"law": self.law, "mean": self.mean}


def is_repeated(event: DpEvent) -> bool:
    from dp_accounting import dp_event

    return isinstance(event, dp_event.RepeatAndSelectDpEvent)


def repeated_epsilon(events: Sequence[tuple[DpEvent, int]], delta: float, *, classic: bool = False) -> float:
    """ε at δ of events of which some are repeats, by Rényi DP."""
    from dp_accounting import rdp

    values = _rdp(tuple(events))
    if classic:
        pairs = zip(ORDERS, values, strict=True)
        return min(value + math.log(1 / delta) / (order - 1) for order, value in pairs)
    return float(rdp.compute_epsilon(ORDERS, values, delta)[0])


def repeated_profile(events: Sequence[tuple[DpEvent, int]], epsilons: Sequence[float]) -> list[float]:
    """δ at each ε, by Rényi DP: never too low."""
    orders, values = np.array(ORDERS), np.array(_rdp(tuple(events)))
    logs = (orders - 1) * (values - np.array(epsilons)[:, None] + np.log1p(-1 / orders)) - np.log(orders)
    apart = 0.5 * np.log(-np.expm1(-np.minimum(values.min(), 700.0)))  # by the Kullback-Leibler divergence, at ε = 0
    deltas: list[float] = np.exp(np.minimum(0.0, np.minimum(logs.min(axis=1), apart))).tolist()
    return deltas


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
    """About the least σ at which all runs together keep the budget, and the plan of one of them."""

    def cost(sigma: float) -> float:
        return repeated_epsilon([(repeats.event(plan_at(sigma).event()), 1)], budget.delta)

    least = cost(_LARGEST_SIGMA)
    if least > budget.epsilon:
        told = f"the choice among {repeats.mean:g} runs on average and their scores already cost {least:.4g}"
        raise BudgetError(f"epsilon={budget.epsilon}: too small; {told} at delta={budget.delta}")
    high = 1.0
    while cost(high) > budget.epsilon:
        high *= 2
    low = high / 2
    while cost(low) <= budget.epsilon:
        low, high = low / 2, low
    while high / low > _EXACT:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= budget.epsilon else (middle, high)
    return high, plan_at(high)
