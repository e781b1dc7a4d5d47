"""The paper's privacy formulas, corrected where it slips, each with what it claims and where it holds.

These explain and cross-check; what a run claims comes from `accountants`. Noise multipliers σ are relative to the
sensitivity unless a function takes the sensitivity; neighbours differ by adding or removing one record.
"""

from __future__ import annotations

import math

from adadpigu.accounting.budget import check_delta, check_epsilon
from adadpigu.accounting.events import check_noise_multiplier, check_sample_rate
from adadpigu.errors import InputError


def classic_gaussian_sigma(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Noise deviation S·√(2 ln(1.25/δ))/ε with which one Gaussian release is (ε, δ)-private; proved for ε < 1 only.

    The paper writes S·√(2 ln(1.25/δ)/ε), with ε inside the root: for ε < 1 that is too little noise. It also states
    no limit on ε; from ε = 1 on this function refuses and `gaussian_sigma`, which is exact, takes over.

    >>> round(classic_gaussian_sigma(0.5, 1e-5), 4)
    9.6896
    """
    check_epsilon(epsilon)
    check_delta(delta)
    if epsilon >= 1:
        raise InputError(f"epsilon={epsilon}: the classic Gaussian bound is proved below 1 only; use gaussian_sigma")
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The exact δ of one Gaussian release at ε: Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ) (Balle and Wang, 2018).

    Holds with equality for every ε ≥ 0 and σ > 0. The paper has no counterpart.
    """
    if epsilon < 0:
        raise InputError(f"epsilon={epsilon}: must be 0 or more")
    check_noise_multiplier(noise_multiplier)
    if noise_multiplier == 0:
        return 1.0
    if math.isinf(noise_multiplier):
        return 0.0
    return math.exp(_log_gaussian_delta(noise_multiplier, epsilon))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The exact, smallest ε of one Gaussian release at δ.

    >>> round(gaussian_epsilon(1.0, 1e-5), 9)
    4.377178096
    """
    from scipy.optimize import brentq

    check_delta(delta)
    check_noise_multiplier(noise_multiplier)
    if noise_multiplier == 0:
        return math.inf
    if math.isinf(noise_multiplier) or gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0

    def excess(epsilon: float) -> float:
        return _log_gaussian_delta(noise_multiplier, epsilon) - math.log(delta)

    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-13))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The exact, smallest σ with which one Gaussian release is (ε, δ)-private, for any ε > 0.

    >>> round(gaussian_sigma(1.0, 1e-5), 9)
    3.730631635
    """
    from scipy.optimize import brentq

    check_epsilon(epsilon)
    check_delta(delta)

    def excess(log_sigma: float) -> float:
        return max(_log_gaussian_delta(math.exp(log_sigma), epsilon), -1e4) - math.log(delta)

    low, high = -1.0, 1.0
    while excess(low) < 0:
        low *= 2
    while excess(high) > 0:
        high *= 2
    return math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))


def dpsgd_theorem_sigma(*, sample_rate: float, steps: int, epsilon: float, delta: float) -> float:
    """The DPSGD theorem's σ = 2q√(T ln(1/δ))/ε, to be shown beside the calibrated σ and never used instead of it.

    The paper states it as a guarantee for all q, T and ε. It is asymptotic: the theorem it goes back to (Abadi et
    al., 2016) has unspecified constants and holds only for ε below a constant times q²T. Under PLD at δ = 1e-5:

    | q, T, target ε | σ of the formula | ε really spent |
    | --- | --- | --- |
    | 1/60, 12000, 4 (MNIST, B = 1000, 200 epochs) | 3.10 | 2.48: more noise than needed |
    | 0.01, 100, 1 | 0.679 | 2.62: more than twice the budget |
    | 256/60000, 234, 8 (one epoch) | 0.0554 | 1197: no privacy to speak of |

    >>> round(dpsgd_theorem_sigma(sample_rate=1 / 60, steps=12_000, epsilon=4.0, delta=1e-5), 4)
    3.0974
    """
    check_sample_rate(sample_rate)
    check_epsilon(epsilon)
    check_delta(delta)
    return 2 * sample_rate * math.sqrt(steps * math.log(1 / delta)) / epsilon


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
    _check_order(order)
    check_noise_multiplier(noise_multiplier)
    return math.inf if noise_multiplier == 0 else order / (2 * noise_multiplier**2)


def rdp_to_epsilon_classic(order: float, rho: float, delta: float) -> float:
    """ε = ρ + ln(1/δ)/(α−1) from (α, ρ)-RDP (Mironov, 2017): the paper's Proposition 1, correct as written.

    >>> round(rdp_to_epsilon_classic(5.8, rdp_of_gaussian(5.8, 1.0), 1e-5), 6)
    5.298526
    """
    _check_order(order)
    check_delta(delta)
    return rho + math.log(1 / delta) / (order - 1)


def rdp_to_epsilon_improved(order: float, rho: float, delta: float) -> float:
    """ε = ρ + ln((α−1)/α) − (ln δ + ln α)/(α−1) from (α, ρ)-RDP (Canonne, Kamath and Steinke, 2020), never below 0.

    Always below the classic conversion; not in the paper.

    >>> round(rdp_to_epsilon_improved(5.4, rdp_of_gaussian(5.4, 1.0), 1e-5), 6)
    4.728507
    """
    _check_order(order)
    check_delta(delta)
    return max(0.0, rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))


def _log_gaussian_delta(sigma: float, epsilon: float) -> float:
    from scipy.special import log_ndtr

    upper = float(log_ndtr(0.5 / sigma - epsilon * sigma))
    lower = epsilon + float(log_ndtr(-0.5 / sigma - epsilon * sigma))
    return upper + math.log(-math.expm1(lower - upper)) if lower < upper else -math.inf


def _check_order(order: float) -> None:
    if not order > 1:
        raise InputError(f"order={order}: a Rényi order must be above 1")
