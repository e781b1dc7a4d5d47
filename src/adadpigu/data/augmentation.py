"""Augmentation: each copy of a record is shifted and flipped on its own. Sensitive in, sensitive out; nothing is kept.

k copies of one record share one gradient, their mean, so a record is still clipped once and nothing more is charged.
What is drawn here comes from the global generators, which run on the privacy generator during a draw.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.errors import InputError, require


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """k copies of each image, each shifted by up to `shift` pixels either way and perhaps mirrored.

    What moves in at an edge is the image reflected there.
    """

    copies: int = 1
    shift: int = 0
    shift_step: int = 1  # shifts are multiples of this
    flip: bool = False

    def __post_init__(self) -> None:
        for name, least in (("copies", 1), ("shift", 0), ("shift_step", 1)):
            require(getattr(self, name) >= least, f"{name}={getattr(self, name)} is not at least {least}")
        multiple = self.shift % self.shift_step == 0
        require(multiple, f"shift={self.shift} is not a multiple of shift_step={self.shift_step}")
        fault = f"copies={self.copies} with shift=0 and flip=False: the copies of a record would be equal"
        require(self.copies == 1 or self, f"{fault}; allowed: one copy, or a shift or flip")

    def __bool__(self) -> bool:
        return self.shift > 0 or self.flip

    @property
    def variants(self) -> int:
        """How many different copies of an image there are."""
        return self._places**2 * (2 if self.flip else 1)

    @property
    def _places(self) -> int:
        """Shifts along one axis."""
        return 2 * self.shift // self.shift_step + 1

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuses records that are not images, or too small for the shift."""
        if self:
            images = len(shape) == 3
            require(images, f"shift={self.shift}, flip={self.flip} need images (channels, height, width), not {shape}")
            pixels = min(shape[1:])
            require(self.shift < pixels, f"shift={self.shift} is not below the image's {pixels} pixels")

    @property
    def plain(self) -> int:
        """The variant that is the image itself."""
        middle = self._places // 2
        return middle * self._places + middle

    def draw(self, records: int, device: torch.device) -> Tensor:
        """A variant for each copy of each record [b·k], uniformly; a further record changes no other's draw.

        Where copies are a multiple of the variants, each is shown equally often: nothing is left to chance.
        """
        if self.copies % self.variants == 0:
            return torch.arange(records * self.copies, device=device) % self.variants
        drawn = torch.rand(records * self.copies, device=device, dtype=torch.float64)
        return (drawn * self.variants).long().clamp_(max=self.variants - 1)

    def show(self, images: Tensor, variants: Tensor) -> Tensor:
        """[b, c, h, w] and a variant for each of them: the images so shifted and mirrored."""
        channels, height, width = images.shape[1:]
        across = torch.arange(width, device=images.device)
        places = self._places
        row = variants % places * self.shift_step
        column = variants // places % places * self.shift_step
        rows = row[:, None] + torch.arange(height, device=images.device)
        columns = column[:, None] + torch.where((variants // places**2 == 1)[:, None], across.flip(0), across)
        padded = F.pad(images, (self.shift,) * 4, mode="reflect") if self.shift else images
        which = torch.arange(len(images), device=images.device)
        planes = torch.arange(channels, device=images.device)
        return padded[which[:, None, None, None], planes[:, None, None], rows[:, None, :, None], columns[:, None, None]]

    def show_one(self, images: Tensor, variant: int) -> Tensor:
        """As `show`, one variant for all images."""
        places, (height, width) = self._places, images.shape[2:]
        row, column = (place * self.shift_step for place in (variant % places, variant // places % places))
        padded = F.pad(images, (self.shift,) * 4, mode="reflect") if self.shift else images
        moved = padded[:, :, row : row + height, column : column + width]
        return moved.flip(3) if variant // places**2 else moved

    def __call__(self, images: Tensor) -> Tensor:
        """[b, c, h, w] -> [b·k, c, h, w], the copies of one image one after the other."""
        copies = images.repeat_interleave(self.copies, dim=0)
        return self.show(copies, self.draw(len(images), images.device)) if self and len(images) else copies


def parse_views(text: str) -> Augmentation:
    """The views of an image whose outputs a model averages: of `shift:N`, the image and its shifts by N pixels.

    >>> parse_views("mirror").variants, parse_views("mirror+shift:2").variants, parse_views("none").variants
    (2, 18, 1)
    """
    found = re.fullmatch(r"none|mirror|(?:mirror\+)?shift:([1-9]\d?)", text)
    if found is None:
        raise InputError(f"views={text!r}; allowed: none, mirror, shift:PIXELS, mirror+shift:PIXELS")
    shift = int(found[1] or 0)
    return Augmentation(flip=text.startswith("mirror"), shift=shift, shift_step=max(1, shift))
