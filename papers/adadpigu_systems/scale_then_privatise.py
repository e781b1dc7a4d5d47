"""Scale, then privatise: gradients are clipped in the geometry of the optimiser that will follow them. Sees releases.

b = √(v + e₀) + e₁    S = Σ clip_C(g_i / b) + N(0, σ²C² I)    ĝ = b ⊙ S/B    v: the optimiser's mean square of ĝ
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import Release
from adadpigu.core.state import State
from adadpigu.errors import require
from adadpigu.methods.base import (
    Batches,
    Method,
    MethodState,
    Positive,
    RunContext,
    Stage,
    mean_gradient,
    register,
)

Small = Annotated[float, "a finite number of at least 0"]


@register
@dataclass(frozen=True, kw_only=True)
class ScaleThenPrivatise(Method):
    """Scale-then-privatise (Ganesh, McMahan and Thakurta 2025), for any optimiser that keeps a second moment.

    Released is S, whose terms have norm at most C, charged as one event (q, σ) a step. v is what the optimiser has
    learned of earlier ĝ, functions of releases, so b is public when gradients are divided by it, and free.

    As published C is in units of b, and so is the optimiser's v, which learns from ĝ: while all records are clipped,
    the two fall together down to e₁, where b is the same for all coordinates. `normalise` divides b by its geometric
    mean, so that C stays in units of the gradient and only the shape of v matters; it is ours, and on by default.

    v holds the noise (bσC/B)² of the releases that it was learned from; `debias` subtracts that of the last one, and
    leaves at least `noise_floor` of it.
    """

    name: ClassVar[str] = "scale-then-privatise"
    source: ClassVar[str] = "Ganesh et al. 2025"
    adds: ClassVar[str] = "gradients are scaled by the optimiser's second moment before the clip, and back after it"
    costs: ClassVar[str] = "one event a step"
    denoises: ClassVar[bool] = True
    needs_second_moment: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C"""
    square_offset: Small = 0.0
    """e₀"""
    offset: Small = 1e-8
    """e₁"""
    normalise: bool = True
    """divide b by its geometric mean; false: as published"""
    debias: bool = False
    """subtract the known noise variance from v"""
    noise_floor: Small = 0.1
    """the least v that is left, as a share of the noise variance"""

    def __post_init__(self) -> None:
        super().__post_init__()
        above = f"offset={self.offset} with square_offset={self.square_offset} lets the scale be 0; raise either"
        require(self.offset > 0 or self.square_offset > 0, above)

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context)


class _State(MethodState):
    def __init__(self, options: ScaleThenPrivatise, context: RunContext) -> None:
        assert context.second_moment is not None
        self._options, self._second_moment = options, context.second_moment
        self._batch_size = context.batch_size
        self._noise = context.noise_multiplier * options.clip_norm * context.per_owner / context.batch_size
        self.scale = self._from(torch.zeros_like(context.weights, dtype=torch.float64))

    def _from(self, v: Tensor) -> Tensor:
        """b of a second moment."""
        scale = (v + self._options.square_offset).sqrt() + self._options.offset
        return scale / scale.log().mean().exp() if self._options.normalise else scale

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        v = self._second_moment().to(self.scale)
        if self._options.debias:
            noise = (self.scale * self._noise).square()
            v = torch.maximum(v - noise, self._options.noise_floor * noise)
        self.scale.copy_(self._from(v))

    @property
    def standardising(self) -> tuple[Tensor | None, Tensor | None]:
        return None, self.scale.square()

    def capture_key(self, stage: Stage) -> Hashable:
        return stage.name

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        query = GradientSum(clip_norm=self._options.clip_norm, scale=self.scale.clone())
        return mean_gradient(batches, query, self._batch_size)

    def state(self) -> State:
        return {"scale": self.scale}

    def load(self, state: State) -> None:
        self.scale.copy_(state["scale"])
