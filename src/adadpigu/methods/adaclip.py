"""AdaCliP: every coordinate is shifted and scaled by what earlier releases say, to put noise where it hurts least.

    w_i = (g_i − a)/b   S = Σ clip_C(w_i) + N(0, σ²C² I)   ĝ = b ⊙ S/B + a   b_j = √s_j · √(Σ_k s_k)

a and s² are averages of releases and stand after the noise; nothing is charged beyond DP-SGD's one event a step.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import Release
from adadpigu.core.state import State
from adadpigu.errors import require
from adadpigu.methods.base import Batches, Method, MethodState, Positive, RunContext, Stage, register
from adadpigu.methods.statistics import Statistics, StatisticsOptions


@register
@dataclass(frozen=True, kw_only=True)
class AdaCliP(Method):
    """AdaCliP (Pichapati et al. 2019), its statistics learned from releases alone.

    Restoring makes the noise's total variance ∝ Σ b_j²; the clip asks for Σ s_j²/b_j² ≤ 1, an expected squared norm of
    a record's w of at most 1, where s_j² is the mean square of g_j − a_j. By Cauchy-Schwarz Σ b_j² is then at least
    (Σ s_j)², and that at b_j = √s_j·√(Σ_k s_k).

    s² starts at h1·h2 and is learned, as published, from the spread of ĝ, a *mean* over records, which is below that of
    one record. So it sinks towards h1², and the least clipping bound on the gradient is about h1·√d: choose h1 as you
    would choose C/√d.
    """

    name: ClassVar[str] = "adaclip"
    source: ClassVar[str] = "Pichapati et al. 2019"
    adds: ClassVar[str] = "a centre and a scale for every coordinate, learned from releases"
    costs: ClassVar[str] = "one event a step"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 1.0
    """C, in standardised units: 1 is the norm that a record is expected to have"""
    mean_decay: float = 0.99
    """β1, of the average a of releases"""
    variance_decay: float = 0.9
    """β2, of the average s² of squared deviations"""
    floor: float = 1e-3
    """h1, the least s"""
    ceiling: float = 0.1
    """h2, the largest s"""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = f"floor={self.floor} and ceiling={self.ceiling}"
        fit = 1e-12 <= self.floor <= self.ceiling <= 1e12
        require(fit, f"{bounds} do not satisfy 1e-12 ≤ floor ≤ ceiling ≤ 1e12")
        self._statistics_options()

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context)

    def _statistics_options(self) -> StatisticsOptions:
        return StatisticsOptions(
            mean_decay=self.mean_decay,
            variance_decay=self.variance_decay,
            debias=True,
            floor=self.floor**2,
            ceiling=self.ceiling**2,
        )


def least_noise_scale(spread: Tensor) -> Tensor:
    """b_j = √s_j·√(Σ_k s_k), the scale that minimises Σ b_j² under Σ s_j²/b_j² ≤ 1.

    >>> least_noise_scale(torch.tensor([1.0, 4.0, 4.0]))
    tensor([3., 6., 6.])
    """
    return spread.sqrt() * spread.sum().sqrt()


class _State(MethodState):
    def __init__(self, options: AdaCliP, context: RunContext) -> None:
        layers = context.layout.layer_index().to(context.device)
        start = torch.full_like(context.weights, options.floor * options.ceiling)
        self._statistics = Statistics(options._statistics_options(), variance=start, groups=layers)
        self._clip_norm = options.clip_norm
        self._batch_size = context.batch_size

    def capture_key(self, stage: Stage) -> Hashable:
        return stage.name

    @property
    def standardising(self) -> tuple[Tensor | None, Tensor | None]:
        return self._statistics.mean, self._statistics.variance

    def state(self) -> State:
        return self._statistics.state()

    def load(self, state: State) -> None:
        self._statistics.load(state)

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        statistics = self._statistics
        scale = least_noise_scale(statistics.variance.sqrt())
        query = GradientSum(clip_norm=self._clip_norm, center=statistics.mean.clone(), scale=scale)
        total = batches.release(query)[query.name]
        restored = total.map(restore := lambda value: query.restore(value, self._batch_size))
        statistics.update(restored, noise_variance=(scale * ((total.noise_stddev or 0.0) / self._batch_size)).square())
        clearer = batches.denoise(total)
        return restored if clearer is total else clearer.map(restore)
