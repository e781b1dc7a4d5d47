"""The paper's formulas for one Gaussian release, corrected where it slips, each with what it claims and where it holds.

They explain and cross-check; no run's claim comes from them. Noise multipliers σ are relative to the sensitivity.
"""

from __future__ import annotations

import math

from adadpigu.accounting.closed_forms import log_gaussian_delta
from adadpigu.accounting.events import check_noise_multiplier, check_sample_rate
from adadpigu.accounting.plan import check_delta, check_epsilon
from adadpigu.errors import check


def classic_gaussian_sigma(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Noise deviation S·√(2 ln(1.25/δ))/ε with which one Gaussian release is (ε, δ)-private; proved for ε < 1 only.

    The paper writes S·√(2 ln(1.25/δ)/ε), with ε inside the root: for ε < 1 that is too little noise. It also states
    no limit on ε; from ε = 1 on this function refuses and `gaussian_sigma`, which is exact, takes over.

    >>> round(classic_gaussian_sigma(0.5, 1e-5), 4)
    9.6896
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check("epsilon", epsilon, epsilon < 1, "the classic Gaussian bound is proved below 1 only; use gaussian_sigma")
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The exact, smallest σ with which one Gaussian release is (ε, δ)-private, for any ε > 0.

    >>> round(gaussian_sigma(1.0, 1e-5), 9)
    3.730631635
    """
    from scipy.optimize import brentq

    check_epsilon(epsilon)
    check_delta(delta)

    def excess(log_sigma: float) -> float:
        return max(log_gaussian_delta(math.exp(log_sigma), epsilon), -1e4) - math.log(delta)

    low, high = -1.0, 1.0
    while excess(low) < 0:
        low *= 2
    while excess(high) > 0:
        high *= 2
    return math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))


def amplified_by_sampling(epsilon: float, delta: float, sample_rate: float) -> tuple[float, float]:
    """(ln(1 + q(e^ε − 1)), qδ): what an (ε, δ)-private release costs when each record joins with probability q.

    Holds for Poisson sampling under add/remove-one (and for a batch of fixed size under replace-one); the paper does
    not say which, and cites a Rényi result for it. It is for one release: composing it over steps is far from tight.

    >>> tuple(round(value, 9) for value in amplified_by_sampling(1.0, 1e-5, 0.01))
    (0.017036863, 1e-07)
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_sample_rate(sample_rate)
    if epsilon > 700:
        return max(0.0, epsilon + math.log(sample_rate)) if sample_rate else 0.0, sample_rate * delta
    return math.log1p(sample_rate * math.expm1(epsilon)), sample_rate * delta


def rdp_of_gaussian(order: float, noise_multiplier: float) -> float:
    """ρ(α) = α/(2σ²) of one Gaussian release without sampling, exact for every α > 1.

    >>> rdp_of_gaussian(8.0, 2.0)
    1.0
    """
    check("order", order, order > 1, "a Rényi order must be above 1")
    check_noise_multiplier(noise_multiplier)
    return math.inf if noise_multiplier == 0 else order / (2 * noise_multiplier**2)


def rdp_to_epsilon_classic(order: float, rho: float, delta: float) -> float:
    """ε = ρ + ln(1/δ)/(α−1) from (α, ρ)-RDP (Mironov, 2017): the paper's Proposition 1, correct as written.

    >>> round(rdp_to_epsilon_classic(5.8, rdp_of_gaussian(5.8, 1.0), 1e-5), 6)
    5.298526
    """
    check("order", order, order > 1, "a Rényi order must be above 1")
    check_delta(delta)
    return rho + math.log(1 / delta) / (order - 1)
