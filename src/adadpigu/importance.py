"""Releases -> importance scores -> ranking -> mask schedule (stage 1). Stands after the noise: public.

    absolute  s_j = Σ_t |g̃_tj| / T_pre      signed  s_j = |Σ_t g̃_tj| / T_pre      energy  s_j = Σ_t g̃_tj² / T_pre

The published code sums the un-noised gradient; here nothing but a `Release` is taken. `random` and `public` look at
none: scores are drawn before training, so that one sees what importance is worth, or come from public images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.layout import Layout
from adadpigu.mechanism import Release, look
from adadpigu.state import State

Score = Literal["absolute", "signed", "energy", "random", "public"]
Schedule = Literal["constant", "linear", "cosine", "steps"]

_TERMS: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute": torch.Tensor.abs,
    "signed": lambda gradient: gradient,
    "energy": torch.Tensor.square,
    "random": torch.zeros_like,
    "public": torch.zeros_like,
}


class Importance:
    """Accumulates a score for each coordinate from noisy mean gradients."""

    def __init__(
        self,
        size: int,
        score: Score = "absolute",
        device: torch.device | None = None,
        chance: np.random.Generator | None = None,
    ) -> None:
        """`chance` draws the public scores of `random`."""
        if score not in _TERMS:
            raise InputError(f"score={score!r} is not one of {', '.join(get_args(Score))}")
        self._term = _TERMS[score]
        self._sum = torch.zeros(size, dtype=torch.float64, device=device)
        if score == "random":
            if chance is None:
                raise InputError("score='random' without a generator to draw it; allowed: with `chance`")
            self._sum += torch.from_numpy(chance.random(size)).to(self._sum.device)
        self._count = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, gradient: Release) -> None:
        """Takes the release of one stage-1 step."""
        self._sum += self._term(look(gradient)[0].double().to(self._sum.device))
        self._count += 1

    def take_public(self, scores: Tensor) -> None:
        """Takes scores, [d], that no record had a part in."""
        self._sum.copy_(scores)
        self._count.fill_(1)

    def state(self) -> State:
        return {"sum": self._sum, "count": self._count}

    def load(self, state: State) -> None:
        self._sum.copy_(state["sum"])
        self._count.copy_(state["count"])

    @property
    def scores(self) -> Tensor:
        """s_j, the mean over the steps taken so far (the absolute value matters to `signed` alone)."""
        return self._sum.abs() / self._count.clamp(min=1)

    def ranking(self) -> Tensor:
        """Coordinates by score, descending, ties broken by index."""
        return rank(self.scores)


def rank(scores: Tensor) -> Tensor:
    """Positions in order of descending score, ties broken by index.

    >>> rank(torch.tensor([1.0, 3.0, 1.0, 2.0])).tolist()
    [1, 3, 0, 2]
    """
    return torch.argsort(scores, descending=True, stable=True)


def chosen(ranking: Tensor, count: int) -> Tensor:
    """The mask of the first `count` positions of a ranking.

    >>> chosen(torch.tensor([2, 0, 1]), 2).tolist()
    [True, False, True]
    """
    mask = torch.zeros(len(ranking), dtype=torch.bool, device=ranking.device)
    return mask.index_fill_(0, ranking[:count], True)


@dataclass(frozen=True, kw_only=True)
class MaskSchedule:
    """r_t, the share of coordinates that may change: from `retention` r to 1 (progressive unfreezing).

    `constant` stays at r. `linear` and `cosine` grow smoothly and reach 1 at `unfreeze_by`, a share of the steps;
    `steps` grows in `stairs` equal stairs over the same span.

    >>> schedule = MaskSchedule(retention=0.5, kind="linear", unfreeze_by=1.0)
    >>> [schedule.ratio(t, 5) for t in range(5)]
    [0.5, 0.625, 0.75, 0.875, 1.0]
    """

    retention: float
    kind: Schedule = "constant"
    unfreeze_by: float = 1.0
    stairs: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.retention <= 1:
            raise InputError(f"retention={self.retention} is not in (0, 1]")
        if self.kind not in get_args(Schedule):
            raise InputError(f"schedule={self.kind!r} is not one of {', '.join(get_args(Schedule))}")
        if not 0 < self.unfreeze_by <= 1:
            raise InputError(f"unfreeze_by={self.unfreeze_by} is not in (0, 1]")
        if self.stairs < 1:
            raise InputError(f"stairs={self.stairs} is not at least 1")

    def ratio(self, step: int, steps: int) -> float:
        """r_t for step t = 0 … steps − 1 of the stage."""
        span = max(self.unfreeze_by * (steps - 1), 1e-9)
        progress = min(step / span, 1.0)
        if self.kind == "constant":
            progress = 0.0
        elif self.kind == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        elif self.kind == "steps":
            progress = math.floor(progress * self.stairs) / self.stairs
        return self.retention + (1 - self.retention) * progress

    def count(self, size: int, step: int, steps: int) -> int:
        """⌊r_t·d⌋, how many of d coordinates are active in step t: the first ones of the ranking."""
        count = math.floor(self.ratio(step, steps) * size + 1e-9)
        if count < 1:
            raise InputError(f"retention={self.retention} keeps none of {size} parameters")
        return count


class GrowingMask:
    """The mask of the first coordinates of a ranking, and who is in it: kept in one place while it grows.

    Its numbers (`count`, `trained`) are known without looking at the mask, for which a GPU would have to wait.
    """

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

    def newcomers(self) -> tuple[Tensor, Tensor]:
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
        return frozenset(number for number, first in enumerate(self._first) if first < self.count)
