"""What chance allows: p-values that hold exactly, or by a proved bound, as far out as an audit of many tests needs.

Normal approximations are not good enough that far out, so sums of whole numbers are convolved. Pure functions
of counts and numbers; whoever calls them says where those come from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

_NOTHING = 1e-22
"""chances below it are left out of a law"""
_DEVIATIONS = 16.0
"""how many standard deviations of a sum are kept on either side"""
_CANDIDATES = 50


@dataclass(frozen=True, kw_only=True)
class Check:
    """One test: how likely chance alone makes what was seen, and what to say where that is not believed."""

    name: str
    p: float
    told: str


def refuted(checks: Sequence[Check], significance: float) -> tuple[str, ...]:
    """What failed, in words: all tests together raise a false alarm with a chance of at most `significance`."""
    return tuple(f"{check.told} (p = {check.p:.1g})" for check in checks if check.p < significance / len(checks))


def two_sided(below: float, above: float) -> float:
    """From the chances of at most and of at least what was seen."""
    return float(min(1.0, max(0.0, 2 * min(below, above))))


def binomial_p(count: int, trials: int, rate: float) -> float:
    """Exact, two-sided.

    >>> round(binomial_p(0, 10, 0.5), 6), binomial_p(10, 10, 1.0), binomial_p(9, 10, 1.0)
    (0.001953, 1.0, 0.0)
    """
    from scipy.stats import binom

    return two_sided(binom.cdf(count, trials, rate), binom.sf(count - 1, trials, rate))


def extreme_p(counts: Counts, trials: int, rate: float) -> float:
    """Of the largest and the smallest of many binomial counts, by the union bound."""
    from scipy.stats import binom

    least, most = binom.cdf(counts.min(), trials, rate), binom.sf(counts.max() - 1, trials, rate)
    return min(1.0, len(counts) * two_sided(least, most))


@dataclass(frozen=True)
class Law:
    """Chances of the whole numbers from `start` on."""

    start: int
    chances: Numbers

    def trimmed(self) -> Law:
        """Without the ends that never happen."""
        kept = np.flatnonzero(self.chances > _NOTHING)
        return Law(self.start + int(kept[0]), self.chances[kept[0] : kept[-1] + 1])

    def moments(self) -> tuple[float, float]:
        """Mean and variance."""
        values = self.start + np.arange(len(self.chances))
        mean = float(values @ self.chances)
        return mean, float((values - mean) ** 2 @ self.chances)


def sum_p(seen: int, laws: Iterable[tuple[Law, int]]) -> float:
    """Two-sided p of a sum of independent whole numbers, so many of each law: exact but for rounding (1e-12).

    >>> coin = Law(0, np.array([0.5, 0.5]))
    >>> round(sum_p(0, [(coin, 10)]), 6), round(sum_p(3, [(coin, 5), (coin, 1)]), 6)
    (0.001953, 1.0)
    """
    parts = [(law.trimmed(), times) for law, times in laws]
    moments = [law.moments() for law, _ in parts]
    spread = math.sqrt(sum(times * variance for (_, times), (_, variance) in zip(parts, moments, strict=True)))
    widest = max(len(law.chances) for law, _ in parts)
    size = 2 ** math.ceil(math.log2(2 * (widest + _DEVIATIONS * spread + 2)))
    transformed, middle = np.ones(size // 2 + 1, dtype=np.complex128), 0
    for (law, times), (mean, _) in zip(parts, moments, strict=True):
        centre = round(mean)
        placed = np.zeros(size)
        placed[(law.start - centre + np.arange(len(law.chances))) % size] = law.chances
        transformed *= np.fft.rfft(placed) ** times
        middle += times * centre
    chances = np.fft.fftshift(np.fft.irfft(transformed, size))
    place = seen - middle + size // 2
    if not 0 <= place < size:
        return 0.0
    return two_sided(float(chances[: place + 1].sum()), float(chances[place:].sum()))


def dispersion_p(counts: Counts, trials: int, rate: float) -> float:
    """Whether binomial counts vary as much as they should, by Σ(c − m)², m the whole number next to the mean."""
    from scipy.stats import binom

    middle = round(trials * rate)
    reach = int(12 * math.sqrt(trials * rate * (1 - rate)) + 40)
    values = np.arange(max(0, middle - reach), min(trials, middle + reach) + 1)
    squares = (values - middle) ** 2
    chances = np.zeros(int(squares.max()) + 1)
    np.add.at(chances, squares, binom.pmf(values, trials, rate))
    law = Law(0, chances)
    return sum_p(int(((counts - middle) ** 2).sum()), [(law, len(counts))])


def overlap_law(records: int, one: int, other: int) -> Law:
    """How many records two independent draws of these sizes have in common."""
    common = np.arange(max(0, one + other - records), min(one, other) + 1)
    ways = _log_choices(one, common) + _log_choices(records - one, other - common)
    return Law(int(common[0]), np.exp(ways - _log_choices(records, np.array([other]))))


def _log_choices(total: int, taken: Counts) -> Numbers:
    from scipy.special import gammaln

    ways: Numbers = gammaln(total + 1) - gammaln(taken + 1) - gammaln(total - taken + 1)
    return ways


def overlaps_p(overlaps: Counts, records: int, sizes: Counts, others: Counts) -> float:
    """Of the common records of many pairs of draws, given the draws' sizes; no draw in two pairs of a ring."""
    pairs = Counter(zip(np.minimum(sizes, others).tolist(), np.maximum(sizes, others).tolist(), strict=True))
    laws = ((overlap_law(records, one, other), times) for (one, other), times in pairs.items())
    return sum_p(int(overlaps.sum()), laws)


