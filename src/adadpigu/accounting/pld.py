"""Privacy loss distributions: the tight accountant, with a grid that fits the question.

`dp_accounting` rounds the privacy loss up to multiples of an interval h, which only raises ε. Its default h = 1e-4
suits usual budgets. It doubles ε where one step leaks less than h, and takes millions of points where ε is in the
hundreds; only there h is another.
"""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adadpigu.accounting.closed_forms import gaussian_delta, gaussian_epsilon
from adadpigu.accounting.events import Spending

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

DEFAULT_INTERVAL = 1e-4
SMALLEST_SIGMA = 1 / 64
_ROUNDING = 1e-12


def tight_interval(spending: Spending) -> float:
    """1e-4 (dp_accounting's default) where that is fine enough; halved until rounding adds at most 0.05 % to ε."""
    return _fitting_interval(spending, DEFAULT_INTERVAL, 1e-3, most_points=400_000)


def coarse_interval(spending: Spending) -> float:
    """At most 6.4e-3, rounding adds at most about 0.1 % to ε: for curves and for searching, never for a claim."""
    return _fitting_interval(spending, 64 * DEFAULT_INTERVAL, 2e-3, most_points=40_000)


@functools.lru_cache(maxsize=4096)
def pld_epsilon(spending: Spending, delta: float, interval: float) -> float:
    """ε at δ. Gaussians alone are exact (closed form).

    A sampled draw with σ below 1/64 counts as publishing the record whenever it is drawn; ε is infinite where float64
    cannot hold e^ε (above about 700). Both only ever raise ε.
    """
    import numpy as np

    drawn, rest = _published(spending)
    if drawn >= delta:
        return math.inf
    if rest.free:
        return 0.0
    if not rest.sampled:
        return gaussian_epsilon(rest.gaussian_multiplier, delta - drawn)
    with np.errstate(over="ignore"):
        return float(_whole(rest, interval).get_epsilon_for_delta(delta - drawn))


def _published(spending: Spending) -> tuple[float, Spending]:
    """The chance that a record is as good as published, and the draws that are not as bad."""
    bare, rest = spending.split(SMALLEST_SIGMA)
    beyond = bool(spending.sampled) and spending.gaussian_multiplier < SMALLEST_SIGMA  # of what float64 can hold
    return (1.0 if beyond or not spending.private else bare.chance_of_being_drawn()), rest


def privacy_profile(spending: Spending, epsilons: Sequence[float], interval: float) -> list[float]:
    """δ at each ε of an ascending list of numbers from 0 on: `pld_epsilon` the other way round, never too low.

    Of both directions, adding and removing a record, the worse.
    """
    return [max(pair) for pair in zip(*privacy_profiles(spending, epsilons, interval), strict=True)]


def privacy_profiles(spending: Spending, epsilons: Sequence[float], interval: float) -> tuple[list[float], list[float]]:
    """The profiles of removing and of adding a record.

    Gaussians alone are exact (closed form); where draws are convolved, 1e-12 is added, more than their rounding can
    take away.
    """
    drawn, rest = _published(spending)
    if drawn == 1.0:
        return [1.0] * len(epsilons), [1.0] * len(epsilons)
    if not rest.sampled:
        deltas = [min(1.0, drawn + gaussian_delta(rest.gaussian_multiplier, epsilon)) for epsilon in epsilons]
        return deltas, deltas
    whole = _whole(rest, interval)
    # `_pmf_…`, since dp_accounting 0.6 has no public name for one direction.
    found = (pmf.get_delta_for_epsilon(list(epsilons)) for pmf in (whole._pmf_remove, whole._pmf_add))
    removing, adding = ([min(1.0, drawn + max(0.0, float(d)) + _ROUNDING) for d in deltas] for deltas in found)
    return removing, adding


def _whole(spending: Spending, interval: float) -> "PrivacyLossDistribution":
    parts = [_composed(q, sigma, count, interval) for q, sigma, count in spending.mechanisms()]
    return functools.reduce(lambda left, right: left.compose(right), parts)


@functools.lru_cache(maxsize=16)
def _composed(q: float, sigma: float, count: int, interval: float) -> "PrivacyLossDistribution":
    single = _single(q, sigma, interval)
    return single if count == 1 else single.self_compose(count)


@functools.lru_cache(maxsize=4)
def _single(q: float, sigma: float, interval: float) -> "PrivacyLossDistribution":
    from dp_accounting.pld import privacy_loss_distribution

    of_one = privacy_loss_distribution.from_gaussian_mechanism
    return of_one(sigma, value_discretization_interval=interval, sampling_prob=q)


def _fitting_interval(spending: Spending, start: float, excess: float, *, most_points: int) -> float:
    """The largest start·2^k, k ≤ 0, whose rounding inflates the variance of the loss by at most `excess`.

    Spreading a loss over two grid points adds about h²/6 to its variance, or s·h when its spread s is below h.
    k > 0 only to keep the grid of one draw within `most_points` and that of all within ten times as many.
    """
    mechanisms = spending.split(SMALLEST_SIGMA)[1].mechanisms()
    moments = [(_loss_variance(q, sigma), _loss_range(q, sigma), n) for q, sigma, n in mechanisms]
    if not moments:
        return start
    variance = math.fsum(n * v for v, _, n in moments)
    least = max(2 * math.sqrt(variance), *(reach for _, reach, _ in moments)) / most_points

    def added(h: float) -> float:
        return math.fsum(n * min(h * h / 6, math.sqrt(v) * h) for v, _, n in moments)

    interval = start
    while interval < least:
        interval *= 2
    while added(interval) > excess * variance and interval / 2 >= least:
        interval /= 2
    return interval


def _loss_variance(q: float, sigma: float) -> float:
    """About the variance of one draw's privacy loss: its χ² divergence, cut where σ is so small that this explodes."""
    return min(q**2 * math.expm1(min(sigma**-2, 700.0)), q * _loss_range(q, sigma) ** 2)


def _loss_range(q: float, sigma: float) -> float:
    """About the largest privacy loss of one draw that is kept (ten standard deviations out)."""
    return math.log1p(q * math.expm1(min(10 / sigma, 700.0))) + 0.5 / sigma**2 + 10 / sigma
