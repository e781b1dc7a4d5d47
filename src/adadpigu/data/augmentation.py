"""Augmentation: each copy of a record is shifted and flipped on its own. Sensitive in, sensitive out; nothing is kept.

k copies of one record share one gradient, their mean, so a record is still clipped once and nothing more is charged.
What is drawn here comes from the global generators, which run on the privacy generator during a draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """k copies of each image, each shifted by up to `shift` pixels either way and perhaps mirrored.

    What moves in at an edge is the image reflected there.
    """

    copies: int = 1
    shift: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise InputError(f"copies={self.copies} is not at least 1")
        if self.shift < 0:
            raise InputError(f"shift={self.shift} is not at least 0")
        if self.copies > 1 and not self:
            raise InputError(
                f"copies={self.copies} with shift=0 and flip=False: the copies of a record would be equal; "
                "allowed: one copy, or a shift or flip"
            )

    def __bool__(self) -> bool:
        """Whether anything is changed."""
        return self.shift > 0 or self.flip

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuses records that are not images, or too small for the shift."""
        if self and len(shape) != 3:
            raise InputError(f"shift={self.shift}, flip={self.flip} need images (channels, height, width), not {shape}")
        if self and self.shift >= min(shape[1:]):
            raise InputError(f"shift={self.shift} is not below the image's {min(shape[1:])} pixels")

    def __call__(self, images: Tensor) -> Tensor:
        """[b, c, h, w] -> [b·k, c, h, w], the copies of one image one after the other."""
        if not self or not len(images):
            return images.repeat_interleave(self.copies, dim=0)
        count, (channels, height, width), device = len(images) * self.copies, images.shape[1:], images.device
        span = 2 * self.shift + 1
        drawn = torch.rand(count, 3, device=device)  # row by row, so that a further record changes no other's draw
        corner = (drawn[:, :2] * span).long().clamp_(max=span - 1)
        rows = corner[:, :1] + torch.arange(height, device=device)
        columns = corner[:, 1:] + torch.arange(width, device=device)
        if self.flip:
            columns = torch.where(drawn[:, 2:] < 0.5, columns.flip(1), columns)
        padded = F.pad(images, (self.shift,) * 4, mode="reflect") if self.shift else images
        which = torch.arange(len(images), device=device).repeat_interleave(self.copies)
        planes = torch.arange(channels, device=device)
        return padded[which[:, None, None, None], planes[:, None, None], rows[:, None, :, None], columns[:, None, None]]
