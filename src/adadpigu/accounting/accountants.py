"""ε of an event under three accountants, always for adding or removing one record.

`pld` (privacy loss distributions) is tight and is what a run claims; `rdp` and `rdp_classic` are what papers quote.
All three are upper bounds on what is spent. Only public numbers come in here: rates, multipliers, counts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adadpigu.accounting.budget import check_delta
from adadpigu.accounting.plan import Plan
from adadpigu.accounting.pld import coarse_interval, pld_epsilon, tight_interval
from adadpigu.accounting.rdp import rdp_epsilon
from adadpigu.accounting.spending import spending_of
from adadpigu.errors import unknown

if TYPE_CHECKING:
    from dp_accounting import DpEvent

ACCOUNTANTS = ("pld", "rdp", "rdp_classic")


class AccountingWarning(UserWarning):
    """A reported ε is a valid bound but not the best one its accountant could give."""


def epsilon(event: DpEvent, delta: float, accountant: str = "pld") -> float:
    """ε such that the event is (ε, δ)-differentially private under add/remove-one.

    | accountant | what it is |
    | --- | --- |
    | `pld` | privacy loss distribution, interval 1e-4, finer where one step leaks less; δ down to about 1e-12 |
    | `rdp` | ρ(α) + ln((α−1)/α) − (ln δ + ln α)/(α−1), best of 156 orders: 1.1 … 10.9, 11 … 63, 128, 256, 512, 1024 |
    | `rdp_classic` | ρ(α) + ln(1/δ)/(α−1), the paper's conversion, on the same orders |

    Infinite when something without noise is in the event, 0 when nothing is spent. Results are remembered.
    An `AccountingWarning` says so when RDP orders that did not converge could have given a lower value.

    >>> from adadpigu.accounting import draw_event
    >>> round(epsilon(draw_event(1.0, [1.0]), 1e-5), 6)
    4.377178
    >>> epsilon(draw_event(0.1, [0.0]), 1e-5)
    inf
    """
    check_delta(delta)
    if accountant not in ACCOUNTANTS:
        raise unknown("accountant", accountant, ACCOUNTANTS)
    spending = spending_of(event)
    if accountant == "pld":
        return pld_epsilon(spending, delta, tight_interval(spending))
    improved, classic, remark = rdp_epsilon(spending, delta)
    if remark:
        warnings.warn(remark, AccountingWarning, stacklevel=2)
    return improved if accountant == "rdp" else classic


def epsilons(event: DpEvent, delta: float) -> dict[str, float]:
    """ε under every accountant, by name; at most one `AccountingWarning`."""
    tight = epsilon(event, delta)
    improved, classic, remark = rdp_epsilon(spending_of(event), delta)
    if remark:
        warnings.warn(remark, AccountingWarning, stacklevel=2)
    return {"pld": tight, "rdp": improved, "rdp_classic": classic}


def quick_epsilon(event: DpEvent, delta: float) -> float:
    """PLD ε on a coarse, still pessimistic grid (about 0.1 % high): for searching, never for a claim."""
    spending = spending_of(event)
    return pld_epsilon(spending, delta, coarse_interval(spending))


def epsilon_curve(plan: Plan, delta: float, steps: Sequence[int]) -> list[float]:
    """PLD ε after each of these step counts, in milliseconds a point.

    The grid is coarser than that of `epsilon` (at most 6.4e-3 instead of 1e-4) and still pessimistic, so points stand
    about 0.1 % above the tight value. No point exceeds the tight ε of the whole plan, which is the last point; the
    curve never falls.

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
            rough = pld_epsilon(spending_of(plan.prefix(count).event()), delta, interval)
            points[count] = min(rough, total)
        points[count] = highest = max(highest, points[count])
    return [points[count] for count in steps]
