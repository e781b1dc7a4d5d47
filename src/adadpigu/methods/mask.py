"""Which coordinates may change: how many by a schedule, and which ones by a ranking. Public."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from adadpigu.core.layout import Layout
from adadpigu.errors import InputError, require
from adadpigu.methods.base import Share, check_options

Schedule = Literal["constant", "linear", "cosine", "steps"]


def ramp(step: int, steps: int, *, by: float, kind: str) -> float:
    """How far a rise from 0 to 1 is at step 0 … steps − 1: linear or `cosine`, done after a share `by` of them."""
    progress = min(step / max(by * (steps - 1), 1e-9), 1.0)
    return (1 - math.cos(math.pi * progress)) / 2 if kind == "cosine" else progress


@dataclass(frozen=True, kw_only=True)
class MaskSchedule:
    """r_t, the share of coordinates that may change: from `retention` r to `unfreeze_to` (progressive unfreezing).

    `constant` stays at r. The others are done at `unfreeze_by`, a share of the steps; `steps` in `stairs` equal stairs.

    >>> schedule = MaskSchedule(retention=0.5, kind="linear", unfreeze_by=1.0)
    >>> [schedule.ratio(t, 5) for t in range(5)]
    [0.5, 0.625, 0.75, 0.875, 1.0]
    """

    retention: Share
    kind: Schedule = "constant"
    unfreeze_by: Share = 1.0
    unfreeze_to: Share = 1.0
    stairs: Annotated[int, "at least 1"] = 4

    def __post_init__(self) -> None:
        check_options(self)
        fits = self.retention <= self.unfreeze_to
        require(fits, f"unfreeze_to={self.unfreeze_to} is below retention={self.retention}; allowed: from it to 1")

    def ratio(self, step: int, steps: int) -> float:
        """r_t for step t = 0 … steps − 1 of the stage."""
        progress = 0.0 if self.kind == "constant" else ramp(step, steps, by=self.unfreeze_by, kind=self.kind)
        if self.kind == "steps":
            progress = math.floor(progress * self.stairs) / self.stairs
        return self.retention + (self.unfreeze_to - self.retention) * progress

    def count(self, size: int, step: int, steps: int) -> int:
        """⌊r_t·d⌋, how many of d coordinates are active in step t: the first ones of the ranking."""
        count = math.floor(self.ratio(step, steps) * size + 1e-9)
        if count < 1:
            raise InputError(f"retention={self.retention} keeps none of {size} parameters")
        return count


class GrowingMask:
    """The mask of the first coordinates of a ranking, changed in place; `count` and `trained` need no look at it."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.size = self.count = layout.size
        self._layout = layout
        self._place = torch.arange(layout.size, device=device)
        self._active = torch.ones(layout.size, dtype=torch.bool, device=device)
        self._target = torch.tensor(layout.size, device=device)
        self.grows = False
        self._first = [0] * len(layout.slots)

    def rank(self, ranking: Tensor) -> None:
        """Fixes the order in which coordinates become active."""
        ranking = ranking.to(self._place.device)
        self._place[ranking] = torch.arange(self.size, device=ranking.device)
        self._first = [int(self._place[slot.start : slot.stop].min()) for slot in self._layout.slots]

    def aim(self, count: int) -> None:
        """Says that the first `count` coordinates shall be active; `move` then makes them so, on the device."""
        self.grows = self.count < self.size and count > self.count
        self.count = count
        self._target.fill_(count)

    def returning(self) -> tuple[Tensor, Tensor]:
        """The masks of those that `move` will add and of those that are active so far."""
        return (self._place < self._target) & ~self._active, self._active

    def move(self) -> None:
        """Makes the coordinates active that `aim` has named."""
        torch.lt(self._place, self._target, out=self._active)

    @property
    def active(self) -> Tensor | None:
        """[d] of bool; None where all are."""
        return None if self.count == self.size else self._active

    def snapshot(self) -> Tensor | None:
        """`active` as it is now, for whoever keeps it."""
        return None if self.active is None else self._active.clone()

    @property
    def trained(self) -> frozenset[int] | None:
        """The parameters, by number, that have an active coordinate; None where all coordinates are."""
        if self.count == self.size:
            return None
        return frozenset([number for number, first in enumerate(self._first) if first < self.count])
