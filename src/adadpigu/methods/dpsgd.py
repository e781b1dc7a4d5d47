"""DP-SGD: clip each record's gradient to C, add N(0, σ²C² I) to the sum, divide by the expected batch size.

ĝ = (Σ g_i · min(1, C/‖g_i‖₂) + N(0, σ²C² I)) / B
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from adadpigu.bounding import GradientSum
from adadpigu.mechanism import Release
from adadpigu.methods.base import (
    Batches,
    Method,
    Running,
    Setting,
    Stage,
    check_positive,
    mean_gradient,
    register,
)


@register
@dataclass(frozen=True, kw_only=True)
class DPSGD(Method):
    """Differentially private SGD (Abadi et al. 2016), with Poisson batches and the noise inside the 1/B."""

    name: ClassVar[str] = "dpsgd"
    source: ClassVar[str] = "Abadi et al. 2016"
    adds: ClassVar[str] = "clipping to C and Gaussian noise on all coordinates"
    costs: ClassVar[str] = "one event a step"

    clip_norm: float = 0.5
    """C"""

    def __post_init__(self) -> None:
        check_positive(self, "clip_norm")

    def begin(self, setting: Setting) -> Running:
        return _Running(self, setting.batch_size)


class _Running(Running):
    def __init__(self, options: DPSGD, batch_size: int) -> None:
        self._query = GradientSum(clip_norm=options.clip_norm)
        self._batch_size = batch_size

    def record(self, stage: Stage) -> Hashable:
        return stage.name

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return mean_gradient(batches, self._query, self._batch_size)
