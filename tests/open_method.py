"""A method that uses all the frame allows: two named releases of one batch, a fresh batch, a rejected update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum, Record, RecordSum
from adadpigu.core.mechanism import Release
from adadpigu.methods.base import Batches, Draw, Method, MethodState, RunContext, Stage


@dataclass(frozen=True, kw_only=True)
class OpenMethod(Method):
    """Gradient and clipped share from one batch; a loss test on a fresh batch, and `reject`, decide."""

    name: ClassVar[str] = "open"
    source: ClassVar[str] = "tests"
    adds: ClassVar[str] = "everything"
    costs: ClassVar[str] = "two events a step"

    reject: str = "none"

    def stages(self, steps: int) -> tuple[Stage, ...]:
        draws = (Draw(), Draw(name="test", batch_size=20, noise_multiplier=2.0))
        return (Stage(name="training", steps=steps, draws=draws),)

    def begin(self, context: RunContext) -> MethodState:
        return OpenRunning(self.reject, context.batch_size)


def _change(record: Record) -> Tensor:
    change: Tensor = torch.diff(record.losses_at)
    return change


class OpenRunning(MethodState):
    def __init__(self, reject: str, batch_size: int) -> None:
        self._reject = reject
        self._batch_size = batch_size
        self.shares: list[float] = []
        self.improvements: list[float] = []
        self.verdicts: list[bool] = []

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        gradient = GradientSum(clip_norm=0.5, share=0.9)

        def centred(record: Record) -> Tensor:
            within: Tensor = torch.linalg.vector_norm(record.gradient) <= 0.5
            return within.float() - 0.5

        made = batches.release(gradient, RecordSum(name="share", of=centred, clip_norm=0.5, share=0.1))
        self.shares.append(float(made["share"].value / self._batch_size + 0.5))
        return made["gradient"].map(lambda value: gradient.restore(value, self._batch_size))

    def accept(self, batches: Batches, stage: Stage, before: Tensor, after: Tensor) -> bool:
        query = RecordSum(
            name="improvement",
            of=_change,
            clip_norm=0.01,
            losses_at=(before, after),
        )
        released = batches.release(query, draw="test")["improvement"]
        self.improvements.append(float(released.value))
        refused = self._reject == "all" or (self._reject == "first" and not self.verdicts)
        verdict = not refused and math.isfinite(self.improvements[-1])
        self.verdicts.append(verdict)
        return verdict
