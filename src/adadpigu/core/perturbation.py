"""Perturbed clipping (Chen, Wu and Hong 2020): normal numbers ζ are added to a record's row before its clip. Sensitive.

    z̄_i = clip(z_i + ζ_i),   ζ_i ~ N(0, (κC/√k)² I) on the k active entries of the row

ζ_i is a function of one uniform number that is record i's own, tossed anew for each draw. Whatever these numbers are,
a record adds at most C and no other record has a part in what it adds. So sensitivity and charge are those of plain
clipping, and ζ never counts as privacy noise.
"""

import math

import torch
from torch import Tensor

from adadpigu.core.standardising import where_or_zero

_STEP, _FIRST, _SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""the constants of splitmix64, as int64 has them"""


def perturbed(z: Tensor, coins: Tensor, active: Tensor | None, size: float) -> Tensor:
    """z + ζ in place, with E‖ζ_i‖² = `size`²; entries that are not `active` (None: all are) stay as they are."""
    count = z.shape[1] if active is None else int(active.sum())
    zeta = normal_rows(coins, z.shape[1]).mul_(size / math.sqrt(max(1, count)))
    return z.add_(zeta if active is None else where_or_zero(active.to(z.device), zeta))


def normal_rows(coins: Tensor, length: int) -> Tensor:
    """[b, length] of standard normal numbers in float64, each row a function of its own coin in [0, 1), [b].

    Splitmix64 seeded by the coin's 53 bits; each of its words makes two numbers (Box and Muller), at most 6.7 in size.
    """
    seeds = (coins.double() * 2**53).long()[:, None]
    words = seeds + torch.arange(1, length // 2 + length % 2 + 1, device=coins.device) * _STEP
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    words = words ^ _shifted(words, 31)
    radius = ((_shifted(words, 32) + 1).double() * 2.0**-32).log_().mul_(-2).sqrt_()
    angle = (words & (2**32 - 1)).double() * (2 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :length]


def _shifted(words: Tensor, by: int) -> Tensor:
    """Moved to the right as unsigned words."""
    return torch.bitwise_and(words >> by, 2 ** (64 - by) - 1)
