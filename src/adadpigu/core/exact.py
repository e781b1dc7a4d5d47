"""Tier `exact`: contributions, sums and noise are whole multiples of a grid, so that no rounding tells of a record.

    q_i = round(z̄_i/g),  Σ_j q_ij² ≤ N² in integers, N < C/g;   released: g·(Σ q_i + round(s Z)),  s = σC/g, Z ~ N(0, 1)

S + round(sZ) = round(S + sZ) for an integer sum S: the Gaussian mechanism, and post-processing. g is a power of two and
every number involved less than 2⁵³ of them, so that float64 holds each exactly. docs/theory-privacy.md has the proof.
"""

import math

import torch
from torch import Tensor

from adadpigu.core import double_double as dd
from adadpigu.core.randomness import DeviceChaCha, SystemRandomness, Tier
from adadpigu.errors import require

GRID_BITS = 20  # g is C·2⁻²⁰ or a little less, unless told otherwise
FINEST_BITS = 24  # with up to 2²⁸ records a sum then stays below 2⁵³ of its steps
SAMPLER_ERROR = 2.0**-95
"""times s: the distance (total variation) of one number of noise from round(sZ), at most"""
_TWO_53, _TWO_52 = 2**53, 2**52
_AT_ONCE = 2**14  # pairs of numbers that are made together
_ROWS = 64  # that are rounded while they are in the cache


def grid_of(clip_norm: float, asked: float | None = None) -> float:
    """g: the power of two at or below C·2⁻²⁰, or below what is asked for."""
    wanted = clip_norm * 2.0**-GRID_BITS if asked is None else asked
    return 2.0 ** math.floor(math.log2(wanted))


def whole_bound(clip_norm: float, grid: float) -> int:
    """N: what an integer contribution may have as its norm; the noise covers C, which is a grid point more at least."""
    return math.floor(clip_norm / grid) - 1


def check_grid(clip_norm: float, grid: float, length: int) -> None:
    """Refuses a grid on which rounding alone could take up half of the bound, or on which sums would not be exact."""
    coarsest, finest = clip_norm / (math.sqrt(length) + 6), clip_norm * 2.0**-FINEST_BITS
    told = f"for clip_norm={clip_norm:g} and {length:,} numbers; allowed: {finest:.3g} to {coarsest:.3g}"
    require(grid <= coarsest, f"grid={grid:g} is too coarse {told}")
    require(grid >= finest / 2, f"grid={grid:g} is too fine {told}")


def sampler_delta(epsilon: float, numbers: float, noise_multiplier: float, *, finer: bool) -> float:
    """What the sampler's error adds to δ at most, over so many numbers of noise: (1 + e^ε) τ for each."""
    scale = noise_multiplier * 2.0 ** ((FINEST_BITS if finer else GRID_BITS) + 1)
    return (1 + math.exp(min(epsilon, 700.0))) * numbers * scale * SAMPLER_ERROR


def exact_total(z: Tensor, clip_norm: float, grid: float, factors: Tensor) -> Tensor:
    """Σ g q_i of float64 rows whose clip `factors` aim at `rounded_below`. Overwrites z.

    A row that is not within N adds zero. Squares and sums of what is within are whole numbers below 2⁵³, so float64 has
    them exactly in any order; a sum that is rounded is far above N².
    """
    total = z.new_zeros(z.shape[1])
    for part, scale in zip(torch.split(z, _ROWS), torch.split(factors / grid, _ROWS), strict=True):
        whole = part.mul_(scale[:, None]).masked_fill_((scale == 0)[:, None], 0.0).round_()
        within = torch.linalg.vecdot(whole, whole) <= whole_bound(clip_norm, grid) ** 2
        total += within.double() @ whole.masked_fill_(~within[:, None], 0.0)
    return total * grid


def rounded_below(clip_norm: float, grid: float, length: int) -> float:
    """What a row is clipped to, so that rounding its entries cannot bring it above N."""
    return clip_norm - grid * (math.sqrt(length) / 2 + 3)