def neighbours_law(records: int, size: int) -> Law:
    """How many of `size` records, drawn from a row of `records`, have the next one in the row drawn too.

    >>> neighbours_law(4, 2).chances.round(3).tolist()
    [0.5, 0.5]
    """
    if size == 0:
        return Law(0, np.ones(1))
    runs = np.arange(min(size, records - size + 1), 0, -1)
    ways = _log_choices(size - 1, runs - 1) + _log_choices(records - size + 1, runs)
    return Law(size - int(runs[0]), np.exp(ways - _log_choices(records, np.array([size]))))


def neighbours_p(pairs: Counts, records: int, sizes: Counts) -> float:
    """Of the neighbours that many draws have taken together, given the draws' sizes."""
    laws = ((neighbours_law(records, size), times) for size, times in Counter(sizes.tolist()).items())
    return sum_p(int(pairs.sum()), laws)


def most_alike(taken: NDArray[np.bool_]) -> tuple[float, int, int]:
    """(p, i, j) of the two rows that have most in common for their sizes, by the union bound over all pairs.

    Rows are independent, and each a random choice among the columns given its size: draws among records, or records
    among draws.
    """
    from scipy.stats import hypergeom

    rows, columns = taken.shape
    if rows < 2:
        return 1.0, 0, 0
    dense, sizes = taken.astype(np.float32), taken.sum(axis=1).astype(np.float64)
    common = (dense @ dense.T).astype(np.float64)
    share = sizes / columns
    expected = np.outer(sizes, share)
    spread = np.sqrt(np.outer(sizes * (1 - share), share * (1 - share)) * columns / max(1, columns - 1))
    excess = (common - expected) / np.maximum(spread, 1e-3)
    excess[np.tril_indices(rows)] = -np.inf
    candidates = np.argpartition(excess, -min(_CANDIDATES, excess.size), axis=None)[-_CANDIDATES:]
    one, other = np.unravel_index(candidates, excess.shape)
    tails = hypergeom.sf(common[one, other] - 1, columns, sizes[one], sizes[other])
    best = int(np.argmin(tails))
    return min(1.0, float(tails[best]) * rows * (rows - 1) / 2), int(one[best]), int(other[best])


def spread_p(squares: float, count: int) -> float:
    """Of the sum of squares of so many standard normal numbers: exact, two-sided."""
    from scipy.stats import chi2

    return two_sided(chi2.cdf(squares, count), chi2.sf(squares, count))


def mean_p(total: float, count: int) -> float:
    """Of the sum of so many standard normal numbers: exact, two-sided."""
    return math.erfc(abs(total) / math.sqrt(2 * count))


def distance_p(ordered: Numbers) -> tuple[float, float]:
    """(p, D): the largest distance of the numbers' distribution from N(0, 1), by Massart's bound 2 exp(−2nD²)."""
    from scipy.special import ndtr

    count = len(ordered)
    law = ndtr(ordered)
    steps = np.arange(count + 1) / count
    largest = float(max((steps[1:] - law).max(), (law - steps[:-1]).max()))
    return min(1.0, 2 * math.exp(-2 * count * largest**2)), largest
