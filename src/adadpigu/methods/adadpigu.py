"""AdaDPIGU: importance masks, progressive unfreezing and coordinate-wise adaptive clipping, all learned from releases.

Stage 1 runs DP-SGD and ranks coordinates by their noisy gradients. Stage 2, with mask m, mean α and spread β:

    z_i = m ⊙ (g_i − α)/(√β + μ)   S = Σ clip_C(z_i) + m ⊙ N(0, σ²C² I)   ĝ = m ⊙ ((S/B) ⊙ (√β + μ) + α)

Both stages are charged. The published method reads un-noised gradients for its mask and statistics; this one cannot.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

from adadpigu.errors import InputError, first_line, require
from adadpigu.methods.adadpigu_state import AdaDPIGUState
from adadpigu.methods.base import Method, MethodState, Need, Positive, RunContext, Share, Stage, register
from adadpigu.methods.importance import Score
from adadpigu.methods.mask import MaskSchedule, Schedule
from adadpigu.methods.quantile import CountNoise, Rate, check_start
from adadpigu.methods.statistics import StatisticsOptions, VarianceFrom

Mode = Literal["freeze", "prune"]
TopKOf = Literal["active", "all"]
Order = Literal["coordinates", "layers"]
Restrict = Literal["always", "worthwhile"]
VarianceStart = Literal["constant", "stage-1", "noise"]
_OF_A_GROWING_MASK = ("unfreeze_by", "unfreeze_to")
_OF_A_MASK = ("score", "restrict", "order", "head_first", "schedule", "stairs", "mode", *_OF_A_GROWING_MASK)
_OF_A_FOLLOWED_BOUND = ("clip_rate", "count_noise")
_OF_A_MOVING_VARIANCE = ("debias", "noise_floor", "per_layer")


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
    denoises: ClassVar[bool] = True
    off: ClassVar[Mapping[str, object]] = {
        **dict.fromkeys(("retention", "top_k", "mean_decay", "variance_decay"), 1.0),
        **{"offset": 0.0, "floor": 0.0, "noise_floor": 0.0, "blocks": 0, "normalise": False},
        **{"schedule": "constant", "restrict": "always", "importance_steps": 0},
    }
    needs: ClassVar[tuple[Need, ...]] = (
        (_OF_A_MASK, "retention", lambda options: options.retention < 1, "one below 1"),
        (_OF_A_GROWING_MASK, "schedule", lambda options: options.schedule != "constant", "another schedule"),
        (("stairs",), "schedule", lambda options: options.schedule == "steps", "'steps'"),
        (("top_k_of",), "top_k", lambda options: options.top_k < 1, "another top_k"),
        (_OF_A_FOLLOWED_BOUND, "clip_quantile", lambda options: options.clip_quantile, "another clip_quantile"),
        (("beta",), "variance_start", lambda options: options.variance_start == "constant", "'constant'"),
        (("variance_decay",), "variance_from", lambda options: options.variance_from == "releases", "'releases'"),
        (_OF_A_MOVING_VARIANCE, "variance_decay", lambda options: options.moves_variance, "one below 1"),
    )

    retention: float = 0.6
    """r, the share of coordinates that stage 2 starts with"""
    clip_norm: Positive = 0.5
    """C, in standardised units in stage 2"""
    clip_quantile: Annotated[float | None, "in (0, 1)"] = None
    """the share of records that shall be within C, which then follows; unset: C stays"""
    clip_rate: Rate = 0.2
    """η, how fast C follows"""
    count_noise: CountNoise = None
    """σ_b, the noise on the count of those within C; unset: a twentieth of the expected batch size"""
    importance_steps: int | None = None
    """T_pre, counted within the run's steps; unset: 15 of every 200; 0: no stage 1 (needs retention 1)"""
    score: Score = "absolute"
    """what ranks coordinates; `public` takes images of random processes, and needs no stage 1"""
    restrict: Restrict = "always"
    """`worthwhile`: no mask unless what it loses of the releases' power is less than the noise it saves"""
    schedule: Schedule = "linear"
    """how the mask grows in stage 2: not at all, or until all coordinates are back"""
    unfreeze_by: float = 1.0
    """the share of stage 2 after which a growing schedule has grown"""
    unfreeze_to: float = 1.0
    """the share of coordinates that it grows to"""
    order: Order = "coordinates"
    """what is ranked: coordinates by their own scores, or by the mean score of their layer"""
    head_first: bool = False
    """the last layer's coordinates rank before all others"""
    stairs: int = 4
    """how many stairs a schedule of `steps` has"""
    mode: Mode = "freeze"
    """masked coordinates keep their value (`freeze`), or act as zero (`prune`)"""
    top_k: Share = 1.0
    """ρ, the share of coordinates each record keeps; 1: top-k is off"""
    top_k_of: TopKOf = "active"
    """what ρ is a share of: the active coordinates, or all d, of which no more than the active ones can be kept"""
    variance_start: VarianceStart = "constant"
    """where β starts: at `beta`, at what stage 1 released of each layer or block, or at a release's noise"""
    beta: Positive = 1.0
    """β at the start, for variance_start constant; `noise` starts it at the noise variance (σC/B)² of a release, and
    then its shape alone matters (`normalise`)"""
    variance_from: VarianceFrom = "releases"
    """what β follows: releases, or the second moment that the run's optimiser keeps of them (its shape: `normalise`)"""
    mean_decay: float = 0.9
    """γ1; 1 holds α at 0"""
    variance_decay: float = 0.999
    """γ2; 1 holds β where it starts"""
    offset: float = 1e-6
    """μ"""
    debias: bool = False
    """subtract the known noise variance before β learns from (ĝ − α)²"""
    floor: float | None = None
    """h1, the least β and (ĝ − α)²; unset: 1e-6, or 1e-12 where β is in units of the noise or of the optimiser's"""
    ceiling: float = 1e6
    """h2, the largest"""
    noise_floor: float = 0.0
    """the least β as a share of the known noise variance"""
    per_layer: bool = False
    """share β (not α) among the coordinates of a layer"""
    blocks: int = 0
    """share β among so many blocks of coordinates of equal released power; 0: there are none"""
    normalise: bool | None = None
    """divide √β + μ by its geometric mean, so that C stays in units of the gradient; unset: where β has other units"""

    def __post_init__(self) -> None:
        own_units = self.variance_start == "noise" or self.variance_from == "optimiser"
        for name, value in (("floor", 1e-12 if own_units else 1e-6), ("normalise", own_units)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        if self.clip_quantile is not None:
            check_start(self.clip_norm)
        self._mask_schedule()
        self._statistics_options()

    def stages(self, steps: int) -> tuple[Stage, ...]:
        first = self._importance_steps(steps)
        training = Stage(name="training", steps=steps - first)
        return (Stage(name="importance", steps=first), training) if first else (training,)

    def begin(self, context: RunContext) -> MethodState:
        if self.variance_from == "optimiser" and context.second_moment is None:
            allowed = "allowed: adam, adamw, nadam, radam, rmsprop, adadelta, adagrad"
            raise InputError(f"variance_from='optimiser' with an optimizer that keeps no second moment; {allowed}")
        if self._public:
            _try_public(context)
        return AdaDPIGUState(self, context)

    @property
    def moves_variance(self) -> bool:
        """Whether β leaves where it starts."""
        return self._statistics_options().moves_variance

    @property
    def _public(self) -> bool:
        return self.score == "public" and self.retention < 1

    def _importance_steps(self, steps: int) -> int:
        least = self._least_importance_steps()
        usual = max(least, 15 * steps // 200) if least else 0
        first = usual if self.importance_steps is None else self.importance_steps
        fewer = f"importance_steps={first} is not from 0 to below the run's {steps} steps"
        require(0 <= first < steps, f"{fewer}; allowed: that, more steps or epochs, or a smaller batch_size")
        given = f"retention={self.retention}, variance_start={self.variance_start!r}, restrict={self.restrict!r}"
        told = f"importance_steps={first}: with {given} and blocks={self.blocks}, stage 1 needs"
        require(first >= least, f"{told} at least {least} steps")
        return first

    def _least_importance_steps(self) -> int:
        """A mask or a start from stage 1 takes a step; what half of them rank and the others measure takes two."""
        if self.blocks or (self.restrict == "worthwhile" and self.retention < 1):
            return 2
        return int((self.retention < 1 and not self._public) or self.variance_start == "stage-1")

    def _mask_schedule(self) -> MaskSchedule:
        shape = {name: getattr(self, name) for name in ("retention", "unfreeze_by", "unfreeze_to", "stairs")}
        return MaskSchedule(kind=self.schedule, **shape)

    def _statistics_options(self) -> StatisticsOptions:
        return StatisticsOptions(**{field.name: getattr(self, field.name) for field in fields(StatisticsOptions)})


def _try_public(context: RunContext) -> None:
    """Refuses scores from public images before anything is charged where they could not be computed."""
    allowed = "allowed: images of 1 or 3 channels with loss(outputs, targets), or another score"
    if context.public_scores is None:
        raise InputError(f"score='public' for records that are no such images, or with losses=; {allowed}")
    try:
        context.public_scores(count=2)
    except Exception as error:  # whatever a loss of the user's own says of labels at random
        raise InputError(f"score='public': labels at random do not fit: {first_line(error)}; {allowed}") from error


@register
@dataclass(frozen=True, kw_only=True)
class Masked(AdaDPIGU):
    """AdaDPIGU's mask and unfreezing alone: α = 0 and β = 1 throughout."""

    name: ClassVar[str] = "masked"
    source: ClassVar[str] = "a part of adadpigu"
    adds: ClassVar[str] = "a mask by importance and progressive unfreezing"
    fixed: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("mean_decay", "variance_decay", "variance_from", "variance_start", "beta"), "adadpigu"
    )

    mean_decay: float = 1.0
    variance_decay: float = 1.0
    offset: float = 0.0
    floor: float | None = 0.0
    ceiling: float = math.inf


@register
@dataclass(frozen=True, kw_only=True)
class Layers(Masked):
    """No mask: β per layer from what stage 1 released, then held."""

    name: ClassVar[str] = "layers"
    source: ClassVar[str] = "a relative of adadpigu"
    adds: ClassVar[str] = "a clipping scale for each layer, from stage 1"
    fixed: ClassVar[Mapping[str, str]] = {**Masked.fixed, "retention": "adadpigu"}

    retention: float = 1.0
    variance_start: VarianceStart = "stage-1"