class ExactRandomness(SystemRandomness):
    """The coins of `SystemRandomness`, and Gaussian noise rounded to whole numbers.

    Formal guarantee: numbers of `rounded` are independent, each within s·2⁻⁹⁵ of round(sZ) in total variation. They are
    Box-Muller pairs of two 105-bit uniforms and three bits, reckoned to a relative error below 2⁻¹⁰⁰ by the same
    operations whatever the numbers are.
    """

    description = (
        "ChaCha20, 256-bit key from the operating system; contributions, sums and rounded Gaussian noise are whole "
        "multiples of a grid (tier exact)"
    )
    tier: Tier = "exact"

    _ready: tuple[dd.Pair, int]

    def _rekey(self) -> None:
        super()._rekey()
        empty = torch.zeros(0, dtype=torch.float64)
        self._ready = (empty, empty), 0  # normal numbers that nobody has taken; a forked process takes none of them

    def rounded(self, count: int, scale: float) -> Tensor:
        """round(scale·Z) as float64, `count` times."""
        (high, low), taken = self._ready
        if len(high) - taken < count:
            bits = self._bits(max(_AT_ONCE, -(-count // 2)))
            high, low = (
                torch.cat([old[taken:], new]) for old, new in zip((high, low), normal_pairs(*bits), strict=True)
            )
            taken = 0
        own = slice(taken, taken + count)
        self._ready = (high, low), taken + count
        return nearest_multiple((high[own], low[own]), scale)

    def _bits(self, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
        """Two uniforms as pairs of whole numbers, of 53 and of 52 bits, and three bits."""
        draw = self._generator.integers
        high, low = draw(_TWO_53, size=(2, pairs)), draw(_TWO_52, size=(2, pairs))
        return torch.from_numpy(high), torch.from_numpy(low), torch.from_numpy(draw(8, size=pairs))


class DeviceExact(DeviceChaCha):
    """Tier `exact` on a device: what `ExactRandomness` makes of the same bits, by a kernel."""

    description = (
        "ChaCha20 on the GPU, 256-bit keys from the operating system; contributions, sums and rounded Gaussian noise "
        "are whole multiples of a grid (tier exact)"
    )
    tier: Tier = "exact"

    def _warm_up(self) -> None:
        super()._warm_up()
        self.rounded(1, 1.5)

    def rounded(self, count: int, scale: float) -> Tensor:
        """round(scale·Z) as float64, `count` times."""
        return self._drawn.rounded(count, scale)


def normal_pairs(high: Tensor, low: Tensor, bits: Tensor) -> dd.Pair:
    """[2p] standard normals of [2, p] uniforms (high·2⁵² + low + ½)·2⁻¹⁰⁵ and [p] bits: swap and two signs."""
    uniform = dd.two_sum(high.double() * 2.0**-53, (low.double() + 0.5) * 2.0**-105)
    logarithm = dd.logarithm((uniform[0][0], uniform[1][0]))
    radius = dd.square_root((-2 * logarithm[0], -2 * logarithm[1]))
    quarter = torch.full_like(radius[0], dd.QUARTER[0]), torch.full_like(radius[0], dd.QUARTER[1])
    cosine, sine = dd.cosine_and_sine(dd.multiply((uniform[0][1], uniform[1][1]), quarter))
    swapped = (bits & 1).bool()
    made = []
    for (one, other), shift in (((sine, cosine), 1), ((cosine, sine), 2)):
        sign = 1.0 - 2.0 * ((bits >> shift) & 1).double()
        part = [torch.where(swapped, a, b) * sign for a, b in zip(one, other, strict=True)]
        made.append(dd.multiply(radius, (part[0], part[1])))
    return torch.cat([made[0][0], made[1][0]]), torch.cat([made[0][1], made[1][1]])


def nearest_multiple(a: dd.Pair, scale: float) -> Tensor:
    """The whole number nearest to scale·a. Of the product's parts, the larger less its own nearest one is exact, and
    the sign of a sum of two float64 numbers is right."""
    high, low = dd.multiply((torch.full_like(a[0], scale), torch.zeros_like(a[0])), a)
    whole = torch.round(high)
    rest = high - whole
    up, down = (rest - 0.5) + low > 0, (rest + 0.5) + low < 0
    return whole + up.double() - down.double()
