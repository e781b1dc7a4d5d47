"""Closed forms of the Gaussian mechanism, and the paper's asymptotic σ, each with what it claims and where it holds.

What a run claims comes from `accountants`. σ is relative to the sensitivity; neighbours differ by one record.
"""

import math

from adadpigu.accounting.events import check_noise_multiplier
from adadpigu.accounting.plan import check_delta
from adadpigu.errors import check


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The exact δ of one Gaussian release at ε ≥ 0: Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ) (Balle and Wang, 2018)."""
    check("epsilon", epsilon, epsilon >= 0, "must be 0 or more")
    check_noise_multiplier(noise_multiplier)
    if noise_multiplier == 0:
        return 1.0
    if math.isinf(noise_multiplier):
        return 0.0
    return math.exp(log_gaussian_delta(noise_multiplier, epsilon))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The exact, smallest ε of one Gaussian release at δ.

    >>> round(gaussian_epsilon(1.0, 1e-5), 9)
    4.377178096
    """
    from scipy.optimize import brentq

    check_delta(delta)
    if noise_multiplier == 0:
        return math.inf
    if math.isinf(noise_multiplier) or gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0

    def excess(epsilon: float) -> float:
        return log_gaussian_delta(noise_multiplier, epsilon) - math.log(delta)

    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-13))


def dpsgd_theorem_sigma(*, sample_rate: float, steps: int, epsilon: float, delta: float) -> float:
    """The DPSGD theorem's σ = 2q√(T ln(1/δ))/ε, to be shown beside the calibrated σ and never used instead of it.

    The paper states it as a guarantee for all q, T and ε. It is asymptotic: the theorem it goes back to (Abadi et
    al., 2016) has unspecified constants and holds only for ε below a constant times q²T. It errs on both sides: for
    ε = 4 it spends 2.48 (q = 1/60, T = 12,000), for ε = 8 it spends 1,197 (q = 256/60,000, T = 234).

    >>> round(dpsgd_theorem_sigma(sample_rate=1 / 60, steps=12_000, epsilon=4.0, delta=1e-5), 4)
    3.0974
    """
    return 2 * sample_rate * math.sqrt(steps * math.log(1 / delta)) / epsilon


def rdp_to_epsilon_improved(order: float, rho: float, delta: float) -> float:
    """ε = ρ + ln((α−1)/α) − (ln δ + ln α)/(α−1) from (α, ρ)-RDP (Canonne, Kamath and Steinke, 2020), never below 0.

    Always below the classic conversion; not in the paper.

    >>> round(rdp_to_epsilon_improved(5.4, 5.4 / 2, 1e-5), 6)  # of a Gaussian with σ = 1
    4.728507
    """
    check("order", order, order > 1, "a Rényi order must be above 1")
    check_delta(delta)
    return max(0.0, rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))


def log_gaussian_delta(sigma: float, epsilon: float) -> float:
    """ln δ of one Gaussian release at ε; −∞ where δ is no float."""
    from scipy.special import log_ndtr

    upper = float(log_ndtr(0.5 / sigma - epsilon * sigma))
    lower = epsilon + float(log_ndtr(-0.5 / sigma - epsilon * sigma))
    return upper + math.log(-math.expm1(lower - upper)) if lower < upper else -math.inf
