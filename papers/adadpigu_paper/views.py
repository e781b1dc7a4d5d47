"""Views of an image: what contrastive learning must see as the same thing. Crops, mirror images, other colours, gray.

Images of random processes come in, never records. Each image is changed on its own, all at once on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.errors import InputError
from adadpigu.priors.random_images import uniform

_GRAY = (0.299, 0.587, 0.114)
"""how bright the three colours seem"""


@dataclass(frozen=True, kw_only=True)
class Views:
    """A random view [n, 3, side, side] of each image [n, 3, h, w].

    >>> Views(side=32)(torch.rand(2, 3, 48, 48), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """

    side: int = 32
    smallest: float = 0.2
    """share of the image's area that a crop has at least"""
    jitter: float = 0.4
    """how far brightness, contrast and saturation go up or down"""
    hue: float = 0.1
    """how far colours turn, of a full turn"""
    gray: float = 0.2
    """chance that a view is gray"""

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= 1:
            raise InputError(f"smallest={self.smallest} is not above 0 and at most 1")
        for name in ("jitter", "hue", "gray"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)} is not from 0 to 1")

    def __call__(self, images: Tensor, chance: torch.Generator) -> Tensor:
        return self.coloured(self.cropped(images, chance), chance).clamp_(0, 1)

    def cropped(self, images: Tensor, chance: torch.Generator) -> Tensor:
        """A crop of random area, place and shape, mirrored or not."""
        count = len(images)
        area = uniform(count, chance, self.smallest, 1)
        shape = uniform(count, chance, math.log(3 / 4), math.log(4 / 3)).exp()
        width, height = ((area * s).sqrt().clamp(max=1) for s in (shape, 1 / shape))
        across = (1 - width) * uniform(count, chance, -1, 1)
        down = (1 - height) * uniform(count, chance, -1, 1)
        mirrored = uniform(count, chance, -1, 1).sign()
        zero = torch.zeros_like(across)
        rows = torch.stack([mirrored * width, zero, across, zero, height, down], 1).reshape(count, 2, 3)
        where = F.affine_grid(rows, [count, 3, self.side, self.side], align_corners=False)
        return F.grid_sample(images, where, mode="bilinear", padding_mode="reflection", align_corners=False)

    def coloured(self, images: Tensor, chance: torch.Generator) -> Tensor:
        """Other brightness, contrast, saturation and hue; some gray."""
        count = len(images)
        brightness, contrast, saturation = (
            uniform(count, chance, 1 - self.jitter, 1 + self.jitter)[:, None, None, None] for _ in range(3)
        )
        weights = torch.tensor(_GRAY, device=images.device)[:, None, None]
        images = images * brightness
        level = (images * weights).sum(1, keepdim=True)
        middle = level.mean((2, 3), keepdim=True)
        level, images = (middle + contrast * (x - middle) for x in (level, images))
        colour = _turned(images - level, 2 * math.pi * uniform(count, chance, -self.hue, self.hue))
        saturation = saturation * (uniform(count, chance, 0, 1) >= self.gray)[:, None, None, None]
        return level + saturation * colour


def _turned(colour: Tensor, angle: Tensor) -> Tensor:
    """Colours turned about the gray axis, each image by its own angle (Rodrigues' formula)."""
    cosine, sine = angle.cos(), angle.sin()
    third = (1 - cosine) / 3
    forth, back = third - sine / math.sqrt(3), third + sine / math.sqrt(3)
    same = cosine + third
    rows = torch.stack([same, forth, back, back, same, forth, forth, back, same], 1).reshape(-1, 3, 3)
    return torch.einsum("nij,njhw->nihw", rows, colour)
