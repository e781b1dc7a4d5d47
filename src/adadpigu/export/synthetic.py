"""Synthetic records, by which an exported model is traced and compared. Nobody's: only a shape and a range are given.

A traced program is saved with the inputs that it was traced with, so a real record must never be among them; hence
a description of records is asked for here, and no example.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adadpigu.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """What a record looks like: numbers of a shape, or whole numbers from 0 to below a bound (tokens, categories).

    >>> Synthetic(shape=(1, 8, 8)).draw(3).shape, Synthetic(shape=(5,), below=10).draw(2).dtype
    (torch.Size([3, 1, 8, 8]), torch.int64)
    """

    shape: tuple[int, ...]
    below: int | None = None

    def __post_init__(self) -> None:
        if not all(type(side) is int and side >= 1 for side in self.shape):
            raise InputError(f"shape={self.shape!r}; allowed: the sides of one record, whole numbers of at least 1")
        if self.below is not None and not (type(self.below) is int and self.below >= 1):
            raise InputError(f"below={self.below!r}; allowed: None for numbers, or a whole number of at least 1")

    def draw(self, count: int, seed: int = 0) -> Tensor:
        """So many records: whole numbers, or alternately from [0, 1] as images are and from a normal distribution."""
        chance = torch.Generator().manual_seed(seed)
        if self.below is not None:
            return torch.randint(self.below, (count, *self.shape), generator=chance)
        drawn = torch.rand(count, *self.shape, generator=chance)
        drawn[1::2] = torch.randn(drawn[1::2].shape, generator=chance)
        return drawn
