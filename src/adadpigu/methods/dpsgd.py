"""DP-SGD: clip each record's gradient to C, add N(0, σ²C² I) to the sum, divide by the expected batch size.

ĝ = (Σ g_i · min(1, C/‖g_i‖₂) + N(0, σ²C² I)) / B
"""

from dataclasses import dataclass
from typing import ClassVar

from adadpigu.core.bounding import GradientSum
from adadpigu.methods.base import FixedGradientState, Method, MethodState, Positive, RunContext, register


@register
@dataclass(frozen=True, kw_only=True)
class DPSGD(Method):
    """Differentially private SGD (Abadi et al. 2016), with Poisson batches and the noise inside the 1/B."""

    name: ClassVar[str] = "dpsgd"
    source: ClassVar[str] = "Abadi et al. 2016"
    adds: ClassVar[str] = "clipping to C and Gaussian noise on all coordinates"
    costs: ClassVar[str] = "one event a step"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C"""

    def begin(self, context: RunContext) -> MethodState:
        return FixedGradientState(GradientSum(clip_norm=self.clip_norm), context.batch_size)
