"""An auditor's errors and guesses, for tests of estimators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.stats import norm

from adadpigu.audit.estimators import Errors, Scores, Trial, largest_refuted


def ends(scores: Scores, present: np.ndarray, a_side: int) -> Trial:
    """ "in" of the highest scores, "out" of the lowest."""
    order = np.argsort(scores)
    right = present[order[-a_side:]].sum() + (~present[order[:a_side]]).sum()
    return Trial(canaries=len(scores), guesses=2 * a_side, right=int(right))


def surest(scores: Scores, present: np.ndarray, guesses: int) -> Trial:
    """ "in" of positive and "out" of negative scores, those of largest size."""
    order = np.argsort(-np.abs(scores))[:guesses]
    right = int(((scores[order] > 0) == present[order]).sum())
    return Trial(canaries=len(scores), guesses=guesses, right=right)


def errors_of(alarms: int, misses: int, count: int) -> Errors:
    """The errors of a test on `count` observations a world."""
    return Errors(false_alarms=alarms, without=count, misses=misses, within=count)


def trial_of(canaries: int, guesses: int, right: int) -> Trial:
    """So many right guesses among so many, on so many canaries."""
    return Trial(canaries=canaries, guesses=guesses, right=right)


def ideal(count: int, mu: float) -> tuple[Scores, Scores]:
    """Scores N(μ, 1) and N(0, 1) at quantile midpoints."""
    out: Scores = norm.ppf((np.arange(count) + 0.5) / count)
    return out + mu, out


def hull_vertices(within: Scores, without: Scores) -> list[tuple[int, int]]:
    """(right, wrong) counts of "in" at the vertices of the ROC's upper convex hull, from none to all."""
    order = np.argsort(-np.concatenate([within, without]), kind="stable")
    right = np.cumsum(order < len(within))
    hull = [(0, 0)]
    for point in zip(right.tolist(), (np.arange(1, len(order) + 1) - right).tolist(), strict=True):
        while len(hull) >= 2 and _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _turns_up(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether the middle point lies on or below the line, in (wrong, right)."""
    return (b[0] - a[0]) * (c[1] - a[1]) <= (c[0] - a[0]) * (b[1] - a[1])


def largest_over_hull(
    within: Scores, without: Scores, refutes: Callable[..., bool], *, significance: float, most: float
) -> float:
    """The largest value that "in" guesses at some vertex of the ROC's hull refute, as published figures have it.

    The vertices share the significance. That is no bound: the same scores choose them.
    """
    vertices, canaries, best = hull_vertices(within, without), len(within) + len(without), 0.0
    level = significance / len(vertices)
    for right, wrong in vertices[1:]:
        trial = trial_of(canaries, right + wrong, right)
        if refutes(best + 1e-9, trial=trial, significance=level):
            best = largest_refuted(partial(refutes, trial=trial, significance=level), most=most)
    return best
