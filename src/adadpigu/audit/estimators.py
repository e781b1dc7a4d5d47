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

import numpy as np
from numpy.typing import NDArray

from adadpigu.accounting.closed_forms import gaussian_epsilon
from adadpigu.audit.curves import Curve, gaussian_curve
from adadpigu.errors import InputError

Scores = NDArray[np.float64]
Refutes = Callable[[float, "Trial", float], bool]
"""(value, trial, significance): whether the value is refuted"""

_EXACT = 1e-9
_MOST_EPSILON = 60.0
"""far more than any number of guesses can show: that grows as its logarithm"""
_MOST_MU = 40.0


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How a test that was fixed in advance did in two worlds, on independent observations."""

    false_alarms: int
    """"in" was said of so many observations of the world without"""
    without: int
    misses: int
    """"out" was said of so many observations of the world with"""
    within: int

    def __post_init__(self) -> None:
        _check_counts(self.false_alarms, self.without, "false_alarms", "without")
        _check_counts(self.misses, self.within, "misses", "within")

    @classmethod
    def flawless(cls, observations: int) -> Errors:
        """Of an attacker who was never wrong on so many observations a world."""
        return cls(false_alarms=0, without=observations, misses=0, within=observations)

    def bounds(self, significance: float) -> tuple[float, float]:
        """Upper bounds on the rates of false alarms and of misses that hold together."""
        _check_significance(significance)
        alarms = rate_above(self.false_alarms, self.without, significance / 2)
        return alarms, rate_above(self.misses, self.within, significance / 2)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How an attacker did on coin-flipped canaries of one run; how many to guess about was fixed in advance."""

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        _check_counts(self.right, self.guesses, "right", "guesses")
        _check_counts(self.guesses, self.canaries, "guesses", "canaries")

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

    _check_counts(errors, trials, "errors", "trials")
    _check_significance(significance)
    if errors == 0:
        return -math.expm1(math.log(significance) / trials)
    return 1.0 if errors == trials else float(beta.isf(significance, errors + 1, trials - errors))


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
    if not mu >= 0:
        raise InputError(f"mu={mu} is below 0")
    return gaussian_epsilon(math.inf if mu == 0 else 1 / mu, delta)


def epsilon_from_errors(errors: Errors, delta: float, significance: float) -> float:
    """The least ε that these errors leave possible, whatever the mechanism: ln((1 − FNR − δ)/FPR), either way round.

    >>> round(epsilon_from_errors(Errors.flawless(1000), 1e-5, 0.05), 3)
    5.601
    """
    _check_delta(delta)
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

    _check_delta(delta)
    _check_significance(significance)
    if not epsilon >= 0:
        raise InputError(f"epsilon={epsilon} is below 0")
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
    _check_significance(significance)
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


def largest_refuted(
    refutes: Callable[[float], bool], *, most: float, least: float = 0.0, exact: float = _EXACT
) -> float:
    """The largest value below `most` that is refuted, where all below it are too; `least` where none is.

    Never more than that value, and at most `exact` less.
    """
    if not refutes(least + exact):
        return least
    low, high = least + exact, most
    while high - low > exact:
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


