"""ε of Poisson-sampled Gaussians by another way than `accounting` goes: an integral, no grid of losses.

With the loss ℓ(x) = ln(1 − q + q exp((2x − 1)/2σ²)) of one draw, and S the sum of those of all draws, δ at ε is

    E (1 − e^(ε−S))⁺  =  1/2πi ∫ E[e^(zS)] e^(−zε) / (z(z + 1)) dz     along Re z = c, for any c > 0

where x is from the mixture for a record that is removed; for one that is added x is from N(0, σ²) and the loss is −ℓ.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Draw = tuple[float, float, int]  # (q, σ, how many of them)
Numbers = NDArray[np.float64]
Complex = NDArray[np.complex128]

_REACH = 12.0  # standard deviations of x beyond which nothing is
_BLOCK = 64  # points on the line of z that are reckoned at once
_FAR = 200.0  # as far up the line as anything is reckoned; what has not vanished there is faded out
_NARROW, _HALVINGS = 1e-5, 4
_VANISHED = 1e-13
_MOST = 2.0**20  # ε beyond which none is looked for
_DOUBT = 4.0  # times as wrong as what a rougher rule would change, an integral may be
_ORDERS = np.concatenate([np.geomspace(1e-3, 1, 40), np.geomspace(1, 4000, 160)[1:]])
"""c is one of them: the one that bounds ε best"""


@dataclass(frozen=True)
class EpsilonBounds:
    """ε, between what the integral's own error leaves open."""

    least: float
    most: float


def integrate_epsilon(draws: Iterable[Draw], delta: float) -> EpsilonBounds:
    """ε at δ of all draws together, of adding and removing a record the worse.

    >>> round(integrate_epsilon([(1.0, 1.0, 1)], 1e-5).least, 6), integrate_epsilon([], 1e-5).most
    (4.377178, 0.0)
    """
    spent = [(q, sigma, count) for q, sigma, count in draws if q > 0 and count > 0 and math.isfinite(sigma)]
    if not spent:
        return EpsilonBounds(0.0, 0.0)
    if any(sigma == 0 for _, sigma, _ in spent):
        return EpsilonBounds(math.inf, math.inf)
    removing, adding = (_direction(spent, delta, removed=removed) for removed in (True, False))
    return EpsilonBounds(max(removing.least, adding.least), max(removing.most, adding.most))


def _direction(draws: Sequence[Draw], delta: float, *, removed: bool) -> EpsilonBounds:
    """One of both, with steps that are halved until the rest does not matter."""
    for halved in range(_HALVINGS):
        line = _Line.of(draws, delta, 0.5**halved, removed=removed)
        doubt = line.doubt(line.epsilon(delta))
        found = EpsilonBounds(line.epsilon(delta + doubt), line.epsilon(delta - doubt))
        if found.most - found.least <= _NARROW * found.most:
            break
    return found


@dataclass(frozen=True)
class _Line:
    """E[e^(zS)]/(z(z + 1)) on the line of z, as a logarithm, and two weights of the trapezoid rule.

    With few draws S has nearly an atom below ε, and the integrand falls as 1/|z|² alone. To fade it out smoothly is to
    smear 1 − e^(ε−S) a little where S is smooth. `rougher` fades twice as early, on every second point.
    """

    z: Complex
    log: Complex
    weight: Numbers
    rougher: Numbers

    @classmethod
    def of(cls, draws: Sequence[Draw], delta: float, finer: float, *, removed: bool) -> "_Line":
        moments = np.array([_log_moment(draws, c + np.zeros(1, complex), removed=removed)[0].real for c in _ORDERS])
        c = float(_ORDERS[np.nanargmin((moments - math.log(delta)) / _ORDERS)])
        around = np.array([0.999 * c, c, 1.001 * c], dtype=np.complex128)
        below, middle, above = _log_moment(draws, around, removed=removed).real
        spread = max((below - 2 * middle + above) / (1e-3 * c) ** 2, 1e-12)
        step = finer * min(c / 6, 0.7 / math.sqrt(spread))
        end = _FAR / step
        z, log = np.zeros(0, dtype=np.complex128), np.zeros(0, dtype=np.complex128)
        vanished = False
        while not vanished and len(z) < end:
            heights = step * np.arange(len(z), min(len(z) + _BLOCK, math.ceil(end)))
            new: Complex = np.asarray(c + 1j * heights, dtype=np.complex128)
            z = np.concatenate([z, new])
            log = np.concatenate([log, _log_moment(draws, new, removed=removed) - np.log(new * (new + 1))])
            vanished = bool(log[-1].real - log[0].real < math.log(_VANISHED))
        even = np.full(len(z), step / math.pi)
        even[0] /= 2
        share = np.arange(len(z)) / len(z)
        rougher = 2 * even * _faded(2 * share)
        rougher[1::2] = 0.0
        return cls(z, log, even * (1.0 if vanished else _faded(share)), rougher)

    def delta(self, epsilon: float) -> float:
        return float(np.exp(self.log - self.z * epsilon).real @ self.weight)

    def doubt(self, epsilon: float) -> float:
        """By how much δ may be wrong."""
        values = np.exp(self.log - self.z * epsilon).real
        return _DOUBT * abs(float(values @ (self.weight - self.rougher))) + 1e-9 * abs(float(values @ self.weight))

    def epsilon(self, delta: float) -> float:
        """By bisection: δ falls in ε."""
        low, high = 0.0, 1.0
        if self.delta(low) <= delta:
            return 0.0
        while self.delta(high) > max(delta, 0.0) and high < _MOST:
            low, high = high, 2 * high
        while high - low > 1e-10 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return (low + high) / 2


def _faded(share: Numbers) -> Numbers:
    """1 up to a half, 0 from 1 on, and smooth."""
    between = np.clip(2 * share - 1, 1e-9, 1 - 1e-9)
    found: Numbers = 1 / (1 + np.exp(np.clip(1 / (1 - between) - 1 / between, -700, 700)))
    return found


def _log_moment(draws: Sequence[Draw], z: Complex, *, removed: bool) -> Complex:
    """ln E[e^(zS)], its imaginary part up to multiples of 2π."""
    total = np.zeros(len(z), dtype=np.complex128)
    for q, sigma, count in draws:
        total += count * (z * (z + 1) / (2 * sigma**2) if q == 1 else _sampled(q, sigma, z, removed=removed))
    return total


def _sampled(q: float, sigma: float, z: Complex, *, removed: bool) -> Complex:
    """Of one draw: ln ∫ N(x; 0, σ²) exp(p ℓ(x)) dx, with p = z + 1 for a record removed, −z for one added."""
    power = z + 1 if removed else -z
    step = min(0.15 * sigma**2, 0.3 * sigma, sigma**2 / max(1.0, float(np.abs(z.imag).max())))
    end = max(0.0, float(power.real.max())) + _REACH * sigma
    x = np.arange(-_REACH * sigma, end + step, step)
    loss = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
    weight = -(x**2) / (2 * sigma**2) + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    largest = float((weight + float(power[0].real) * loss).max())
    found: Complex = largest + np.log(np.exp(weight - largest + np.outer(power, loss)).sum(axis=1))
    return found
