"""Images of random programs: small expression trees over the coordinates of a pixel, drawn afresh all the time. Public.

    program  = leaf | unary(program) | binary(program, program) | program at coordinates that another one displaces
    leaf     = a direction, a distance, an angle, a wave, the signed distance to a shape, smooth noise

A program's structure is shared by a few images; its numbers are each image's own. No record and no photograph enters.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.errors import require
from adadpigu.priors.random_images import RandomImages, mixed, shuffled, standardised, uniform

Field = Callable[[Tensor, Tensor], Tensor]
"""the values [n, side, side] of n images at coordinates x and y, which a program may displace"""

_SHARED = 16
"""images of one program"""
_SMOOTH = 6
"""points a side of smooth noise"""


@dataclass(frozen=True, kw_only=True)
class ProgramImages(RandomImages):
    """Images of random processes, of which a third of the textures, on leaves and behind them, are random programs."""

    deepest: int = 4
    """expressions in one another, at most"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.deepest >= 1, f"deepest={self.deepest} is not 1 or more")

    def textures(self, count: int, rng: torch.Generator) -> Tensor:
        """Coloured noise, images of untrained nets and of random programs, a third each; in random order."""
        drawn = count // 3
        made = torch.cat([super().textures(count - drawn, rng), program_images(drawn, self.side, self.deepest, rng)])
        return shuffled(made, rng)


def program_images(count: int, side: int, deepest: int, rng: torch.Generator) -> Tensor:
    """Images [count, 3, side, side] of mean 0 and variance 1 each; every few have a program of their own."""
    where = torch.linspace(-1, 1, side, device=rng.device)
    parts = []
    for start in range(0, count, _SHARED):
        own = min(_SHARED, count - start)
        # The structure is chosen on the host, by where the generator stands: its state needs no wait for a GPU.
        choice = random.Random(rng.get_state().numpy().tobytes())  # noqa: S311
        draw = _Draw(choice=choice, rng=rng, count=own)
        x, y = where.expand(own, side, side), where[:, None].expand(own, side, side)
        planes = torch.stack([draw.program(choice.randint(1, deepest))(x, y) for _ in range(3)], 1)
        parts.append(standardised(mixed(_tamed(planes), rng)))
    return torch.cat(parts) if parts else torch.empty(0, 3, side, side, device=rng.device)


def _tamed(planes: Tensor) -> Tensor:
    """Each plane to mean 0 and variance 1; one that is constant to 0. Numbers that overflowed become 0 first."""
    planes = torch.nan_to_num(planes, nan=0.0, posinf=0.0, neginf=0.0).clamp(-1e3, 1e3)
    deviation, mean = torch.std_mean(planes, dim=(2, 3), correction=0, keepdim=True)
    return (planes - mean) / (deviation + 1e-3)


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """Draws expressions for a group of images: what they are by `choice`, each image's numbers by `rng`."""

    choice: random.Random
    rng: torch.Generator
    count: int

    def number(self, low: float, high: float) -> Tensor:
        """One number an image, [n, 1, 1]."""
        return uniform(self.count, self.rng, low, high)[:, None, None]

    def scale(self, low: float, high: float) -> Tensor:
        """One number an image, its logarithm uniform."""
        return self.number(math.log(low), math.log(high)).exp()

    def program(self, depth: int) -> Field:
        if depth == 1:
            return self.choice.choice((self.direction, self.distance, self.angle, self.wave, self.shape, self.noise))()
        kind = self.choice.choice((self.unary, self.binary, self.warped, self.selected))
        return kind(depth - 1)

    def place(self) -> tuple[Tensor, Tensor]:
        return self.number(-1, 1), self.number(-1, 1)

    def direction(self) -> Field:
        turn, scale = self.number(0, 2 * math.pi), self.scale(0.5, 3)
        return lambda x, y: scale * (turn.cos() * x + turn.sin() * y)

    def distance(self) -> Field:
        (a, b), power, scale = self.place(), self.scale(0.7, 6), self.scale(0.5, 4)
        return lambda x, y: scale * _length(x - a, y - b, power)

    def angle(self) -> Field:
        (a, b), times = self.place(), self.choice.randint(1, 6)
        turn = self.number(0, 2 * math.pi)
        return lambda x, y: torch.sin(times * torch.atan2(y - b, x - a) + turn)

    def wave(self) -> Field:
        along, frequency, phase = self.direction(), self.scale(1, 10), self.number(0, 2 * math.pi)
        return lambda x, y: torch.sin(frequency * along(x, y) + phase)

    def shape(self) -> Field:
        """The signed distance to a polygon, ring or box, as an edge of some softness."""
        (a, b), turn, size = self.place(), self.number(0, 2 * math.pi), self.scale(0.1, 0.8)
        corners, softness = self.choice.choice((3, 4, 5, 6, 0)), self.scale(0.01, 0.3)
        ring = self.choice.random() < 0.3

        def field(x: Tensor, y: Tensor) -> Tensor:
            radius = _length(x - a, y - b, torch.full_like(a, 2.0))
            if corners:  # how far the nearest side's line is, in the sector of that side
                sector = 2 * math.pi / corners
                way = torch.remainder(torch.atan2(y - b, x - a) + turn, sector) - sector / 2
                radius = radius * way.cos()
            edge = radius - size
            return torch.tanh((edge.abs() - size / 4 if ring else edge) / softness)

        return field

    def noise(self) -> Field:
        points = torch.randn(self.count, 1, _SMOOTH, _SMOOTH, generator=self.rng, device=self.rng.device)
        zoom = self.scale(0.4, 1.5)

        def field(x: Tensor, y: Tensor) -> Tensor:
            where = torch.stack([zoom * x, zoom * y], 3)
            return F.grid_sample(points, where, mode="bicubic", padding_mode="reflection", align_corners=False)[:, 0]

        return field

    def unary(self, depth: int) -> Field:
        inner, factor, shift = self.program(depth), self.scale(0.7, 5), self.number(-1, 1)
        function = self.choice.choice(_UNARY)
        return lambda x, y: function(factor * inner(x, y) + shift)

    def binary(self, depth: int) -> Field:
        first, second, share = self.program(depth), self.program(depth), self.number(0.2, 0.8)
        function = self.choice.choice(_BINARY)
        return lambda x, y: function(2 * share * first(x, y), 2 * (1 - share) * second(x, y))

    def warped(self, depth: int) -> Field:
        inner, across, down = self.program(depth), self.program(1), self.program(1)
        strength = self.scale(0.05, 0.6)
        return lambda x, y: inner(x + strength * across(x, y), y + strength * down(x, y))

    def selected(self, depth: int) -> Field:
        where, first, second = self.program(depth), self.program(depth), self.program(1)
        sharpness = self.scale(1, 30)
        return lambda x, y: torch.lerp(first(x, y), second(x, y), torch.sigmoid(sharpness * where(x, y)))


def _length(x: Tensor, y: Tensor, power: Tensor) -> Tensor:
    return (x.abs().add(1e-4).pow(power) + y.abs().add(1e-4).pow(power)).pow(1 / power)


_UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sin,
    torch.tanh,
    torch.abs,
    torch.square,
    lambda f: torch.sin(f.square()),
    lambda f: (torch.remainder(f, 2) - 1).abs(),  # folded
    lambda f: torch.round(f) + 0.3 * f,  # stairs
    lambda f: torch.exp(-f.square()),
)
_BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.mul,
    torch.minimum,
    torch.maximum,
    lambda f, g: torch.sin(4 * f) * g,
    lambda f, g: torch.atan2(f, g.abs() + 0.1),
)
