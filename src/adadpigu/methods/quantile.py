"""Quantile clipping: the clipping bound follows a quantile of the gradients' norms, learned from a noisy count.

    b̃ = (Σ (1[‖g_i‖ ≤ C] − ½) + N(0, σ_b²))/B + ½        C ← C·exp(−η(b̃ − γ))

Gradient and count are two releases of one batch at one cost: the count takes the share (σ/(2σ_b))² of the event, the
gradient the rest, so that its noise multiplier is (σ⁻² − (2σ_b)⁻²)^−½. C is a function of releases, so it is public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adadpigu.bounding import GradientSum, Record, RecordSum
from adadpigu.errors import InputError
from adadpigu.mechanism import Release, require_release
from adadpigu.methods.base import Batches, Method, Running, Setting, Stage, register
from adadpigu.state import State, number

LEAST_CLIP, LARGEST_CLIP = 1e-6, 1e6
"""C stays between these, whatever the noise says: it can neither vanish nor overflow"""


@register
@dataclass(frozen=True, kw_only=True)
class QuantileClipping(Method):
    """Adaptive clipping by a quantile of the norms (Andrew et al. 2021).

    The count is centred: 1[‖g_i‖ ≤ C] itself changes by 1 with a record, 1[·] − ½ by ½ either way, so half the noise
    is enough, and b̃ needs no count of who was drawn: B is the expected batch size.
    """

    name: ClassVar[str] = "quantile"
    source: ClassVar[str] = "Andrew et al. 2021"
    adds: ClassVar[str] = "a clipping bound that follows a quantile of the gradients' norms"
    costs: ClassVar[str] = "one event a step, shared by the gradient and the count"

    clip_norm: float = 0.1
    """C at the start"""
    quantile: float = 0.5
    """γ, the share of records that shall be within C"""
    clip_rate: float = 0.2
    """η, how fast C follows"""
    count_noise: float | None = None
    """σ_b, the noise on the count; unset: a twentieth of the expected batch size"""

    def __post_init__(self) -> None:
        if not LEAST_CLIP <= self.clip_norm <= LARGEST_CLIP:
            raise InputError(f"clip_norm={self.clip_norm} is not in [{LEAST_CLIP:g}, {LARGEST_CLIP:g}]")
        if not 0 <= self.quantile <= 1:
            raise InputError(f"quantile={self.quantile} is not in [0, 1]")
        if not 0 <= self.clip_rate < math.inf:
            raise InputError(f"clip_rate={self.clip_rate} is not a finite number of at least 0")
        if self.count_noise is not None and not 0 < self.count_noise < math.inf:
            raise InputError(f"count_noise={self.count_noise} is not a finite number above 0")

    def begin(self, setting: Setting) -> Running:
        sigma, noise = setting.noise_multiplier, self._count_noise(setting.batch_size)
        if not sigma < 2 * noise:
            raise InputError(
                f"count_noise={noise:g} with noise_multiplier={sigma:g} leaves nothing for the gradient; allowed: "
                f"count_noise above {sigma / 2:g}, half the noise multiplier"
            )
        share = (sigma / (2 * noise)) ** 2
        if not 0 < share < 1:
            raise InputError(f"count_noise={noise:g} is too large beside noise_multiplier={sigma:g} to count anything")
        return _Running(self, setting.batch_size, share=share)

    def _count_noise(self, batch_size: int) -> float:
        return batch_size / 20 if self.count_noise is None else self.count_noise


class _Running(Running):
    def __init__(self, options: QuantileClipping, batch_size: int, share: float) -> None:
        self._options = options
        self._batch_size = batch_size
        self._share = share
        self._clip_norm = options.clip_norm

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        bound = self._clip_norm

        def centred(record: Record) -> Tensor:
            within: Tensor = torch.linalg.vector_norm(record.gradient) <= bound
            return within.to(record.gradient.dtype) - 0.5

        gradient = GradientSum(clip_norm=bound, share=1 - self._share)
        count = RecordSum(name="within", of=centred, clip_norm=0.5, needs=frozenset({"gradient"}), share=self._share)
        made = batches.release(gradient, count)
        self._follow(made[count.name])
        return made[gradient.name].map(lambda value: gradient.restore(value, self._batch_size))

    def state(self) -> State:
        return {"clip_norm": number(self._clip_norm)}

    def load(self, state: State) -> None:
        self._clip_norm = float(state["clip_norm"])

    def _follow(self, count: Release) -> None:
        """Moves C towards the quantile."""
        options = self._options
        within = float(require_release(count).value) / self._batch_size + 0.5
        wanted = math.log(self._clip_norm) - options.clip_rate * (within - options.quantile)
        self._clip_norm = math.exp(min(max(wanted, math.log(LEAST_CLIP)), math.log(LARGEST_CLIP)))
