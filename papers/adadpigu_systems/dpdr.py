"""DPDR: gradients are split along the direction of earlier updates, each part with a bound and a share of its own.

    u = a/‖a‖, a the average of earlier ĝ       a_i = ⟨g_i, u⟩       g_i⊥ = g_i − a_i u
    s = Σ clip_C∥(a_i) + N(0, σ²C∥²/p)          S⊥ = Σ clip_C⊥(g_i⊥) + N(0, σ²C⊥²/(1 − p) I)
    ĝ = (S⊥ − ⟨S⊥, u⟩ u + s u)/B

Both are releases of one draw with shares p and 1 − p: (σ²/p)⁻¹ + (σ²/(1 − p))⁻¹ = σ⁻², one event at σ. u is a
function of releases, and so is S⊥ without its noise along u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum, MappedSum
from adadpigu.core.mechanism import Release, require_release
from adadpigu.core.state import TensorState
from adadpigu.methods.base import Batches, Method, MethodState, Positive, RunContext, Stage, mean_gradient, register


@register
@dataclass(frozen=True, kw_only=True)
class DPDR(Method):
    """Gradient decomposition and reconstruction (Liu et al. 2024), early in training; then plain DP-SGD.

    **The scalar's share.** The update's noise has the total variance σ²/B² · (C∥²/p + (d − 1)·C⊥²/(1 − p)): one
    coordinate along u, d − 1 across it, where S⊥'s noise stays. Its derivative in p is zero where
    p/(1 − p) = C∥/(√(d − 1)·C⊥), so p = 1/(1 + √(d − 1)·C⊥/C∥); the default has √d for √(d − 1), which also does for
    d = 1. A joint clip of (a_i, g_i⊥) would be DP-SGD in rotated coordinates: bounds and shares make the difference.

    The first step has no direction yet and is plain DP-SGD, and so is every step after `until`, which is fixed.
    """

    name: ClassVar[str] = "dpdr"
    source: ClassVar[str] = "Liu et al. 2024"
    adds: ClassVar[str] = "gradients are split along earlier updates, with a bound and a share of the noise a part"
    costs: ClassVar[str] = "one event a step, shared by both parts; the direction comes from releases"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C⊥, and C of plain steps"""
    along_clip: Annotated[float | None, "a finite number above 0"] = None
    """C∥; unset: C⊥"""
    along_share: Annotated[float | None, "in (0, 1)"] = None
    """p, of the event that the scalar takes; unset: what makes the update's noise least"""
    decay: Annotated[float, "in [0, 1)"] = 0.9
    """of the average of updates whose direction is u; 0: the last one"""
    until: Annotated[float, "in [0, 1]"] = 0.3
    """share of the steps that decompose"""

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context)


def least_noise_share(size: int, along: float, across: float) -> float:
    """1/(1 + √d·C⊥/C∥).

    >>> round(least_noise_share(26_010, 0.5, 0.5), 4)
    0.0062
    """
    return 1 / (1 + math.sqrt(size) * across / along)


def across(rows: Tensor, direction: Tensor) -> Tensor:
    """g − ⟨g, u⟩ u of each row."""
    u = direction.to(rows)
    return rows - (rows @ u)[..., None] * u


class _State(TensorState, MethodState):
    state_names = ("_average",)

    def __init__(self, options: DPDR, context: RunContext) -> None:
        self._options, self._batch_size = options, context.batch_size
        self._along = options.along_clip or options.clip_norm
        best = least_noise_share(context.layout.size, self._along, options.clip_norm)
        self._share = best if options.along_share is None else options.along_share
        self._average = torch.zeros_like(context.weights, dtype=torch.float64)

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        options = self._options
        if index >= options.until * stage.steps or not bool(self._average.any()):
            update = mean_gradient(batches, GradientSum(clip_norm=options.clip_norm), self._batch_size)
        else:
            update = self._decomposed(batches, self._average / self._average.norm())
        self._average.mul_(options.decay).add_(require_release(update).value, alpha=1 - options.decay)
        return update

    def _decomposed(self, batches: Batches, u: Tensor) -> Release:
        scalar = MappedSum(
            name="along",
            of=lambda rows: (rows @ u.to(rows))[:, None],
            clip_norm=self._along,
            learned={"direction": u},
            share=self._share,
        )
        rest = MappedSum(
            name="across",
            of=lambda rows: across(rows, u),
            clip_norm=self._options.clip_norm,
            learned={"direction": u},
            share=1 - self._share,
        )
        made = batches.release(scalar, rest)
        return batches.denoise(made["across"]).map(
            lambda s, a: (across(s, u) + a * u.to(s)) / self._batch_size, made["along"]
        )
