"""Numbers of about 106 bits as pairs of float64 (hi, lo), and the few functions that exact noise needs. Sees no record.

Every operation is one of float64, rounded on its own, the same for all values: no branch, no table, no loop that
depends on a number. Error bounds are of Joldes, Muller and Popescu (2017), with u = 2⁻⁵³: sum 3u², product 5u².
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
_SPLIT = 2.0**27 + 1


def constant(value: Fraction) -> tuple[float, float]:
    """The nearest pair."""
    high = float(value)
    return high, float(value - Fraction(high))


def two_sum(a: Tensor, b: Tensor | float) -> Pair:
    """a + b exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _normal(high: Tensor, low: Tensor) -> Pair:
    total = high + low
    return total, low - (total - high)


def _halves(a: Tensor) -> Pair:
    shifted = a * _SPLIT
    high = shifted - (shifted - a)
    return high, a - high


def two_product(a: Tensor, b: Tensor) -> Pair:
    """a·b exactly, where nothing over- or underflows."""
    product, (ah, al), (bh, bl) = a * b, _halves(a), _halves(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def add(a: Pair, b: Pair) -> Pair:
    (high, low), (rest, last) = two_sum(a[0], b[0]), two_sum(a[1], b[1])
    high, low = _normal(high, low + rest)
    return _normal(high, low + last)


def add_constant(a: Pair, value: tuple[float, float]) -> Pair:
    return add(a, (torch.full_like(a[0], value[0]), torch.full_like(a[0], value[1])))


def multiply(a: Pair, b: Pair) -> Pair:
    high, low = two_product(a[0], b[0])
    return _normal(high, low + (a[0] * b[1] + a[1] * b[0]))


def divide(a: Pair, b: Pair) -> Pair:
    """By three quotients of float64, the rest exact but for products of pairs."""
    found = (torch.zeros_like(a[0]), torch.zeros_like(a[0]))
    for _ in range(3):
        quotient = a[0] / b[0]
        taken = multiply(b, (-quotient, torch.zeros_like(quotient)))
        a, found = add(a, taken), add(found, (quotient, torch.zeros_like(quotient)))
    return found


def square_root(a: Pair) -> Pair:
    """Of positive numbers: one step of Newton's from float64's."""
    root = torch.sqrt(a[0])
    rest = add(a, tuple(-part for part in two_product(root, root)))  # type: ignore[arg-type]
    first = (rest[0] + rest[1]) / (2 * root)
    high, low = two_sum(root, first)
    again = add(a, tuple(-part for part in multiply((high, low), (high, low))))  # type: ignore[arg-type]
    return _normal(high, low + (again[0] + again[1]) / (2 * root))


def _series(x: Pair, terms: list[tuple[float, float]]) -> Pair:
    """Σ terms_k x^k, by Horner's rule."""
    last = terms[-1]
    found = (torch.full_like(x[0], last[0]), torch.full_like(x[0], last[1]))
    for term in reversed(terms[:-1]):
        found = add_constant(multiply(found, x), term)
    return found


# ln 2 and π/4 to more than 110 bits
LN_2 = constant(Fraction("0.6931471805599453094172321214581765680755001343602552541206800094933936"))
QUARTER = constant(Fraction("0.7853981633974483096156608458198757210492923498437764552437361480769541"))
ARTANH = [constant(Fraction(2, 2 * k + 1)) for k in range(24)]
SIN = [constant(Fraction((-1) ** k, math.factorial(2 * k + 1))) for k in range(16)]
COS = [constant(Fraction((-1) ** k, math.factorial(2 * k))) for k in range(16)]


def logarithm(a: Pair) -> Pair:
    """ln of numbers in (0, 1): e ln 2 + 2 artanh((m − 1)/(m + 1)) with a = m·2^e and m in [√½, √2)."""
    mantissa, exponent = torch.frexp(a[0])
    small = mantissa < math.sqrt(0.5)
    exponent = exponent - small.to(exponent.dtype)
    scale = torch.ldexp(torch.ones_like(a[0]), -exponent)
    m = (a[0] * scale, a[1] * scale)
    z = divide(add_constant(m, (-1.0, 0.0)), add_constant(m, (1.0, 0.0)))
    whole = exponent.to(torch.float64)
    power = multiply((whole, torch.zeros_like(whole)), add_constant((0 * whole, 0 * whole), LN_2))
    return add(power, multiply(z, _series(multiply(z, z), ARTANH)))


def cosine_and_sine(a: Pair) -> tuple[Pair, Pair]:
    """Of angles in [0, π/4]."""
    square = multiply(a, a)
    return _series(square, COS), multiply(a, _series(square, SIN))
