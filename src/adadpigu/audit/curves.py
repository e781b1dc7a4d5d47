"""Trade-off curves: at which level a test can have which power, for a Gaussian, for (ε, δ) pairs, for a claim's plan.

A curve is given as f̄⁻¹ of the trade-off function f, the least level of a test of power y. What an attacker does beyond
it refutes the claim (`estimators.one_run_refutes_curve`). Pure functions of public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from adadpigu.accounting.pld import coarse_interval, pld_epsilon, privacy_profile
from adadpigu.accounting.spending import spending_of
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Curve = Callable[[float], float]
"""f̄⁻¹ of a trade-off curve f: the least level at which a test can have power y; convex, the same either way round"""

_LARGEST_LOSS = 700.0
"""e to this is about the largest number there is"""
_CURVE_POINTS = 2000
_CURVE_DELTA = 1e-12
"""a power that is no larger says nothing"""


def gaussian_curve(mu: float) -> Curve:
    """Φ(Φ⁻¹(y) − μ): that of N(0, 1) against N(μ, 1).

    >>> round(gaussian_curve(1.0)(0.5), 6)
    0.158655
    """
    if not mu >= 0:
        raise InputError(f"mu={mu} is below 0")
    inverse, root = NormalDist().inv_cdf, math.sqrt(2)

    def level(power: float) -> float:
        return min(max(power, 0.0), 1.0) if not 0 < power < 1 else math.erfc((mu - inverse(power)) / root) / 2

    return level


def profile_curve(epsilons: Sequence[float], deltas: Sequence[float]) -> Curve:
    """That of whatever is (ε, δ)-private for every pair given, either way round.

    Such a test has power at most δ + e^ε·level, and one that says the opposite has level at least 1 − δ − e^ε(1 −
    power): so f̄⁻¹(y) = max(0, e^−ε(y − δ), 1 − δ − e^ε(1 − y)), the second form being the first at −ε.

    Formal guarantee: each pair holds of adding and of removing a record, so both lines bound both directions, and their
    maximum is convex and its own mirror image, as `one_run_refutes_curve` needs. Fewer pairs, or a larger δ, lower f̄⁻¹:
    less is refuted, never more.

    >>> curve = profile_curve([math.log(3)], [0.0])
    >>> [round(curve(power), 6) for power in (0.3, 0.75, 0.9)]
    [0.1, 0.25, 0.7]
    """
    spend, slack = np.asarray(epsilons, dtype=np.float64), np.asarray(deltas, dtype=np.float64)
    if len(spend) == 0 or spend.shape != slack.shape or not np.all((spend >= 0) & (spend <= _LARGEST_LOSS)):
        raise InputError(f"{len(spend)} epsilons and {len(slack)} deltas: must be pairs, epsilon in [0, 700]")
    if not np.all((slack >= 0) & (slack <= 1)):
        raise InputError(f"deltas from {slack.min()} to {slack.max()}: must lie in [0, 1]")
    gentle, steep = np.exp(-spend), np.exp(spend)

    def level(power: float) -> float:
        below, above = (gentle * (power - slack)).max(), (1 - slack - steep * (1 - power)).max()
        return max(0.0, float(below), float(above))

    return level


def claim_curve(event: DpEvent) -> Curve:
    """That of the claim itself, whatever it composes: `profile_curve` of 2,000 points of its privacy profile.

    Both directions are in it: the profile's δ is the larger of the two. It is taken on the accountant's coarse grid,
    which is pessimistic: what refutes this curve refutes the exact one too.
    """
    spending = spending_of(event)
    interval = coarse_interval(spending)
    largest = min(_LARGEST_LOSS, pld_epsilon(spending, _CURVE_DELTA, interval))
    epsilons = np.linspace(0.0, largest, _CURVE_POINTS).tolist()
    return profile_curve(epsilons, privacy_profile(spending, epsilons, interval))
