"""AdaDPIGU: importance masks, progressive unfreezing and coordinate-wise adaptive clipping, all learned from releases.

Stage 1 runs DP-SGD and ranks coordinates by their noisy gradients. Stage 2, with mask m, mean α and spread β:

    z_i = m ⊙ (g_i − α)/(√β + μ)   S = Σ clip_C(z_i) + m ⊙ N(0, σ²C² I)   ĝ = m ⊙ ((S/B) ⊙ (√β + μ) + α)

Both stages are charged. The published method reads un-noised gradients for its mask and statistics; this one cannot.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.beside import beside
from adadpigu.bounding import GradientSum
from adadpigu.errors import InputError
from adadpigu.importance import GrowingMask, Importance, MaskSchedule, Schedule, Score
from adadpigu.mechanism import Release
from adadpigu.methods.base import Batches, Method, Running, Setting, Stage, check_choices, check_positive, register
from adadpigu.state import State, named, number, part
from adadpigu.statistics import LayerPower, Statistics, StatisticsOptions

Mode = Literal["freeze", "prune"]
TopKOf = Literal["active", "all"]
VarianceStart = Literal["constant", "stage-1"]


@register
@dataclass(frozen=True, kw_only=True)
class AdaDPIGU(Method):
    """The paper's whole method with its privacy made real; where its text has no constant, that of its authors' code.

    Variants that lack a part have names of their own: `masked` holds the statistics, `layers` has no mask.
    """

    name: ClassVar[str] = "adadpigu"
    source: ClassVar[str] = "Zhang and Xie 2025, corrected"
    adds: ClassVar[str] = "a mask by importance, progressive unfreezing, coordinate-wise adaptive clipping"
    costs: ClassVar[str] = "one event a step, the importance steps of stage 1 included"

    retention: float = 0.6
    """r, the share of coordinates that stage 2 starts with"""
    clip_norm: float = 0.5
    """C, in standardised units in stage 2"""
    importance_steps: int | None = None
    """T_pre, counted within the run's steps; unset: 15 of every 200; 0: no stage 1 (needs retention 1)"""
    score: Score = "absolute"
    schedule: Schedule = "linear"
    unfreeze_by: float = 1.0
    """the share of stage 2 after which a growing schedule is at 1"""
    stairs: int = 4
    mode: Mode = "freeze"
    top_k: float = 1.0
    """ρ, the share of coordinates each record keeps; 1: top-k is off"""
    top_k_of: TopKOf = "active"
    """what ρ is a share of: the active coordinates, or all d, of which no more than the active ones can be kept"""
    variance_start: VarianceStart = "constant"
    beta: float = 1.0
    """β at the start, for variance_start constant"""
    mean_decay: float = 0.9
    """γ1; 1 holds α at 0"""
    variance_decay: float = 0.999
    """γ2; 1 holds β where it starts"""
    offset: float = 1e-6
    """μ"""
    debias: bool = False
    floor: float = 1e-6
    """h1, the least β and (ĝ − α)²"""
    ceiling: float = 1e6
    """h2, the largest"""
    per_layer: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "clip_norm", "beta")
        check_choices(self)
        if not 0 < self.top_k <= 1:
            raise InputError(f"top_k={self.top_k} is not in (0, 1]")
        self._mask_schedule()
        self._statistics_options()

    def stages(self, steps: int) -> tuple[Stage, ...]:
        first = self._importance_steps(steps)
        training = Stage(name="training", steps=steps - first)
        return (Stage(name="importance", steps=first), training) if first else (training,)

    def begin(self, setting: Setting) -> Running:
        return _Running(self, setting)

    def _importance_steps(self, steps: int) -> int:
        needed = self.retention < 1 or self.variance_start == "stage-1"
        first = (max(1, 15 * steps // 200) if needed else 0) if self.importance_steps is None else self.importance_steps
        if not 0 <= first < steps:
            raise InputError(f"importance_steps={first} is not from 0 to below the run's {steps} steps")
        if needed and first == 0:
            raise InputError(
                f"importance_steps=0 with retention={self.retention}, variance_start={self.variance_start!r}: "
                "a mask or a start from stage 1 needs at least 1 step there"
            )
        return first

    def _mask_schedule(self) -> MaskSchedule:
        return MaskSchedule(
            retention=self.retention, kind=self.schedule, unfreeze_by=self.unfreeze_by, stairs=self.stairs
        )

    def _statistics_options(self) -> StatisticsOptions:
        return StatisticsOptions(**{field.name: getattr(self, field.name) for field in fields(StatisticsOptions)})


@register
@dataclass(frozen=True, kw_only=True)
class Masked(AdaDPIGU):
    """AdaDPIGU's mask and unfreezing alone: α = 0 and β = 1 throughout."""

    name: ClassVar[str] = "masked"
    source: ClassVar[str] = "a part of adadpigu"
    adds: ClassVar[str] = "a mask by importance and progressive unfreezing"

    mean_decay: float = 1.0
    variance_decay: float = 1.0
    offset: float = 0.0
    floor: float = 0.0
    ceiling: float = math.inf


@register
@dataclass(frozen=True, kw_only=True)
class Layers(Masked):
    """No mask: β per layer from what stage 1 released, then held."""

    name: ClassVar[str] = "layers"
    source: ClassVar[str] = "a relative of adadpigu"
    adds: ClassVar[str] = "a clipping scale for each layer, from stage 1"

    retention: float = 1.0
    variance_start: VarianceStart = "stage-1"


class _Running(Running):
    def __init__(self, options: AdaDPIGU, setting: Setting) -> None:
        size, device = setting.layout.size, setting.device
        self._options = options
        self._batch_size = setting.batch_size
        self._layers = setting.layout.layer_index().to(device)
        self._importance = Importance(size, options.score, device, setting.chance(0))
        self._power = LayerPower(self._layers)
        self._schedule = options._mask_schedule()
        self._mask = GrowingMask(setting.layout, device)
        self._kept = torch.zeros((), dtype=torch.int64, device=device)
        self._statistics: Statistics | None = None
        self._moving = False
        self._device, self._dtype = device, setting.weights.dtype
        self._keep_entries(size)

    @property
    def active(self) -> Tensor | None:
        return self._mask.active

    @property
    def standardising(self) -> tuple[Tensor | None, Tensor | None]:
        used = self._statistics
        if used is None:
            return None, None
        return None if used.mean_held else used.mean, None if used.plain else used.variance

    @property
    def active_share(self) -> float:
        return self._mask.count / self._mask.size

    def record(self, stage: Stage) -> Hashable:
        return stage.name, self._mask.trained, self._moving, self._mask.grows, self._share_kept < 1

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        if stage.name != "training":
            return
        if self._statistics is None:
            self._statistics = self._begin_training()
        count = self._schedule.count(self._mask.size, index, stage.steps)
        self._moving = count != self._mask.count
        if self._moving:
            self._mask.aim(count)
            self._keep_entries(count)
        if self._moving and self._options.mode == "prune":  # the model acts on the mask before the step begins
            self._move(self._statistics)
            self._moving = False

    def _keep_entries(self, count: int) -> None:
        """How many entries of a record top-k keeps of `count` active ones."""
        options, of = self._options, count if self._options.top_k_of == "active" else self._mask.size
        kept = min(count, math.floor(options.top_k * of + 1e-9))
        if kept == 0:
            raise InputError(f"top_k={options.top_k} keeps none of {of} coordinates; allowed: at least 1/{of}")
        self._share_kept = kept / count
        self._kept.fill_(kept)

    def _begin_training(self) -> Statistics:
        """Ends stage 1: fixes the ranking and where β starts."""
        options = self._options
        if options.retention < 1:
            self._mask.rank(self._importance.ranking())
        if options.variance_start == "stage-1":
            variance = self._power.variance()
        else:
            variance = torch.full((len(self._layers),), options.beta, device=self._layers.device)
        variance = variance.to(self._dtype)
        return Statistics(options._statistics_options(), variance=variance, layers=self._layers)

    def state(self) -> State:
        found = named("importance", self._importance.state()) | named("power", self._power.state())
        if self._statistics is not None:
            found |= {"mask.count": number(self._mask.count)} | named("statistics", self._statistics.state())
        return found

    def load(self, state: State) -> None:
        """The ranking follows from the scores, so that it is not kept."""
        self._importance.load(part("importance", state))
        self._power.load(part("power", state))
        if "mask.count" in state:
            self._statistics = self._begin_training()
            self._statistics.load(part("statistics", state))
            self._mask.aim(int(state["mask.count"]))
            self._mask.move()
            self._keep_entries(self._mask.count)

    def effective(self, parameters: Tensor) -> Tensor:
        active = self._mask.active
        if self._options.mode == "freeze" or active is None:
            return parameters
        return torch.where(active, parameters, 0.0)

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return self._train(batches) if self._statistics is not None else self._rank(batches)

    def _rank(self, batches: Batches) -> Release:
        """Stage 1: a DP-SGD step whose release also feeds the scores and the layers' power."""
        query = GradientSum(clip_norm=self._options.clip_norm)
        total = batches.release(query)[query.name]
        restored = total.map(lambda value: query.restore(value, self._batch_size))
        self._importance.update(restored)
        noise = (total.noise_stddev or 0.0) / self._batch_size
        self._power.update(restored, noise_variance=noise**2)
        return restored

    def _train(self, batches: Batches) -> Release:
        """Stage 2: standardise, clip, release, restore, learn."""
        statistics = self._statistics
        assert statistics is not None
        with beside(self._device):
            if self._moving:
                self._move(statistics)
            query = GradientSum(
                clip_norm=self._options.clip_norm,
                active=self._mask.snapshot(),
                center=None if statistics.mean_held else statistics.mean.clone(),
                scale=None if statistics.plain else statistics.scale,
                top_k=self._share_kept,
                trained=self._mask.trained,
                kept=self._kept,
            )
        total = batches.release(query)[query.name]
        restored = total.map(lambda value: query.restore(value, self._batch_size))
        noise = (total.noise_stddev or 0.0) / self._batch_size
        with beside(self._device):
            statistics.update(restored, noise_variance=statistics.noise_variance(noise))
        return restored

    def _move(self, statistics: Statistics) -> None:
        """Brings the mask to where `begin_step` wants it, and gives newcomers their start."""
        if self._mask.grows:
            statistics.welcome(*self._mask.newcomers())
        self._mask.move()
