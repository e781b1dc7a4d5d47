"""From what an attacker guessed to a lower bound on ε, as pure functions of counts and scores: no record is read.

A bound fails with a chance of at most its `significance`. `Errors` are those of a test between two worlds; a `Trial`
counts right guesses about coin-flipped canaries of one run. Thresholds and numbers of guesses have to be fixed in
advance, or chosen on other scores than those that are counted.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from adadpigu.accounting.closed_forms import gaussian_epsilon
from adadpigu.accounting.events import DpEvent, spending_of
from adadpigu.accounting.pld import coarse_interval, pld_epsilon, privacy_profile

Scores = NDArray[np.float64]
Curve = Callable[[float], float]
"""f̄⁻¹ of a trade-off curve f: the least level at which a test can have power y; convex, the same either way round"""

_EXACT = 1e-9
_MOST_EPSILON = 60.0  # far more than any number of guesses can show: that grows as its logarithm
_MOST_MU = 40.0
_LARGEST_LOSS = 700.0  # e to this is about the largest number there is
_CURVE_POINTS = 2000
_CURVE_DELTA = 1e-12  # a power that is no larger says nothing


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How a test that was fixed in advance did in two worlds, on independent observations."""

    false_alarms: int  # "in" was said of so many observations of the world without
    without: int
    misses: int  # "out" was said of so many observations of the world with
    within: int

    @classmethod
    def of(cls, within: Scores, without: Scores, threshold: float) -> "Errors":
        """Of saying "in" above a threshold. A score that is not finite is an error in either world."""
        alarms, hits = (without > threshold) | ~np.isfinite(without), (within > threshold) & np.isfinite(within)
        return cls(false_alarms=int(alarms.sum()), without=len(without), misses=int((~hits).sum()), within=len(within))

    @classmethod
    def without_errors(cls, observations: int) -> "Errors":
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
    def without_errors(cls, canaries: int, guesses: int) -> "Trial":
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


def rate_below(count: int, trials: int, significance: float) -> float:
    """Clopper-Pearson: the rate that would give so many, or more, with probability `significance`."""
    return 1 - rate_above(trials - count, trials, significance)


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

    >>> round(epsilon_from_errors(Errors.without_errors(1000), 1e-5, 0.05), 3)
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

    Steinke, Nasr, Jagielski 2023:
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

    Mahloujifar, Melis, Chaudhuri 2024. Were so many right guesses as likely as `significance`, there would be more
    guesses than were made: from the count seen down to none, with R = P[right, count ≥ i] and H = P[wrong, count ≥ i]
    for a random canary, H_i ≥ f̄⁻¹(R_{i+1}) and R_i − R_{i+1} = i/(r − i)·(H_i − H_{i+1}), until R + H would exceed r/m.
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

    A test has power at most δ + e^ε·level, and its opposite level at least 1 − δ − e^ε(1 − power): so f̄⁻¹(y) =
    max(0, e^−ε(y − δ), 1 − δ − e^ε(1 − y)).

    Formal guarantee: each pair holds either way round, so the maximum is convex and its own mirror image, as
    `one_run_refutes_curve` needs. Fewer pairs, or a larger δ, refute less, never more.

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
    """The curve of the claim itself: `profile_curve` of 2,000 points of its privacy profile.

    The accountant's coarse grid is pessimistic: what refutes this curve refutes the exact one too.
    """
    spending = spending_of(event)
    interval = coarse_interval(spending)
    largest = min(_LARGEST_LOSS, pld_epsilon(spending, _CURVE_DELTA, interval))
    epsilons = np.linspace(0.0, largest, _CURVE_POINTS).tolist()
    return profile_curve(epsilons, privacy_profile(spending, epsilons, interval))


def one_run_epsilon(trial: Trial, delta: float, significance: float) -> float:
    """The largest ε at δ that one run's guesses refute.

    >>> round(one_run_epsilon(Trial.without_errors(1000, 60), 1e-5, 0.05), 3)
    2.944
    """
    return largest_refuted(lambda epsilon: one_run_refutes(epsilon, trial, delta, significance), most=_MOST_EPSILON)


def one_run_mu(trial: Trial, significance: float) -> float:
    """The largest μ that one run's guesses refute.

    >>> round(mu_epsilon(one_run_mu(Trial.without_errors(1000, 60), 0.05), 1e-5), 3)
    4.434
    """
    return largest_refuted(lambda mu: one_run_refutes_curve(gaussian_curve(mu), trial, significance), most=_MOST_MU)


def largest_refuted(refutes: Callable[[float], bool], *, most: float) -> float:
    """The largest value below `most` that is refuted, where all below it are too, or at most 1e-9 less; else 0."""
    if not refutes(_EXACT):
        return 0.0
    low, high = _EXACT, most
    while high - low > _EXACT:
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


def fewest(enough: Callable[[int], bool]) -> int:
    """The least count that is enough, where all above it are too. Asked of a flawless attacker, what an audit needs.

    >>> fewest(lambda count: epsilon_from_errors(Errors.without_errors(count), 1e-5, 0.05) > 8)
    10999
    >>> fewest(lambda count: gaussian_mu(Errors.without_errors(count), 0.05) > 1)
    10
    >>> fewest(lambda count: one_run_refutes(0.0, Trial.without_errors(count, count), 0.0, 1e-6))
    20
    """
    high = 1
    while not enough(high):
        high *= 2
    first = high // 2 + 1  # half of it was not enough
    return first + bisect_left(range(first, high), True, key=enough)
