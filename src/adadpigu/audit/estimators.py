"""From what an attacker guessed to a lower bound on ε: pure functions, each with the confidence it holds at.

| estimator | from | tight for |
| --- | --- | --- |
| `gaussian_mu` | errors of a test between two worlds of a Gaussian | white-box observations of one step |
| `epsilon_from_errors` | the same errors, nothing assumed | many whole runs |
| `one_run_refutes` | right guesses among coin-flipped canaries of one run (Steinke, Nasr, Jagielski 2023) | pure ε |
| `one_run_refutes_gaussian` | the same, for a Gaussian trade-off curve (Mahloujifar, Melis, Chaudhuri 2024) | one Gaussian run |

Thresholds and numbers of guesses have to be fixed in advance, or chosen on other scores than those that are counted; a
choice among several is paid for by Bonferroni (`largest_over_hull`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from adadpigu.errors import InputError

Scores = NDArray[np.float64]
_EXACT = 1e-9


def rate_above(errors: int, trials: int, significance: float) -> float:
    """Clopper-Pearson: the rate that would give so few errors with probability `significance`.

    >>> round(rate_above(0, 100, 0.05), 6), rate_above(7, 7, 0.05)
    (0.029513, 1.0)
    """
    from scipy.stats import beta

    _check_counts(errors, trials)
    return 1.0 if errors == trials else float(beta.ppf(1 - significance, errors + 1, trials - errors))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How an attacker did on coin-flipped canaries of one run; whom to guess about was fixed in advance."""

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        _check_counts(self.right, self.guesses)
        _check_counts(self.guesses, self.canaries)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How a test that was fixed in advance did in two worlds."""

    false_alarms: int
    """"in" was said of so many observations of the world without"""
    without: int
    misses: int
    """"out" was said of so many observations of the world with"""
    within: int

    def bounds(self, significance: float) -> tuple[float, float]:
        """Upper bounds on both error rates that hold together."""
        alarms = rate_above(self.false_alarms, self.without, significance / 2)
        return alarms, rate_above(self.misses, self.within, significance / 2)


def gaussian_mu(errors: Errors, significance: float) -> float:
    """The least μ of N(0, 1) against N(μ, 1) that these errors leave possible; 0 where they show nothing.

    >>> round(gaussian_mu(Errors(false_alarms=1587, without=10_000, misses=1587, within=10_000), 0.05), 3)
    1.94
    """
    from scipy.stats import norm

    alarms, misses = errors.bounds(significance)
    return max(0.0, float(norm.isf(alarms) - norm.ppf(misses)))


def epsilon_from_errors(errors: Errors, delta: float, significance: float) -> float:
    """The least ε that these errors leave possible, whatever the mechanism.

    >>> round(epsilon_from_errors(Errors(false_alarms=0, without=1000, misses=0, within=1000), 1e-5, 0.05), 3)
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
    """
    from scipy.stats import binom

    right, guesses = trial.right, trial.guesses
    if right == 0:
        return False
    chance, steps = 1 / (1 + math.exp(-epsilon)), np.arange(1, right + 1)
    below = binom.cdf(right - 1, guesses, chance) - binom.cdf(right - 1 - steps, guesses, chance)
    slack = 2 * trial.canaries * delta * float((below / steps).max())
    return float(binom.sf(right - 1, guesses, chance)) + slack < significance


def one_run_refutes_gaussian(mu: float, trial: Trial, significance: float) -> bool:
    """The same of a run that is μ-Gaussian, by Mahloujifar et al.'s recursion from the count seen down to none."""
    normal, root, m = NormalDist(), math.sqrt(2), trial.canaries
    right, guesses = trial.right, trial.guesses
    hit, miss = significance * right / m, significance * (guesses - right) / m
    for count in range(right - 1, -1, -1):
        if hit >= 1:
            break
        more = max(miss, math.erfc((mu - normal.inv_cdf(hit)) / root) / 2)
        hit += count / (guesses - count) * (more - miss)
        miss = more
    return hit + miss >= guesses / m


def hull_vertices(within: Scores, without: Scores) -> list[tuple[int, int]]:
    """(right, wrong) counts of "in" at the vertices of the ROC's upper convex hull, from none to all."""
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


def largest_refuted(refutes: Callable[[float], bool], *, most: float, least: float = 0.0) -> float:
    """The largest value that is refuted, where all below it are too; `least` where not even that is."""
    if not refutes(least + _EXACT):
        return least
    low, high = least, most
    while high - low > _EXACT:
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


def largest_over_hull(
    within: Scores, without: Scores, refutes: Callable[[float, Trial, float], bool], *, significance: float, most: float
) -> float:
    """The largest value that "in" guesses at some vertex of the ROC's hull refute; all vertices share the significance."""
    vertices, canaries, best = hull_vertices(within, without), len(within) + len(without), 0.0
    share = significance / len(vertices)
    for right, wrong in vertices[1:]:
        trial = Trial(canaries=canaries, guesses=right + wrong, right=right)
        best = largest_refuted(partial(refutes, trial=trial, significance=share), most=most, least=best)
    return best


def _check_counts(count: int, total: int) -> None:
    if not 0 <= count <= total or total < 1:
        raise InputError(f"count={count} of total={total}: must lie in [0, total], and total above 0")
