"""What chance allows: p-values that hold exactly, or by a proved bound, as far out as an audit of many tests needs.

The second half (from `product_p` on) holds whoever decides, from what was seen so far, what is looked at next: a mask
that is learned from noise of earlier steps is settled before a number is drawn. Wealth that is bet on the numbers,
fairly, does not grow on average, so its inverse is a p-value, whenever one stops (Ville 1939; Howard et al. 2021).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

_NOTHING = 1e-22  # chances below it are left out of a distribution
_DEVIATIONS = 16.0  # how many standard deviations of a sum are kept on either side
_CANDIDATES = 50
_START = 16.0  # ρ: pairs from which on `product_p` is sharp
_SHAPE, _RATE = 0.5, 0.005
"""of the Gamma distribution of inverse variances that `scale_p` bets by: wide, so few numbers without noise tell"""
FINEST = 2.0**-44  # below which numbers of a float64 generator may well be equal
_CELLS = 8  # ranges of sizes, each as likely as the others
_STAKES = (2.0, 2.0**6, 2.0**20)  # what `rare_p` bets that there are so many times too many


class Check(NamedTuple):
    """One test: how likely chance alone makes what was seen, and what to say where that is not believed."""

    name: str
    p: float
    finding: str

    def of(self, what: str) -> "Check":
        return Check(f"{what}: {self.name}", self.p, f"{what}: {self.finding}")


def refuted(checks: Sequence[Check], significance: float) -> tuple[str, ...]:
    """What failed, in words: all tests together raise a false alarm with a chance of at most `significance`."""
    return tuple(f"{check.finding} (p = {check.p:.1g})" for check in checks if check.p < significance / len(checks))


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


class Distribution(NamedTuple):
    """Chances of the whole numbers from `start` on."""

    start: int
    chances: Numbers


def sum_p(seen: int, distributions: Iterable[tuple[Distribution, int]]) -> float:
    """Two-sided p of a sum of independent whole numbers, so many of each distribution: exact but for rounding (1e-12).

    >>> coin = Distribution(0, np.array([0.5, 0.5]))
    >>> round(sum_p(0, [(coin, 10)]), 6), round(sum_p(3, [(coin, 5), (coin, 1)]), 6)
    (0.001953, 1.0)
    """
    parts, middle, variance, widest = [], 0, 0.0, 0
    for distribution, times in distributions:
        values = distribution.start + np.flatnonzero(distribution.chances > _NOTHING)
        chances = distribution.chances[values - distribution.start]
        mean = float(values @ chances)
        centre = round(mean)
        middle += times * centre
        variance += times * float((values - mean) ** 2 @ chances)
        widest = max(widest, int(values[-1] - values[0]) + 1)
        parts.append((values - centre, chances, times))
    size = 2 ** math.ceil(math.log2(2 * (widest + _DEVIATIONS * math.sqrt(variance) + 2)))
    transformed = np.ones(size // 2 + 1, dtype=np.complex128)
    for offsets, chances, times in parts:
        placed = np.zeros(size)
        placed[offsets % size] = chances
        transformed *= np.fft.rfft(placed) ** times
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
    chances: Numbers = np.bincount(squares, binom.pmf(values, trials, rate)).astype(np.float64)
    return sum_p(int(((counts - middle) ** 2).sum()), [(Distribution(0, chances), len(counts))])


def overlaps_p(overlaps: Counts, records: int, sizes: Counts, others: Counts) -> float:
    """Of the common records of many pairs of draws, given the draws' sizes; no draw in two pairs of a ring."""
    pairs = Counter(zip(sizes.tolist(), others.tolist(), strict=True))
    return sum_p(int(overlaps.sum()), ((hypergeometric(records, *pair), times) for pair, times in pairs.items()))


