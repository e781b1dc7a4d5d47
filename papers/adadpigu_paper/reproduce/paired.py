"""Paired comparisons: is one variant better than another over the same seeds? After the noise: accuracies are public.

    d_s = a_s − b_s        t = mean(d)/(std(d)/√n), n − 1 degrees of freedom        interval: mean ± t_{0.975}·std/√n

A seed gives both variants the same initial weights, so what a start is worth cancels in d. Where several variants are
compared, Holm's step-down correction keeps the chance of *any* false "better" or "worse" within the level.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

LEVEL = 0.05
"""the chance of a false verdict among all comparisons of a family"""
Verdict = Literal["better", "worse", "no difference shown", "not tested"]
Name = TypeVar("Name")


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A mean difference with its 95 % interval and its two-sided p. With one pair there is neither."""

    mean: float
    pairs: int
    low: float | None
    high: float | None
    p: float | None


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Compares two variants by the seeds that both have; None where they share none.

    >>> found = paired({0: 3.0, 1: 5.0, 2: 7.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    >>> found.mean, found.pairs, round(found.p, 4)
    (3.0, 3, 0.0351)
    """
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not differences:
        return None
    pairs = len(differences)
    mean = math.fsum(differences) / pairs
    if pairs == 1:
        return Paired(mean=mean, pairs=1, low=None, high=None, p=None)
    squares = math.fsum((difference - mean) ** 2 for difference in differences)
    error = math.sqrt(squares / (pairs - 1) / pairs)
    reach = critical(pairs, 1) * error
    return Paired(mean=mean, pairs=pairs, low=mean - reach, high=mean + reach, p=_two_sided(mean, error, pairs - 1))


def unpaired(ours: Sequence[float], theirs: Sequence[float]) -> Paired | None:
    """Compares two variants whose runs have nothing in common (Welch's t); None with fewer than two runs of either.

    >>> found = unpaired([3.0, 5.0, 7.0], [1.0, 2.0, 3.0])
    >>> found.mean, round(found.p, 4)
    (3.0, 0.1045)
    """
    from scipy.special import stdtrit

    if min(len(ours), len(theirs)) < 2:
        return None
    mean = statistics.mean(ours) - statistics.mean(theirs)
    parts = [statistics.variance(side) / len(side) for side in (ours, theirs)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Paired(mean=mean, pairs=min(len(ours), len(theirs)), low=mean, high=mean, p=_two_sided(mean, 0.0, 1))
    spread = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (ours, theirs), strict=True))
    freedom = error**4 / spread
    reach = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
    p = _two_sided(mean, error, freedom)
    return Paired(mean=mean, pairs=min(len(ours), len(theirs)), low=mean - reach, high=mean + reach, p=p)


def _two_sided(mean: float, error: float, freedom: float) -> float:
    """p of Student's t. Differences that are all the same have no spread: then chance explains 0 and nothing else."""
    from scipy.special import stdtr

    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(mean) / error))


def critical(pairs: int, comparisons: int) -> float:
    """|t| from which one of so many comparisons, two-sided, is shown at the level by Bonferroni: Holm's first step.

    >>> round(critical(3, 1), 3)
    4.303
    """
    from scipy.special import stdtrit

    return float(stdtrit(pairs - 1, 1 - LEVEL / comparisons / 2))


def excludes_zero(found: Paired | None) -> bool:
    """Whether the 95 % interval of a comparison, by itself, has 0 outside."""
    return found is not None and found.low is not None and found.high is not None and not found.low <= 0 <= found.high


def holm(values: Sequence[float]) -> list[float]:
    """p after Holm's correction, in the order given: the k-th smallest of m is multiplied by m − k + 1, never falling.

    >>> [round(value, 3) for value in holm([0.03, 0.01, 0.04])]
    [0.06, 0.03, 0.06]
    """
    adjusted = [0.0] * len(values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=lambda place: values[place])):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = least
    return adjusted


def corrected(family: Mapping[Name, Paired | None]) -> dict[Name, float | None]:
    """p after Holm's correction over those of a family that could be tested; None for the others."""
    tested = {name: found.p for name, found in family.items() if found is not None and found.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {name: adjusted.get(name) for name in family}


def resolution(found: Paired, comparisons: int) -> float | None:
    """The difference beyond which it is significant among so many comparisons, whatever the others show.

    That is Bonferroni's level, LEVEL/m, at which Holm's correction begins. With one pair there is none.
    """
    if found.low is None or found.high is None:
        return None
    return (found.high - found.low) / 2 * critical(found.pairs, comparisons) / critical(found.pairs, 1)


def verdict(found: Paired | None, p: float | None) -> Verdict:
    """What a comparison shows at the level, p being corrected."""
    if found is None or p is None:
        return "not tested"
    if p >= LEVEL:
        return "no difference shown"
    return "better" if found.mean > 0 else "worse"
