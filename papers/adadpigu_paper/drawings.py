"""Process images that are mixtures of textures, and drawings: random strokes on a ground. Public.

    texture  = lerp(texture, texture, σ(k · plane of a third one))
    drawing  = lerp(ground, ink, σ((w − distance to the nearest stroke)/s)), strokes as cubic Bézier curves

Many small programs, mixed, teach more than few: Baradad et al. (2022). Strokes are what written digits consist of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adadpigu.errors import require
from adadpigu.priors.random_images import normal, shuffled, uniform
from adadpigu_paper.programs import ProgramImages

_STROKES = 4
"""at most, in a drawing"""
_PIECES = 10
"""straight pieces of a stroke"""
_FAR = 10.0


@dataclass(frozen=True, kw_only=True)
class MixedImages(ProgramImages):
    """Images of random processes: a third of the textures mixed of others, one image in so many a drawing."""

    one_in: int = 6
    """images, of which one is a drawing"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.one_in >= 1, f"one_in={self.one_in} is not 1 or more")

    def __call__(self, count: int, rng: torch.Generator) -> Tensor:
        drawn = count // self.one_in
        return shuffled(torch.cat([super().__call__(count - drawn, rng), drawings(drawn, self.side, rng)]), rng)

    def textures(self, count: int, rng: torch.Generator) -> Tensor:
        """As without mixtures, of which a third are then mixed with their neighbours."""
        made = super().textures(count, rng)
        sharpness = uniform(count, rng, 0, 2.5).exp()[:, None, None, None]
        share = torch.sigmoid(sharpness * made.roll(2, 0)[:, :1])
        mixtures = torch.lerp(made, made.roll(1, 0), share)
        plain = uniform(count, rng, 0, 1) < 2 / 3
        return torch.where(plain[:, None, None, None], made, mixtures)


def drawings(count: int, side: int, rng: torch.Generator) -> Tensor:
    """Strokes on a ground, [count, 3, side, side], with values from 0 to 1."""
    nearest = torch.full((count, side, side), _FAR, device=rng.device)
    for number in range(_STROKES):
        found = _distance(_stroke(count, rng), side)
        absent = uniform(count, rng, 0, 1) * number > 1  # the first two are there
        nearest = torch.minimum(nearest, torch.where(absent[:, None, None], _FAR, found))
    width, softness = (uniform(count, rng, *map(math.log, bounds)).exp() for bounds in ((0.03, 0.2), (0.01, 0.04)))
    cover = torch.sigmoid((width[:, None, None] - nearest) / softness[:, None, None])[:, None]
    ground, ink = (_colour(count, rng) for _ in range(2))
    return torch.lerp(ground, ink, cover).expand(-1, 3, -1, -1).clamp(0, 1)


def _colour(count: int, rng: torch.Generator) -> Tensor:
    """Black, white or between, and more or less coloured, [count, 3, 1, 1]."""
    level, colour = uniform(count, rng, -0.3, 1.3)[:, None], 0.3 * normal((count, 3), rng)
    return (level + uniform(count, rng, -1, 1).clamp(min=0)[:, None] * colour).clamp(0, 1)[:, :, None, None]


def _stroke(count: int, rng: torch.Generator) -> Tensor:
    """Points along a cubic Bézier curve, [count, pieces + 1, 2]; its four corners keep together more or less."""
    spread = uniform(count, rng, 0.3, 1)[:, None, None]
    corners = uniform(2 * count, rng, -0.5, 0.5).reshape(count, 1, 2) + spread * (
        uniform(8 * count, rng, -1, 1).reshape(count, 4, 2)
    )
    t = torch.linspace(0, 1, _PIECES + 1, device=rng.device)
    weights = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], 1)
    return torch.einsum("pc,ncd->npd", weights, corners)


def _distance(points: Tensor, side: int) -> Tensor:
    """From each pixel to the nearest straight piece between successive points, [count, side, side]."""
    where = torch.linspace(-1, 1, side, device=points.device)
    start, way = points[:, :-1], points.diff(dim=1)
    across = where - start[:, :, 0, None, None]
    down = where[:, None] - start[:, :, 1, None, None]
    x, y = way[:, :, 0, None, None], way[:, :, 1, None, None]
    along = ((across * x + down * y) / (x.square() + y.square() + 1e-8)).clamp(0, 1)
    return ((across - along * x).square() + (down - along * y).square()).amin(1).sqrt()
