"""Ordinary SGD in the same frame: Poisson batches, no clip, no noise, and no guarantee. The non-private yardstick.

ĝ = Σ g_i / B
"""

from dataclasses import dataclass
from typing import ClassVar

from adadpigu.core.bounding import GradientSum
from adadpigu.methods.base import Draw, FixedGradientState, Method, MethodState, RunContext, Stage, register


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

    def begin(self, context: RunContext) -> MethodState:
        return FixedGradientState(GradientSum(clip_norm=float("inf")), context.batch_size)
