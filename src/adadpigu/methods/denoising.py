"""Denoising a release: after the noise, with its public standard deviation s, so it is free. An option of the run.

    james-stein   v_l ← max(0, 1 − (d_l − 2)s²/‖v_l‖²)·v_l            positive part, one factor a layer
    soft          v_lj ← sign(v_lj)·max(0, |v_lj| − s√(2 ln d_l))      entry by entry

v_l are the d_l active entries of layer l in the released sum, in standardised units, where every entry has the same
noise N(0, s²). James–Stein's mean square error is below the release's own d_l·s² whatever the mean is, for d_l ≥ 3;
with fewer entries (where its factor could only amplify) a layer is left alone.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adadpigu.core.mechanism import Release

LEAST = 3
"""entries of a layer that is denoised"""


def james_stein(values: Tensor, count: Tensor, stddev: float) -> Tensor:
    """Positive-part James–Stein of one layer; `count` of its values are active, the others zero.

    >>> james_stein(torch.tensor([3.0, 0.0, 4.0, 0.0]), torch.tensor(4), 2.0)
    tensor([2.0400, 0.0000, 2.7200, 0.0000])
    """
    square = values.square().sum()
    kept = 1 - (count - 2) * stddev**2 / torch.where(square > 0, square, 1.0)
    return values * kept.clamp(min=0)


def soft_threshold(values: Tensor, count: Tensor, stddev: float) -> Tensor:
    """Every value moved towards 0 by what the largest of `count` noises is about."""
    threshold = stddev * torch.sqrt(2 * torch.log(count.to(values.dtype)))
    return values.sign() * (values.abs() - threshold).clamp(min=0)


_DENOISERS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"james-stein": james_stein, "soft": soft_threshold}


def denoised(released: Release, kind: str, sizes: Sequence[int]) -> Release:
    """A release as its sum came from the mechanism, denoised in blocks of so many entries in a row."""
    if not released.noise_stddev:
        return released
    active, stddev, shrink = released.active, released.noise_stddev, _DENOISERS[kind]

    def function(values: Tensor) -> Tensor:
        here = torch.ones_like(values, dtype=torch.bool) if active is None else active
        parts = zip(torch.split(values.double(), list(sizes)), torch.split(here, list(sizes)), strict=True)
        made = [(part, mask.sum()) for part, mask in parts]
        shrunk = [torch.where(count >= LEAST, shrink(part, count.clamp(min=1), stddev), part) for part, count in made]
        return torch.cat(shrunk).to(values.dtype)

    return released.map(function)
