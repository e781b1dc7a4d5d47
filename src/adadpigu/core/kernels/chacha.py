"""ChaCha20 (RFC 8439) on a GPU: words, uniform and normal numbers, and noise rounded to whole ones. Sees no record.

A number's block is counted on the device, by what runs there: a graph that is replayed counts on, and sees none twice.
Blocks are numbered with 64 bits, in words 12 and 13 of the state; the rest of the nonce is zero, since no key is used
by two streams. Numbers lie as the blocks do, so that words and uniforms are those of the same key on a CPU.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from adadpigu.core import double_double as dd
from adadpigu.core import kernels
from adadpigu.core.kernels._triton import jit, tl

What = Literal["words", "uniform", "normal", "rounded"]
_PER_BLOCK: dict[What, int] = {"words": 16, "uniform": 8, "normal": 8, "rounded": 4}
_BLOCKS = 1024 if kernels.INTERPRETED else 128  # of one program: the interpreter takes as long for one as for many
_TABLE = (dd.LN_2, dd.QUARTER, *dd.ARTANH, *dd.SIN, *dd.COS)


class Stream:
    """The numbers of one key, in order. Key and count stay on the device, and nothing else keeps them.

    Formal guarantee: no block is used twice, in whatever order, number and graphs calls run on one stream of a device.
    """

    def __init__(self, key: bytes, device: torch.device) -> None:
        assert len(key) == 32
        self._key = torch.frombuffer(bytearray(key), dtype=torch.int32).to(device, copy=True)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)  # the block that comes next
        self._table = torch.tensor(_TABLE, dtype=torch.float64, device=device)

    def words(self, count: int) -> Tensor:
        """32-bit words, as int64."""
        return self._made("words", count)

    def uniform(self, count: int) -> Tensor:
        """Multiples of 2⁻⁵³ in [0, 1), in float64."""
        return self._made("uniform", count)

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers in float64, by Box and Muller from two uniforms; none is beyond 8.6."""
        return self._made("normal", count)

    def rounded(self, count: int, scale: float) -> Tensor:
        """round(scale·Z) in float64: bit for bit what `core.exact` makes of the same words."""
        return self._made("rounded", count, scale)

    def _made(self, what: What, count: int, scale: float = 1.0) -> Tensor:
        dtype = torch.int64 if what == "words" else torch.float64
        out = torch.empty(count, dtype=dtype, device=self._key.device)
        blocks = -(-count // _PER_BLOCK[what])
        # Triton launches on the current device, which need not be the one where these numbers are added to a sum
        with torch.cuda.device_of(out):
            if blocks:
                arguments = self._key, self._next, self._table, out, count, scale
                _numbers[(-(-blocks // _BLOCKS),)](
                    *arguments, WHAT=what, BLOCKS=_BLOCKS, num_warps=4, enable_fp_fusion=what != "rounded"
                )
                self._next += blocks
        return out


@jit()
def _rotated(x, by: tl.constexpr):
    return (x << by) | (x >> (32 - by))


@jit()
def _quarter(a, b, c, d):
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@jit()
def _word(key, at: tl.constexpr, zero):
    return tl.load(key + at).to(tl.uint32, bitcast=True) + zero


@jit()
def _block(key, number):
    """The 16 words of each numbered block."""
    zero = (number * 0).to(tl.uint32)
    k0, k1, k2, k3 = _word(key, 0, zero), _word(key, 1, zero), _word(key, 2, zero), _word(key, 3, zero)
    k4, k5, k6, k7 = _word(key, 4, zero), _word(key, 5, zero), _word(key, 6, zero), _word(key, 7, zero)
    low, high = (number & 0xFFFFFFFF).to(tl.uint32), (number >> 32).to(tl.uint32)
    c0, c1, c2, c3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    a0, a1, a2, a3, b0, b1, b2, b3 = c0, c1, c2, c3, k0, k1, k2, k3
    e0, e1, e2, e3, d0, d1, d2, d3 = k4, k5, k6, k7, low, high, zero, zero
    for _ in range(10):
        a0, b0, e0, d0 = _quarter(a0, b0, e0, d0)
        a1, b1, e1, d1 = _quarter(a1, b1, e1, d1)
        a2, b2, e2, d2 = _quarter(a2, b2, e2, d2)
        a3, b3, e3, d3 = _quarter(a3, b3, e3, d3)
        a0, b1, e2, d3 = _quarter(a0, b1, e2, d3)
        a1, b2, e3, d0 = _quarter(a1, b2, e3, d0)
        a2, b3, e0, d1 = _quarter(a2, b3, e0, d1)
        a3, b0, e1, d2 = _quarter(a3, b0, e1, d2)
    first = a0 + c0, a1 + c1, a2 + c2, a3 + c3, b0 + k0, b1 + k1, b2 + k2, b3 + k3
    return first, (e0 + k4, e1 + k5, e2 + k6, e3 + k7, d0 + low, d1 + high, d2, d3)


@jit()
def _joined(low, high):
    """64 bits of two words."""
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@jit()
def _fraction(low, high):
    """53 bits of two words, in [0, 1)."""
    return (_joined(low, high) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@jit("count")
def _numbers(key, following, table, out, count, scale: tl.float64, WHAT: tl.constexpr, BLOCKS: tl.constexpr):
    """The numbers that some blocks make."""
    lane = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    first, last = _block(key, tl.load(following) + lane)
    if WHAT == "words":
        for j in tl.static_range(8):
            _keep(out, lane * 16 + j, first[j].to(tl.int64), count)
            _keep(out, lane * 16 + 8 + j, last[j].to(tl.int64), count)
    elif WHAT == "uniform":
        for j in tl.static_range(4):
            _keep(out, lane * 8 + j, _fraction(first[2 * j], first[2 * j + 1]), count)
            _keep(out, lane * 8 + 4 + j, _fraction(last[2 * j], last[2 * j + 1]), count)
    elif WHAT == "normal":
        for j in tl.static_range(2):
            _keep_pair(out, lane * 8 + 2 * j, first, 4 * j, count)
            _keep_pair(out, lane * 8 + 4 + 2 * j, last, 4 * j, count)
    else:
        _keep_rounded(out, lane * 4, first, table, scale, count)
        _keep_rounded(out, lane * 4 + 2, last, table, scale, count)


@jit()
def _keep(out, place, value, count):
    tl.store(out + place, value, mask=place < count)


@jit()
def _keep_pair(out, place, words, at: tl.constexpr, count):
    """Two normal numbers of four words."""
    u, v = _fraction(words[at], words[at + 1]), _fraction(words[at + 2], words[at + 3])
    radius = tl.sqrt(-2 * tl.log(1 - u))
    angle = v * tl.full(v.shape, 6.283185307179586, tl.float64)
    _keep(out, place, radius * tl.cos(angle), count)
    _keep(out, place + 1, radius * tl.sin(angle), count)


@jit()
def _keep_rounded(out, place, words, table, scale, count):
    """Two of round(scale·Z) of eight words: as `exact.normal_pairs` and `exact.nearest_multiple`."""
    mantissa = _joined(words[0], words[1])
    u = _uniform_pair(mantissa, _joined(words[2], words[3]))
    v = _uniform_pair(_joined(words[4], words[5]), _joined(words[6], words[7]))
    log_high, log_low = _logarithm(u[0], u[1], table)
    radius = _square_root(-2 * log_high, -2 * log_low)
    zero = u[0] * 0
    angle = _multiply(v[0], v[1], zero + tl.load(table + 2), zero + tl.load(table + 3))
    square = _multiply(angle[0], angle[1], angle[0], angle[1])
    odd = _series(square[0], square[1], table + 52, 16)
    sine = _multiply(angle[0], angle[1], odd[0], odd[1])
    cosine = _series(square[0], square[1], table + 84, 16)
    bits = (mantissa & 7).to(tl.int32)
    swapped, first, second = (bits & 1) != 0, 1 - (bits & 2), 1 - ((bits >> 1) & 2)
    one = tl.where(swapped, sine[0], cosine[0]), tl.where(swapped, sine[1], cosine[1])
    other = tl.where(swapped, cosine[0], sine[0]), tl.where(swapped, cosine[1], sine[1])
    _keep(out, place, _nearest(_multiply(radius[0], radius[1], one[0], one[1]), first, scale), count)
    _keep(out, place + 1, _nearest(_multiply(radius[0], radius[1], other[0], other[1]), second, scale), count)


@jit()
def _uniform_pair(high, low):
    """(high·2⁵² + low + ½)·2⁻¹⁰⁵ of the upper 53 and 52 bits."""
    upper = (high >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    return _two_sum(upper, ((low >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.465190328815662e-32)


@jit()
def _nearest(pair, sign, scale):
    high, low = _multiply(pair[0] * 0 + scale, pair[0] * 0, pair[0], pair[1])
    whole = tl.floor(high + 0.5)
    rest = high - whole
    found = whole + ((rest - 0.5) + low > 0).to(tl.float64) - ((rest + 0.5) + low < 0).to(tl.float64)
    return found * sign.to(tl.float64)


# --- `core.double_double`, operation for operation ---


@jit()
def _two_sum(a, b):
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@jit()
def _joined_sum(high, low):
    total = high + low
    return total, low - (total - high)


@jit()
def _upper_half(a):
    shifted = a * 134217729.0
    return shifted - (shifted - a)


@jit()
def _two_product(a, b):
    product, ah, bh = a * b, _upper_half(a), _upper_half(b)
    al, bl = a - ah, b - bh
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


@jit()
def _add(a_high, a_low, b_high, b_low):
    high, low = _two_sum(a_high, b_high)
    rest, last = _two_sum(a_low, b_low)
    high, low = _joined_sum(high, low + rest)
    return _joined_sum(high, low + last)


@jit()
def _multiply(a_high, a_low, b_high, b_low):
    high, low = _two_product(a_high, b_high)
    return _joined_sum(high, low + (a_high * b_low + a_low * b_high))


@jit()
def _divide(a_high, a_low, b_high, b_low):
    zero = a_high * 0
    found_high, found_low = zero, zero
    for _ in tl.static_range(3):
        quotient = a_high / b_high
        taken = _multiply(b_high, b_low, -quotient, zero)
        a_high, a_low = _add(a_high, a_low, taken[0], taken[1])
        found_high, found_low = _add(found_high, found_low, quotient, zero)
    return found_high, found_low


@jit()
def _square_root(a_high, a_low):
    root = tl.sqrt(a_high)
    square = _two_product(root, root)
    rest = _add(a_high, a_low, -square[0], -square[1])
    high, low = _two_sum(root, (rest[0] + rest[1]) / (2 * root))
    square = _multiply(high, low, high, low)
    again = _add(a_high, a_low, -square[0], -square[1])
    return _joined_sum(high, low + (again[0] + again[1]) / (2 * root))


@jit()
def _series(x_high, x_low, terms, TERMS: tl.constexpr):
    """Σ terms_k x^k, by Horner's rule."""
    zero = x_high * 0
    high, low = zero + tl.load(terms + 2 * TERMS - 2), zero + tl.load(terms + 2 * TERMS - 1)
    for k in range(1, TERMS):
        place = terms + 2 * (TERMS - 1 - k)
        high, low = _multiply(high, low, x_high, x_low)
        high, low = _add(high, low, zero + tl.load(place), zero + tl.load(place + 1))
    return high, low


@jit()
def _logarithm(high, low, table):
    bits = high.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1022  # as frexp's: the mantissa in [½, 1)
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | (1022 << 52)).to(tl.float64, bitcast=True)
    root_half = tl.full(high.shape, 0.7071067811865476, tl.float64)
    exponent -= (mantissa < root_half).to(tl.int64)
    scale = ((1023 - exponent) << 52).to(tl.float64, bitcast=True)
    one, zero = high * 0 + 1, high * 0
    m_high, m_low = high * scale, low * scale
    below, above = _add(m_high, m_low, -one, zero), _add(m_high, m_low, one, zero)
    z = _divide(below[0], below[1], above[0], above[1])
    square = _multiply(z[0], z[1], z[0], z[1])
    power = _multiply(exponent.to(tl.float64), zero, zero + tl.load(table), zero + tl.load(table + 1))
    series = _series(square[0], square[1], table + 4, 24)
    series = _multiply(z[0], z[1], series[0], series[1])
    return _add(power[0], power[1], series[0], series[1])
