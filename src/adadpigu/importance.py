"""Releases -> importance scores -> ranking -> mask schedule (stage 1). Stands after the noise: public.

    absolute  s_j = Σ_t |g̃_tj| / T_pre      signed  s_j = |Σ_t g̃_tj| / T_pre      energy  s_j = Σ_t g̃_tj² / T_pre

The published code sums the un-noised gradient; here nothing but a `Release` is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.mechanism import Release, require_release

Score = Literal["absolute", "signed", "energy"]
Schedule = Literal["constant", "linear", "cosine", "steps"]

_TERMS: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute": torch.Tensor.abs,
    "signed": lambda gradient: gradient,
    "energy": torch.Tensor.square,
}


class Importance:
    """Accumulates a score for each coordinate from noisy mean gradients."""

    def __init__(self, size: int, score: Score = "absolute") -> None:
        if score not in _TERMS:
            raise InputError(f"score={score!r} is not one of {', '.join(get_args(Score))}")
        self._term = _TERMS[score]
        self._sum = torch.zeros(size, dtype=torch.float64)
        self._count = 0

    def update(self, gradient: Release) -> None:
        """Takes the release of one stage-1 step."""
        self._sum += self._term(require_release(gradient).value.double().cpu())
        self._count += 1

    @property
    def scores(self) -> Tensor:
        """s_j, the mean over the steps taken so far (the absolute value matters to `signed` alone)."""
        return self._sum.abs() / max(self._count, 1)

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

    def active(self, ranking: Tensor, step: int, steps: int) -> Tensor:
        """The mask of the first ⌊r_t·d⌋ coordinates of the ranking, [d] of bool."""
        count = math.floor(self.ratio(step, steps) * len(ranking) + 1e-9)
        if count < 1:
            raise InputError(f"retention={self.retention} keeps none of {len(ranking)} parameters")
        return chosen(ranking, count)
