"""Rényi accounting, the paper's own: cheap, never tighter than the PLD, shown beside it.

Orders that `dp_accounting` cannot evaluate (its series for fractional orders diverges at large q) are left out. The
result stays a valid bound; when one of them could have lowered it, that is said instead of silenced.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from collections.abc import Iterator, Sequence

from adadpigu.accounting.closed_forms import rdp_to_epsilon_improved
from adadpigu.accounting.spending import Spending

ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *map(float, range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)
"""dp_accounting's default 156 orders: 1.1 … 10.9 by tenths, 11 … 63, 128, 256, 512, 1024."""

WHOLE_ORDERS: tuple[float, ...] = tuple(order for order in ORDERS if order.is_integer())
"""The orders whose RDP is a finite sum: exact, fast, never left out. Enough for a bracket."""


def rdp_values(spending: Spending, orders: tuple[float, ...]) -> list[float]:
    """ρ(α) of the whole spending at each order; infinite at an order that could not be evaluated."""
    total = [order / 2 * spending.precision for order in orders]
    for q, sigma, count in spending.sampled:
        for index, value in enumerate(_single(q, sigma, orders)):
            total[index] += count * value
    return total


def improved_epsilon(orders: Sequence[float], values: Sequence[float], delta: float) -> float:
    """The best ε of dp_accounting's improved conversion over all orders."""
    from dp_accounting import rdp

    return float(rdp.compute_epsilon(orders, values, delta)[0])


def classic_epsilon(orders: Sequence[float], values: Sequence[float], delta: float) -> float:
    """The best ε = ρ + ln(1/δ)/(α−1) over all orders: the paper's Proposition 1."""
    return min(value + math.log(1 / delta) / (order - 1) for order, value in zip(orders, values, strict=True))


@functools.lru_cache(maxsize=4096)
def rdp_epsilon(spending: Spending, delta: float) -> tuple[float, float, str]:
    """(improved ε, classic ε, remark); the remark is empty unless an order that was left out could matter."""
    if not spending.private:
        return math.inf, math.inf, ""
    if spending.free:
        return 0.0, 0.0, ""
    values = rdp_values(spending, ORDERS)
    improved = improved_epsilon(ORDERS, values, delta)
    return improved, classic_epsilon(ORDERS, values, delta), _remark(values, improved, delta)


def bracket_epsilon(spending: Spending, delta: float) -> float:
    """An upper bound on ε in milliseconds: the improved conversion over whole orders."""
    if not spending.private:
        return math.inf
    if spending.free:
        return 0.0
    return improved_epsilon(WHOLE_ORDERS, rdp_values(spending, WHOLE_ORDERS), delta)


@functools.lru_cache(maxsize=1024)
def _single(q: float, sigma: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(list(orders))
    with _muted():
        accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)))
    # `_rdp`, since dp_accounting 0.5 has no public name for it. At or below zero there is only rounding error left.
    return tuple(float(value) if value > 0 else math.inf for value in accountant._rdp)


def _remark(values: Sequence[float], reported: float, delta: float) -> str:
    """What to say about orders left out: nothing, unless one could lower ε by more than 1e-3."""
    missing = [order for order, value in zip(ORDERS, values, strict=True) if math.isinf(value)]
    if not missing or math.isinf(reported):
        return ""
    whole = {order: (order - 1) * value for order, value in zip(ORDERS, values, strict=True) if order % 1 == 0}
    possible = min(rdp_to_epsilon_improved(order, _least_value(order, whole), delta) for order in missing)
    if possible >= reported - 1e-3:
        return ""
    return (
        f"RDP: {len(missing)} of {len(ORDERS)} orders ({min(missing):g} to {max(missing):g}) did not converge and "
        f"were left out; the RDP epsilon {reported:.4f} holds, but may be up to {reported - possible:.4f} too high "
        "(PLD is not affected)"
    )


def _least_value(order: float, whole: dict[float, float]) -> float:
    """A lower bound on ρ at an order left out: (α−1)ρ(α) is convex and 0 at 1, so chords bound it from below."""
    below, above = math.floor(order), math.ceil(order)
    bounds = [0.0]
    for near, far in ((above, above + 1), (below, below - 1)):
        near_value, far_value = (0.0 if n == 1 else whole.get(n, math.inf) for n in (near, far))
        if far >= 1 and math.isfinite(near_value) and math.isfinite(far_value):
            bounds.append(near_value + (near_value - far_value) * abs(order - near))
    return max(bounds) / (order - 1)


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Keep dp_accounting's line per order off the screen: what was left out is visible in the values themselves."""
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return not (record.thread == thread and "rdp_privacy_accountant" in record.pathname)

    logger = logging.getLogger("absl")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