def neighbours_p(pairs: Counts, records: int, sizes: Counts) -> float:
    """Of the neighbours that many draws have taken together, given the draws' sizes.

    A draw of m records has m − pairs runs, in C(m − 1, runs − 1)·C(n − m + 1, runs) ways: `hypergeometric`.
    """
    draws = Counter(sizes.tolist()).items()
    runs = ((hypergeometric(records, min(records, records - m + 1), m), n) for m, n in draws)
    return sum_p(int((sizes - pairs).sum()), runs)


def hypergeometric(total: int, marked: int, chosen: int) -> Distribution:
    """How many of the marked are among the chosen, at random out of a total: the hypergeometric distribution.

    >>> hypergeometric(4, 3, 2).chances.round(3).tolist()
    [0.5, 0.5]
    """
    from scipy.stats import hypergeom

    least, most = max(0, marked + chosen - total), min(marked, chosen)
    return Distribution(least, hypergeom.pmf(np.arange(least, most + 1), total, marked, chosen))


def most_alike(taken: NDArray[np.bool_]) -> tuple[float, int, int]:
    """(p, i, j) of the two rows that have most in common for their sizes, by the union bound over all pairs.

    Rows are independent, and each a random choice among the columns given its size.
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

    count, distribution = len(ordered), ndtr(ordered)
    steps = np.arange(count + 1) / count
    largest = float(max((steps[1:] - distribution).max(), (distribution - steps[:-1]).max()))
    return min(1.0, 2 * math.exp(-2 * count * largest**2)), largest


def product_p(total: float | Numbers, variance: float | Numbers) -> Numbers:
    """Of A = Σ z_i z_j, each pair's later number standard normal given all before it, and V = Σ z_i² of the earlier.

    Each term is N(0, z_i²) given the past, whichever pairs are chosen in view of it, so exp(λA − λ²V/2) is a fair bet,
    and so is its mean over λ ~ N(0, 1/ρ): √(ρ/(V + ρ)) exp(A²/(2(V + ρ))).
    """
    size, spread = np.asarray(total, dtype=np.float64), np.asarray(variance, dtype=np.float64) + _START
    chances: Numbers = np.exp(np.minimum(0.0, np.log(spread / _START) / 2 - size**2 / (2 * spread)))
    return chances


def product_reach(variance: Numbers, significance: float | Numbers) -> Numbers:
    """How large |A| has to be for `product_p` to fall to the significance: its inverse.

    >>> reach = product_reach(np.array([1000.0]), 1e-6)
    >>> round(float(product_p(reach, 1000.0)[0]) * 1e6, 6)
    1.0
    """
    spread = variance + _START
    reach: Numbers = np.sqrt(2 * spread * (np.log(spread / _START) / 2 - np.log(significance)))
    return reach


def repeats(z: Numbers, due: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """(A, V) of `product_p` at every lag from 1 on, over the pairs both numbers of which are due (others are 0)."""
    from scipy.signal import correlate

    products, variances = correlate(z, z, method="fft"), correlate(due.astype(np.float64), z**2, method="fft")
    return products[len(z) :], np.maximum(variances[len(z) :], 0.0)


def sizes(z: Numbers, due: NDArray[np.bool_]) -> Numbers:
    """√3 (2 P(|Z| ≤ |z|) − 1), 0 where nothing is due: how large numbers are, whatever their sign.

    Of standard normal numbers that is uniform with mean 0 and variance 1, and E exp(λu) ≤ exp(λ²/2), so that all of
    `product_p` holds for them too.

    >>> sizes(np.array([0.0, -0.67449, 9.0, 1.0]), np.array([True, True, True, False])).round(3).tolist()
    [-1.732, 0.0, 1.732, 0.0]
    """
    from scipy.special import erf

    found: Numbers = np.where(due, math.sqrt(3) * (2 * erf(np.abs(z) / math.sqrt(2)) - 1), 0.0)
    return found


def equal_sizes(z: Numbers, digits: float, finest: float = FINEST) -> tuple[int, float]:
    """(n, m): how many numbers have the size of an earlier one, and the sum of the chances of that: for `rare_p`.

    `digits` is the relative distance of neighbouring numbers, so that the next one, N(0, 1), is ±v with a chance of at
    most 2φ(v)·v·`digits`; twice that is taken, for what is rounded twice. `finest` is the least distance of any two.

    >>> equal_sizes(np.array([1.0, 0.5, -1.0, 2.0]), 1e-6)[0]
    1
    """
    values, first = np.unique(np.abs(z), return_index=True)
    cells = 2 * np.maximum(values * digits, finest)
    chances = 2 * np.exp(-(values**2) / 2) / math.sqrt(2 * math.pi) * cells
    return len(z) - len(values), float(chances @ (len(z) - 1 - first))


def equal_columns(z: Numbers) -> tuple[int, float]:
    """(n, m), for `rare_p`: how many columns have sizes in the ranges of an earlier one's, in every row. A range is
    taken for a tenth more likely than it is, for what is rounded.

    >>> equal_columns(np.array([[1.0, 2.0, -1.0], [0.5, 0.6, 0.5]]))[0]
    1
    """
    (rows, columns), share = z.shape, sizes(z, np.isfinite(z)) / math.sqrt(12) + 0.5
    codes = np.floor(_CELLS * share).T @ float(_CELLS) ** np.arange(rows)
    return columns - len(np.unique(codes)), columns * (columns - 1) / 2 * (1.1 / _CELLS) ** rows


def lag_shares(count: int) -> Numbers:
    """Of a significance, what each lag from 1 on has: in all at most 1, however many there turn out to be.

    >>> lag_shares(3).round(4).tolist(), bool(lag_shares(2**20).sum() < 1)
    ([0.5, 0.0833, 0.0833], True)
    """
    block = np.floor(np.log2(np.arange(1, count + 1)))
    shares: Numbers = 1 / (2**block * (block + 1) * (block + 2))
    return shares


def scale_p(squares: float | Numbers, count: float | Numbers) -> Numbers:
    """Of the sum of squares of standard normal numbers, their count chosen in view of them: two-sided.

    The bet is the likelihood of N(0, 1/τ) over that of N(0, 1), mean over τ ~ Gamma(a, b).
    """
    chances: Numbers = np.exp(np.minimum(0.0, -_scale_bet(squares, count)))
    return chances


def _scale_bet(squares: float | Numbers, count: float | Numbers) -> Numbers:
    from scipy.special import gammaln

    half, shape = np.asarray(squares, dtype=np.float64) / 2, _SHAPE + np.asarray(count, dtype=np.float64) / 2
    bet: Numbers = half + _SHAPE * math.log(_RATE) - math.lgamma(_SHAPE) + gammaln(shape) - shape * np.log(_RATE + half)
    return bet


def most_scale(squares: float, count: int, significance: float) -> float:
    """The largest scale of normal numbers for which `scale_p` of what was seen is not below the significance.

    >>> most_scale(0.0, 50, 1e-6), most_scale(5.0, 5, 1e-9)
    (0.0, inf)
    """
    from scipy.optimize import brentq

    needed = -math.log(significance)
    if float(_scale_bet(0.0, count)) <= needed:
        return math.inf
    if squares == 0:
        return 0.0
    least = brentq(lambda x: float(_scale_bet(x, count)) - needed, 0.0, count + 2 * (_SHAPE - _RATE))
    return math.sqrt(squares / least)


def rare_p(count: int, expected: float) -> float:
    """Of at least so many events whose chances, each given what was before it, sum to `expected` at most.

    For every θ, exp(θ·count − (e^θ − 1)·expected) is a bet that is fair or worse.

    >>> rare_p(0, 1e-9), rare_p(3, 3.0), rare_p(200, 1e-9) < 1e-100
    (1.0, 1.0, True)
    """
    bets = [count * math.log(stake) - (stake - 1) * expected for stake in _STAKES]
    return math.exp(min(0.0, math.log(len(bets)) - max(bets)))
