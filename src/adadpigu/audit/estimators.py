"""From what an attacker guessed to a lower bound on ε: pure functions of counts, each with the confidence it holds at.

| estimator | from | tight for |
| --- | --- | --- |
| `gaussian_mu` | errors of a test between two worlds of a Gaussian | white-box observations of one step |
| `epsilon_from_errors` | the same errors, nothing assumed | many whole runs |
| `one_run_refutes` | right guesses among coin-flipped canaries of one run (Steinke, Nasr, Jagielski 2023) | pure ε |
| `one_run_refutes_curve` | the same, for any trade-off curve (Mahloujifar, Melis, Chaudhuri 2024) | a known plan |

Thresholds and numbers of guesses have to be fixed in advance, or chosen on other scores than those that are counted.
What so many observations could show at best is the estimator of `Errors.flawless` or `Trial.flawless`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adadpigu.accounting.closed_forms import gaussian_epsilon
from adadpigu.accounting.events import spending_of
from adadpigu.accounting.pld import coarse_interval, pld_epsilon, privacy_profile

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Scores = NDArray[np.float64]
Curve = Callable[[float], float]
"""f̄⁻¹ of a trade-off curve f: the least level at which a test can have power y; convex, the same either way round"""

_EXACT = 1e-9
_MOST_EPSILON = 60.0
"""far more than any number of guesses can show: that grows as its logarithm"""
_MOST_MU = 40.0
_LARGEST_LOSS = 700.0
"""e to this is about the largest number there is"""
_CURVE_POINTS = 2000
_CURVE_DELTA = 1e-12
"""a power that is no larger says nothing"""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How a test that was fixed in advance did in two worlds, on independent observations."""

    false_alarms: int
    """"in" was said of so many observations of the world without"""
    without: int
    misses: int
    """"out" was said of so many observations of the world with"""
    within: int

    @classmethod
    def flawless(cls, observations: int) -> Errors:
        """Of an attacker who was never wrong on so many observations a world."""
        return cls(false_alarms=0, without=observations, misses=0, within=observations)

    def bounds(self, significance: float) -> tuple[float, float]:
        """Upper bounds on the rates of false alarms and of misses that hold together."""
        alarms = rate_above(self.false_alarms, self.without, significance / 2)
        return alarms, rate_above(self.misses, self.within, significance / 2)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How an attacker did on coin-flipped canaries of one run; how many to guess about was fixed in advance."""

    canaries: int
    guesses: int
    right: int

    @classmethod
    def flawless(cls, canaries: int, guesses: int) -> Trial:
        """Of an attacker who was never wrong."""
        return cls(canaries=canaries, guesses=guesses, right=guesses)


def rate_above(errors: int, trials: int, significance: float) -> float:
    """Clopper-Pearson: the rate that would give so few errors, or fewer, with probability `significance`.

    >>> round(rate_above(0, 100, 0.05), 6), rate_above(7, 7, 0.05)
    (0.029513, 1.0)
    """
    from scipy.stats import beta

    if errors == trials:
        return 1.0
    if errors == 0:
        return -math.expm1(math.log(significance) / trials)
    return float(beta.isf(significance, errors + 1, trials - errors))


def gaussian_mu(errors: Errors, significance: float) -> float:
    """The least μ of N(0, 1) against N(μ, 1) that these errors leave possible; 0 where they show nothing.

    >>> round(gaussian_mu(Errors(false_alarms=1587, without=10_000, misses=1587, within=10_000), 0.05), 3)
    1.94
    """
    from scipy.special import ndtri

    alarms, misses = errors.bounds(significance)
    return max(0.0, -float(ndtri(alarms) + ndtri(misses)))


def mu_epsilon(mu: float, delta: float) -> float:
    """The ε at δ of N(0, 1) against N(μ, 1)."""
    return gaussian_epsilon(math.inf if mu == 0 else 1 / mu, delta)


def epsilon_from_errors(errors: Errors, delta: float, significance: float) -> float:
    """The least ε that these errors leave possible, whatever the mechanism: ln((1 − FNR − δ)/FPR), either way round.

    >>> round(epsilon_from_errors(Errors.flawless(1000), 1e-5, 0.05), 3)
    5.601
    """
    alarms, misses = errors.bounds(significance)
    found = 0.0
    for one, other in ((alarms, misses), (misses, alarms)):
        if 1 - one - delta > 0:
            found = max(found, math.log((1 - one - delta) / other))
    return found


def one_run_refutes(epsilon: float, trial: Trial, delta: float, significance: float) -> bool:
    """Whether ε is refuted by one run's guesses: they would be this right with less chance than `significance`.

    P[W ≥ v] + 2mδ max_i P[v − i ≤ W < v]/i,  W ~ Bin(r, e^ε/(1 + e^ε)),  v right among r guesses on m canaries.

    Nothing is refuted at a significance of 2δ or less: with a chance of δ, all may be given away.
    """
    from scipy.special import bdtrc

    right, guesses, chance = trial.right, trial.guesses, 1 / (1 + math.exp(-epsilon))
    as_right = 1.0 if right == 0 else float(bdtrc(right - 1, guesses, chance))
    if as_right >= significance or delta == 0:
        return as_right < significance
    steps = np.arange(1, right + 1)
    at_least = np.append(bdtrc(right - 1 - steps[:-1], guesses, chance), 1.0)
    slack = 2 * trial.canaries * delta * float(((at_least - as_right) / steps).max())
    return as_right + slack < significance


def one_run_refutes_curve(curve: Curve, trial: Trial, significance: float) -> bool:
    """Whether the claim that a run's trade-off curve is nowhere below `curve` is refuted by its guesses.

    Were so many right guesses as likely as `significance`, there would be more guesses than were made: from the count
    seen down to none, with R = P[right, count ≥ i] and H = P[wrong, count ≥ i] for a random canary,
    H_i ≥ f̄⁻¹(R_{i+1}) and R_i − R_{i+1} = i/(r − i)·(H_i − H_{i+1}), until R + H would exceed r/m.
    """
    right, guesses = trial.right, trial.guesses
    all_guesses = guesses / trial.canaries
    hit, miss = significance * right / trial.canaries, significance * (guesses - right) / trial.canaries
    for count in range(right - 1, -1, -1):
        more = curve(hit)
        if more <= miss:
            return False  # H grows no more, so neither does R
        hit += count / (guesses - count) * (more - miss)
        miss = more
        if hit + miss >= all_guesses:
            return True
    return False


def gaussian_curve(mu: float) -> Curve:
    """Φ(Φ⁻¹(y) − μ): the curve of N(0, 1) against N(μ, 1).

    >>> round(gaussian_curve(1.0)(0.5), 6)
    0.158655
    """
    inverse, root = NormalDist().inv_cdf, math.sqrt(2)

    def level(power: float) -> float:
        return min(max(power, 0.0), 1.0) if not 0 < power < 1 else math.erfc((mu - inverse(power)) / root) / 2

    return level


def profile_curve(epsilons: Sequence[float], deltas: Sequence[float]) -> Curve:
    """The curve of whatever is (ε, δ)-private for every pair given, either way round.

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
    gentle, steep = np.exp(-spend), np.exp(spend)

    def level(power: float) -> float:
        below, above = (gentle * (power - slack)).max(), (1 - slack - steep * (1 - power)).max()
        return max(0.0, float(below), float(above))

    return level


