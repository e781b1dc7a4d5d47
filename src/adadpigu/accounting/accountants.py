"""ε of an event under three accountants, for adding or removing one record. Sees public numbers only.

`pld` (privacy loss distributions) is tight and is what a run claims; `rdp` and `rdp_classic` are what papers quote.
All are upper bounds. RDP orders that `dp_accounting` cannot evaluate (its series diverges at large q) are left out.
"""

import functools
import logging
import math
from collections.abc import Sequence

from adadpigu.accounting.events import DpEvent, Spending, is_repeated, leaves, spending_of
from adadpigu.accounting.plan import Plan, check_delta
from adadpigu.accounting.pld import coarse_interval, pld_epsilon, tight_interval
from adadpigu.accounting.repeating import repeated_epsilon
from adadpigu.errors import check_known

ACCOUNTANTS = ("pld", "rdp", "rdp_classic")
ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *map(float, (*range(11, 64), 128, 256, 512, 1024)),
)
"""dp_accounting's default 156 orders: 1.1 … 10.9 by tenths, 11 … 63, 128, 256, 512, 1024."""

WHOLE_ORDERS: tuple[float, ...] = tuple(order for order in ORDERS if order.is_integer())
"""The orders whose RDP is a finite sum: exact, fast, never left out. Enough for a bracket."""


def epsilon(event: DpEvent, delta: float, accountant: str = "pld") -> float:
    """ε such that the event is (ε, δ)-differentially private under add/remove-one.

    | accountant | what it is |
    | --- | --- |
    | `pld` | privacy loss distribution, interval 1e-4, finer where one step leaks less; δ down to about 1e-12 |
    | `rdp` | ρ(α) + ln((α−1)/α) − (ln δ + ln α)/(α−1), best of 156 orders: 1.1 … 10.9, 11 … 63, 128, 256, 512, 1024 |
    | `rdp_classic` | ρ(α) + ln(1/δ)/(α−1), the paper's conversion, on the same orders |

    Infinite when something without noise is in the event, 0 when nothing is spent. Results are remembered.

    >>> from adadpigu.accounting import draw_event
    >>> round(epsilon(draw_event(1.0, [1.0]), 1e-5), 6)
    4.377178
    """
    check_delta(delta)
    check_known("accountant", accountant, ACCOUNTANTS)
    if any(map(is_repeated, leaves(event))):  # of which no privacy loss distribution is known
        return repeated_epsilon(event, delta, classic=accountant == "rdp_classic")
    spending = spending_of(event)
    if accountant == "pld":
        return pld_epsilon(spending, delta, tight_interval(spending))
    improved, classic = rdp_epsilon(spending, delta)
    return improved if accountant == "rdp" else classic


def epsilons(event: DpEvent, delta: float) -> dict[str, float]:
    """ε under every accountant, by name."""
    return {accountant: epsilon(event, delta, accountant) for accountant in ACCOUNTANTS}


def quick_epsilon(event: DpEvent, delta: float) -> float:
    """PLD ε on a coarse, still pessimistic grid (about 0.1 % high): for searching, never for a claim."""
    spending = spending_of(event)
    return pld_epsilon(spending, delta, coarse_interval(spending))


def epsilon_curve(plan: Plan, delta: float, steps: Sequence[int]) -> list[float]:
    """PLD ε after each of these step counts, in milliseconds a point.

    The grid is coarser than that of `epsilon`, so points stand about 0.1 % above the tight value, never below. None
    exceeds the tight ε of the whole plan, which is the last point; the curve never falls.

    >>> from adadpigu.accounting import plan_for
    >>> [round(point, 2) for point in epsilon_curve(plan_for(0.1, 100)(2.0), 1e-5, [0, 50, 100])]
    [0.0, 1.65, 2.34]
    """
    check_delta(delta)
    if not steps:
        return []
    whole = spending_of(plan.event())
    if not whole.private:
        return [0.0 if spending_of(plan.prefix(count).event()).free else math.inf for count in steps]
    interval, total = coarse_interval(whole), epsilon(plan.event(), delta)
    points = {plan.steps: total}
    highest = 0.0
    for count in sorted(set(steps)):
        if count not in points:
            points[count] = min(total, pld_epsilon(spending_of(plan.prefix(count).event()), delta, interval))
        points[count] = highest = max(highest, points[count])
    return [points[count] for count in steps]


def rdp_values(spending: Spending, orders: tuple[float, ...]) -> list[float]:
    """ρ(α) of the whole spending at each order; infinite at an order that could not be evaluated."""
    total = [order / 2 * spending.precision for order in orders]
    for q, sigma, count in spending.sampled:
        for index, value in enumerate(_rdp_of_draw(q, sigma, orders)):
            total[index] += count * value
    return total


@functools.lru_cache(maxsize=4096)
def rdp_epsilon(spending: Spending, delta: float, orders: tuple[float, ...] = ORDERS) -> tuple[float, float]:
    """The best ε over all orders, by dp_accounting's improved conversion and by the classic ρ + ln(1/δ)/(α−1)."""
    from dp_accounting import rdp

    if not spending.private:
        return math.inf, math.inf
    if spending.free:
        return 0.0, 0.0
    values = rdp_values(spending, orders)
    classic = min(value + math.log(1 / delta) / (order - 1) for order, value in zip(orders, values, strict=True))
    return float(rdp.compute_epsilon(orders, values, delta)[0]), classic


@functools.lru_cache(maxsize=1024)
def _rdp_of_draw(q: float, sigma: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    import dp_accounting as dp

    quiet_orders()
    accountant = dp.rdp.RdpAccountant(list(orders))
    accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)))
    # `_rdp`, since dp_accounting 0.5 has no public name for it. At or below zero there is only rounding error left.
    return tuple(float(value) if value > 0 else math.inf for value in accountant._rdp)


def quiet_orders() -> None:
    """Keeps dp_accounting from telling of every order that does not converge."""
    logging.getLogger("absl").addFilter(_is_no_order)


def _is_no_order(record: logging.LogRecord) -> bool:
    """Keeps dp_accounting's line per order off the screen: what was left out is visible in the values themselves."""
    return "rdp_privacy_accountant" not in record.pathname