def hull_vertices(within: Scores, without: Scores) -> list[tuple[int, int]]:
    """(right, wrong) counts of "in" at the vertices of the ROC's upper convex hull, from none to all."""
    _check_scores("within", within)
    _check_scores("without", without)
    scores = np.concatenate([within, without])
    order = np.argsort(-scores, kind="stable")
    ordered, is_in = scores[order], (np.arange(len(scores)) < len(within))[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    right = np.concatenate([[0], np.cumsum(is_in)[ends]])
    wrong = np.concatenate([[0], np.cumsum(~is_in)[ends]])
    hull: list[tuple[int, int]] = []
    for point in zip(right.tolist(), wrong.tolist(), strict=True):
        while len(hull) >= 2 and _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _turns_up(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether the middle point lies on or below the line, in (wrong, right)."""
    return (b[0] - a[0]) * (c[1] - a[1]) <= (c[0] - a[0]) * (b[1] - a[1])


def largest_over_hull(within: Scores, without: Scores, refutes: Refutes, *, significance: float, most: float) -> float:
    """The largest value that "in" guesses at some vertex of the ROC's hull refute; all vertices share the significance.

    To compare with published figures, never for a verdict: the same scores choose the vertices, which Bonferroni does
    not pay for (10,000 canaries that show nothing show an ε above 0 in 9 % of audits at 95 %).
    """
    vertices, canaries = hull_vertices(within, without), len(within) + len(without)
    trials = [Trial(canaries=canaries, guesses=right + wrong, right=right) for right, wrong in vertices[1:]]
    share = significance * len(trials) / len(vertices)  # the vertex without a guess has its part too
    return largest_over_trials(trials, refutes, significance=share, most=most)


def largest_over_trials(trials: Sequence[Trial], refutes: Refutes, *, significance: float, most: float) -> float:
    """The largest value that one of several trials of the same run refutes.

    Formal guarantee: holds at `significance` in all, which the trials share (Bonferroni), where how many guesses each
    of them makes was fixed in advance.
    """
    if not trials:
        raise InputError("trials=(): must be one or more")
    best, share = 0.0, significance / len(trials)
    # neighbours show nearly the same, so in a scattered order few of them beat the best so far
    for k in sorted(range(len(trials)), key=lambda k: k * 0.6180339887498949 % 1):
        best = largest_refuted(partial(_refuted_by, trials[k], share, refutes), most=most, least=best)
    return best


def _refuted_by(trial: Trial, significance: float, refutes: Refutes, value: float) -> bool:
    return refutes(value, trial, significance)


def fewest_observations(significance: float, *, epsilon: float = 0.0, delta: float = 0.0) -> int:
    """Of so many observations a world, an attacker without a single error shows more than ε (`epsilon_from_errors`).

    (β/2)^(1/n) > 1 − (1 − δ)/(1 + e^ε). As it stands, more than nothing: of fewer, `gaussian_mu` shows nothing either.

    >>> fewest_observations(0.05), fewest_observations(1e-6), fewest_observations(0.05, epsilon=8.0, delta=1e-5)
    (6, 21, 10999)
    """
    _check_delta(delta)
    if not 0 <= epsilon <= _MOST_EPSILON:
        raise InputError(f"epsilon={epsilon} is not in [0, {_MOST_EPSILON:g}]")
    return _fewest_below((1 - delta) / (1 + math.exp(epsilon)), significance)


def fewest_for_mu(mu: float, significance: float) -> int:
    """Of so many observations a world, an attacker without a single error shows more than μ (`gaussian_mu`).

    >>> fewest_for_mu(0.0, 0.05), fewest_for_mu(1.0, 0.05)
    (6, 10)
    """
    if not 0 <= mu <= _MOST_MU:
        raise InputError(f"mu={mu} is not in [0, {_MOST_MU:g}]")
    return _fewest_below(math.erfc(mu / math.sqrt(8)) / 2, significance)


def fewest_guesses(significance: float, *, epsilon: float = 0.0) -> int:
    """Of so many guesses about one run, all of them right, more than ε can be shown, pure or by a curve.

    (e^ε/(1 + e^ε))^r < β. A δ above 0 asks for more, and may put ε out of reach: `one_run_epsilon` of `Trial.flawless`.

    >>> fewest_guesses(0.05), fewest_guesses(1e-6), fewest_guesses(0.05, epsilon=2.944)
    (5, 20, 59)
    """
    _check_significance(significance)
    if not 0 <= epsilon <= _MOST_EPSILON:
        raise InputError(f"epsilon={epsilon} is not in [0, {_MOST_EPSILON:g}]")
    return _above(-math.log(significance) / math.log1p(math.exp(-epsilon)))


def _fewest_below(rate: float, significance: float) -> int:
    """Of so many observations without an error, both rates are bounded below `rate` (at most ½)."""
    _check_significance(significance)
    return _above(math.log(significance / 2) / math.log1p(-rate))


def _above(number: float) -> int:
    return math.floor(number * (1 + 1e-12)) + 1


def _check_counts(count: int, total: int, name: str, of: str) -> None:
    if not 0 <= count <= total or total < 1:
        raise InputError(f"{name}={count} of {of}={total}: must lie in [0, {of}], and {of} above 0")


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise InputError(f"delta={delta} is not in [0, 1)")


def _check_significance(significance: float) -> None:
    if not 0 < significance < 1:
        raise InputError(f"significance={significance} is not in (0, 1)")


def _check_scores(name: str, scores: Scores) -> None:
    if scores.ndim != 1 or len(scores) == 0 or bool(np.isnan(scores).any()):
        raise InputError(f"{name} of shape {scores.shape}: must be a list of numbers, none of them NaN")
