"""p-values that hold whoever decides, from what was seen so far, what is looked at next.

A mask may be learned from noise of earlier steps, so which numbers are looked at, and how many, depends on them. But it
is settled before a number is drawn. Then wealth that is bet on the numbers, fairly, does not grow on average, and by
Markov's inequality its inverse is a p-value, whenever one stops (Ville 1939; Howard et al. 2021). Pure functions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from adadpigu.audit.laws import Numbers

_START = 16.0
"""ρ: pairs from which on `product_p` is sharp"""
_SHAPE, _RATE = 0.5, 0.005
"""of the Gamma law that `scale_p` bets on inverse variances by: wide, so that a few numbers without noise tell"""
_FINEST = 2.0**-44
"""below which numbers of a float64 generator may well be equal"""
_STAKES = (2.0, 2.0**6, 2.0**20)
"""what `rare_p` bets that there are so many times too many"""


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
    from scipy.fft import irfft, next_fast_len, rfft

    size = next_fast_len(2 * len(z), real=True)
    products = irfft(np.abs(rfft(z, size)) ** 2, size)[1 : len(z)]
    later, squares = rfft(due.astype(np.float64), size), rfft(z**2, size)
    variances = irfft(later * squares.conj(), size)[1 : len(z)]
    return products, np.maximum(variances, 0.0)


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


def equal_sizes(z: Numbers, digits: float) -> tuple[int, float]:
    """(n, m): how many numbers have the size of an earlier one, and the sum of the chances of that: for `rare_p`.

    `digits` is the relative distance of neighbouring numbers as they were read, so that the next one, N(0, 1), comes
    out at ±v with a chance of at most 2φ(v)·v·`digits`; twice that is taken, for what is rounded twice.

    >>> equal_sizes(np.array([1.0, 0.5, -1.0, 2.0]), 1e-6)[0]
    1
    """
    values, first = np.unique(np.abs(z), return_index=True)
    cells = 2 * np.maximum(values * digits, _FINEST)
    chances = 2 * np.exp(-(values**2) / 2) / math.sqrt(2 * math.pi) * cells
    return len(z) - len(values), float(chances @ (len(z) - 1 - first))


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
