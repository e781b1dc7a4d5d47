"""Random Freeze: each epoch freezes another random share of the coordinates, a share that rises over training.

    ĝ = (Σ clip_C(m_e ⊙ g_i) + m_e ⊙ N(0, σ²C² I))/B        m_e random, freezing ρ_e·d coordinates in epoch e

The mask is drawn from the run's public seed, never from records, so it is free. It is applied before the clip, and a
frozen coordinate gets neither noise nor update.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum
from adadpigu.core.state import State
from adadpigu.methods.base import GradientState, Method, MethodState, Positive, RunContext, Share, Stage, register
from adadpigu.methods.importance import chosen
from adadpigu.methods.mask import ramp

Rise = Literal["linear", "cosine", "constant"]


@register
@dataclass(frozen=True, kw_only=True)
class RandomFreeze(Method):
    """DP-SGD on gradients that a random mask makes sparse (Zhu and Blaschko 2021). An epoch is N/B steps."""

    name: ClassVar[str] = "random-freeze"
    source: ClassVar[str] = "Zhu and Blaschko 2021"
    adds: ClassVar[str] = "a fresh random mask each epoch that freezes more and more coordinates"
    costs: ClassVar[str] = "one event a step; the masks are free"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C, of the masked gradient"""
    final_rate: Annotated[float, "in [0, 1)"] = 0.9
    """the share of coordinates that is frozen in the end"""
    rise: Rise = "linear"
    """how the share gets there from 0, epoch by epoch; `constant`: it is there from the start"""
    rise_by: Share = 1.0
    """the share of the epochs after which it is there"""

    def rate(self, epoch: int, epochs: int) -> float:
        """The share of coordinates that is frozen in epoch 0 … epochs − 1.

        >>> [round(RandomFreeze().rate(epoch, 4), 2) for epoch in range(4)]
        [0.0, 0.3, 0.6, 0.9]
        """
        progress = 1.0 if self.rise == "constant" else ramp(epoch, epochs, by=self.rise_by, kind=self.rise)
        return self.final_rate * progress

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context)


class _State(GradientState):
    def __init__(self, options: RandomFreeze, context: RunContext) -> None:
        super().__init__(GradientSum(clip_norm=options.clip_norm), context.batch_size)
        self._options = options
        self._context = context
        self._epoch = -1

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        records, batch_size = self._context.records, self._context.batch_size
        epoch, epochs = index * batch_size // records, -(-stage.steps * batch_size // records)
        if epoch != self._epoch:
            self._epoch = epoch
            self._query = replace(self._query, active=self._mask(epoch, self._options.rate(epoch, epochs)))

    def state(self) -> State:
        return {}  # the mask follows from seed and epoch

    def _mask(self, epoch: int, rate: float) -> Tensor | None:
        """The mask of those that stay free: all but ⌊ρ·d⌋, at least one; None for all."""
        size = self._context.layout.size
        kept = max(size - math.floor(rate * size + 1e-9), 1)
        if kept == size:
            return None
        order = torch.from_numpy(self._context.public_rng(epoch).permutation(size))
        return chosen(order.to(self._context.device), kept)
