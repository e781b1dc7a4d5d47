"""Ordinary SGD in the same frame: Poisson batches, no clip, no noise, and no guarantee. The non-private yardstick.

ĝ = Σ g_i / B
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from adadpigu.bounding import GradientSum
from adadpigu.mechanism import Release
from adadpigu.methods.base import Batches, Draw, Method, Running, Setting, Stage, mean_gradient, register


@register
@dataclass(frozen=True, kw_only=True)
class SGD(Method):
    """Non-private stochastic gradient descent; its runs say NOT PRIVATE and claim ε = ∞."""

    name: ClassVar[str] = "sgd"
    source: ClassVar[str] = "Robbins and Monro 1951"
    adds: ClassVar[str] = "nothing: the non-private yardstick"
    costs: ClassVar[str] = "all privacy: ε = ∞"
    private: ClassVar[bool] = False

    def stages(self, steps: int) -> tuple[Stage, ...]:
        return (Stage(name="training", steps=steps, draws=(Draw(noise_multiplier=0.0),)),)

    def begin(self, setting: Setting) -> Running:
        return _Running(setting.batch_size)


class _Running(Running):
    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def record(self, stage: Stage) -> Hashable:
        return stage.name

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return mean_gradient(batches, GradientSum(clip_norm=float("inf")), self._batch_size)