def claim_curve(event: DpEvent) -> Curve:
    """The curve of the claim itself, whatever it composes: `profile_curve` of 2,000 points of its privacy profile.

    Both directions are in it: the profile's δ is the larger of the two. It is taken on the accountant's coarse grid,
    which is pessimistic: what refutes this curve refutes the exact one too.
    """
    spending = spending_of(event)
    interval = coarse_interval(spending)
    largest = min(_LARGEST_LOSS, pld_epsilon(spending, _CURVE_DELTA, interval))
    epsilons = np.linspace(0.0, largest, _CURVE_POINTS).tolist()
    return profile_curve(epsilons, privacy_profile(spending, epsilons, interval))


def one_run_refutes_gaussian(mu: float, trial: Trial, significance: float) -> bool:
    """The same of the claim that the run is μ-Gaussian."""
    return one_run_refutes_curve(gaussian_curve(mu), trial, significance)


def one_run_epsilon(trial: Trial, delta: float, significance: float) -> float:
    """The largest ε at δ that one run's guesses refute.

    >>> round(one_run_epsilon(Trial.flawless(1000, 60), 1e-5, 0.05), 3)
    2.944
    """
    refutes = partial(one_run_refutes, trial=trial, delta=delta, significance=significance)
    return largest_refuted(refutes, most=_MOST_EPSILON)


def one_run_mu(trial: Trial, significance: float) -> float:
    """The largest μ that one run's guesses refute.

    >>> round(mu_epsilon(one_run_mu(Trial.flawless(1000, 60), 0.05), 1e-5), 3)
    4.434
    """
    return largest_refuted(partial(one_run_refutes_gaussian, trial=trial, significance=significance), most=_MOST_MU)


def largest_refuted(refutes: Callable[[float], bool], *, most: float) -> float:
    """The largest value below `most` that is refuted, where all below it are too, or at most 1e-9 less; else 0."""
    if not refutes(_EXACT):
        return 0.0
    low, high = _EXACT, most
    while high - low > _EXACT:
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


def fewest_observations(significance: float, *, epsilon: float = 0.0, delta: float = 0.0) -> int:
    """Of so many observations a world, an attacker without a single error shows more than ε (`epsilon_from_errors`).

    (β/2)^(1/n) > 1 − (1 − δ)/(1 + e^ε). As it stands, more than nothing: of fewer, `gaussian_mu` shows nothing either.

    >>> fewest_observations(0.05), fewest_observations(1e-6), fewest_observations(0.05, epsilon=8.0, delta=1e-5)
    (6, 21, 10999)
    """
    return _fewest_below((1 - delta) / (1 + math.exp(epsilon)), significance)


def fewest_for_mu(mu: float, significance: float) -> int:
    """Of so many observations a world, an attacker without a single error shows more than μ (`gaussian_mu`).

    >>> fewest_for_mu(0.0, 0.05), fewest_for_mu(1.0, 0.05)
    (6, 10)
    """
    return _fewest_below(math.erfc(mu / math.sqrt(8)) / 2, significance)


def fewest_guesses(significance: float, *, epsilon: float = 0.0) -> int:
    """Of so many guesses about one run, all of them right, more than ε can be shown, pure or by a curve.

    (e^ε/(1 + e^ε))^r < β. A δ above 0 asks for more, and may put ε out of reach: `one_run_epsilon` of `Trial.flawless`.

    >>> fewest_guesses(0.05), fewest_guesses(1e-6), fewest_guesses(0.05, epsilon=2.944)
    (5, 20, 59)
    """
    return _above(-math.log(significance) / math.log1p(math.exp(-epsilon)))


def _fewest_below(rate: float, significance: float) -> int:
    """Of so many observations without an error, both rates are bounded below `rate` (at most ½)."""
    return _above(math.log(significance / 2) / math.log1p(-rate))


def _above(number: float) -> int:
    return math.floor(number * (1 + 1e-12)) + 1
