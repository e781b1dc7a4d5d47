"""An auditor's errors and guesses, for tests of estimators."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from adadpigu.audit.estimators import Errors, Scores, Trial


def ends(scores: Scores, present: np.ndarray, a_side: int) -> Trial:
    """ "in" of the highest scores, "out" of the lowest."""
    order = np.argsort(scores)
    right = present[order[-a_side:]].sum() + (~present[order[:a_side]]).sum()
    return Trial(canaries=len(scores), guesses=2 * a_side, right=int(right))


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
