"""AdaDPIGU: importance masks, progressive unfreezing and coordinate-wise adaptive clipping, all learned from releases.

Stage 1 runs DP-SGD and ranks coordinates by their noisy gradients. Stage 2, with mask m, mean α and spread β:

    z_i = m ⊙ (g_i − α)/(√β + μ)   S = Σ clip_C(z_i) + m ⊙ N(0, σ²C² I)   ĝ = m ⊙ ((S/B) ⊙ (√β + μ) + α)

Both stages are charged. The published method reads un-noised gradients for its mask and statistics; this one cannot.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import Release
from adadpigu.core.side_stream import side_stream
from adadpigu.core.standardising import entries_kept
from adadpigu.core.state import State, TensorState, as_tensor, named, part
from adadpigu.errors import InputError, first_line, require
from adadpigu.methods.base import Batches, Method, MethodState, Need, Positive, RunContext, Share, Stage, register
from adadpigu.methods.importance import CoordinatePower, Importance, LayerPower, Score, chosen
from adadpigu.methods.mask import GrowingMask, MaskSchedule, Schedule
from adadpigu.methods.quantile import CountNoise, FollowedBound, Rate, check_start
from adadpigu.methods.statistics import Statistics, StatisticsOptions, VarianceFrom

Mode = Literal["freeze", "prune"]
TopKOf = Literal["active", "all"]
Restrict = Literal["always", "worthwhile"]
VarianceStart = Literal["constant", "stage-1", "noise"]
_OF_A_MASK = ("score", "restrict", "schedule", "unfreeze_by", "stairs", "mode")
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
        (("unfreeze_by",), "schedule", lambda options: options.schedule != "constant", "another schedule"),
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
    unfreeze_by: float = 1.0
    """the share of stage 2 after which a growing schedule is at 1"""
    stairs: int = 4
    mode: Mode = "freeze"
    top_k: Share = 1.0
    """ρ, the share of coordinates each record keeps; 1: top-k is off"""
    top_k_of: TopKOf = "active"
    """what ρ is a share of: the active coordinates, or all d, of which no more than the active ones can be kept"""
    variance_start: VarianceStart = "constant"
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
        return _State(self, context)

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
        by = self.unfreeze_by
        return MaskSchedule(retention=self.retention, kind=self.schedule, unfreeze_by=by, stairs=self.stairs)

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


class _State(MethodState):
    def __init__(self, options: AdaDPIGU, context: RunContext) -> None:
        size, device = context.layout.size, context.device
        self._options = options
        self._context = context
        self._groups = context.layout.layer_index().to(device)
        self._importance = Importance(size, options.score, device, context.public_rng(0))
        self._power = LayerPower(self._groups)
        self._halves = CoordinatePower(size, device) if options._least_importance_steps() == 2 else None
        self._schedule = options._mask_schedule()
        self._mask = GrowingMask(context.layout, device)
        self._top_k_count = torch.zeros((), dtype=torch.int64, device=device)
        self._statistics: Statistics | None = None
        self._moving = False
        target, rate, count_noise = options.clip_quantile, options.clip_rate, options.count_noise
        self._bound = FollowedBound(options.clip_norm, context, target=target, rate=rate, count_noise=count_noise)
        self._first: Tensor | None = None
        self._restricts = True
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

    def capture_key(self, stage: Stage) -> Hashable | None:
        if self._options.clip_quantile is not None:  # C is a number of Python's
            return None
        return stage.name, self._mask.trained, self._moving, self._mask.grows, self._share_kept < 1

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        if stage.name != "training":
            return
        if self._statistics is None:
            if self._options._public:
                assert self._context.public_scores is not None
                self._importance.take_public(self._context.public_scores())
            self._statistics = self._begin_training(self._worthwhile())
        count = self._schedule.count(self._mask.size, index, stage.steps)
        self._moving = count != self._mask.count
        if self._moving:
            self._mask.aim(count)
            self._keep_entries(count)
        by_optimiser = self._options.variance_from == "optimiser"
        if self._moving and (by_optimiser or self._options.mode == "prune"):  # the mask acts before the step begins
            self._move(self._statistics)
            self._moving = False
        if by_optimiser:  # β from what the optimiser has learned of releases until now
            assert self._context.second_moment is not None
            active, statistics = self._mask.active, self._statistics
            noise = statistics.noise_variance(statistics.scale(active), self._noise)
            statistics.follow(self._context.second_moment(), noise_variance=noise, active=active)

    def _keep_entries(self, count: int) -> None:
        """How many entries of a record top-k keeps of `count` active ones."""
        options, of = self._options, count if self._options.top_k_of == "active" else self._mask.size
        kept = min(count, entries_kept(options.top_k, of))
        self._share_kept = kept / count
        self._top_k_count.fill_(kept)

    @property
    def _noise(self) -> float:
        """σC/B, the standard deviation of the noise in a mean of releases that are not scaled."""
        noise = self._context.noise_multiplier * (self._bound.value * self._context.per_owner)
        return noise / math.sqrt(1 - self._bound.share) / self._context.batch_size

    def _begin_training(self, restricts: bool) -> Statistics:
        """Ends stage 1: fixes the ranking, whether it makes a mask, and where β starts."""
        options = self._options
        self._restricts, ranking = restricts, self._importance.ranking()
        if not restricts:
            self._schedule = MaskSchedule(retention=1.0)
        if self._schedule.retention < 1:
            self._mask.rank(ranking)
        self._first = chosen(ranking, self._schedule.count(self._mask.size, 0, 1))
        if options.blocks:
            assert self._halves is not None
            self._groups = self._halves.blocks(options.blocks)
        if options.variance_start == "stage-1":
            start = self._halves.variance(self._groups) if self._halves and options.blocks else self._power.variance()
        else:
            value = options.beta if options.variance_start == "constant" else self._noise**2
            start = torch.full((self._mask.size,), value, dtype=torch.float64, device=self._context.device)
        start = start.to(self._context.weights.dtype)
        return Statistics(options._statistics_options(), variance=start, groups=self._groups)

    def _worthwhile(self) -> bool:
        """Whether the power that a mask freezes out, measured by half of stage 1, is less than the noise it saves.

        Scores made of releases rank by the other half here: what made a coordinate rank high must not measure it too.
        """
        options = self._options
        if options.restrict == "always" or options.retention == 1:
            return True
        assert self._halves is not None
        ranking = self._importance.ranking() if options.score in ("random", "public") else self._halves.ranking()
        frozen = ranking[self._schedule.count(self._mask.size, 0, 1) :]
        return bool(self._halves.measured()[frozen].mean() < self._noise**2)

    def outputs(self) -> State:
        """Importance s and the mask m with which stage 2 began, as Algorithm 1 gives them."""
        if self._first is None or not (self._options.retention < 1 or self._options._least_importance_steps()):
            return {}
        return {"importance": self._importance.scores.float(), "mask": self._first}

    def _learners(self) -> dict[str, TensorState | FollowedBound]:
        """What learns in both stages, by its name in a checkpoint."""
        found: dict[str, TensorState | FollowedBound] = {"importance": self._importance, "power": self._power}
        if self._halves is not None:
            found["halves"] = self._halves
        if self._options.clip_quantile is not None:
            found["bound"] = self._bound
        return found

    def state(self) -> State:
        found: State = {}
        for name, learner in self._learners().items():
            found |= named(name, learner.state())
        if self._statistics is not None:
            found |= {"mask.count": as_tensor(self._mask.count), "mask.restricts": as_tensor(self._restricts)}
            found |= named("statistics", self._statistics.state())
        return found

    def load(self, state: State) -> None:
        """The ranking follows from the scores, so that it is not kept; before `restrict` was an option, all did."""
        for name, learner in self._learners().items():
            learner.load(part(name, state))
        if "mask.count" in state:
            self._statistics = self._begin_training(bool(state.get("mask.restricts", True)))
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
        return self._rank(batches) if self._statistics is None else self._train(batches, self._statistics)

    def _release(self, batches: Batches, query: GradientSum) -> tuple[Release, Release, float]:
        """ĝ for the optimiser, ĝ to learn from, and the deviation of the latter's noise before it was restored."""
        follows = self._options.clip_quantile is not None
        total = self._bound.release(batches, query) if follows else batches.release(query)[query.name]
        batch_size = self._context.batch_size
        restored = total.map(restore := lambda value: query.restore(value, batch_size))
        clearer = batches.denoise(total)
        direction = restored if clearer is total else clearer.map(restore)
        return direction, restored, (total.noise_stddev or 0.0) / batch_size

    def _rank(self, batches: Batches) -> Release:
        """Stage 1: a DP-SGD step whose release also feeds the scores and the power of layers or coordinates."""
        query = GradientSum(clip_norm=self._bound.value, share=1 - self._bound.share)
        direction, restored, noise = self._release(batches, query)
        self._importance.update(restored)
        self._power.update(restored, noise_variance=noise**2)
        if self._halves is not None:
            self._halves.update(restored, noise_variance=noise**2)
        return direction

    def _train(self, batches: Batches, statistics: Statistics) -> Release:
        """Stage 2: standardise, clip, release, restore, learn."""
        with side_stream(self._context.device):
            if self._moving:
                self._move(statistics)
            active = self._mask.snapshot()
            scale = None if statistics.plain else statistics.scale(active)
            query = GradientSum(
                clip_norm=self._bound.value,
                active=active,
                center=None if statistics.mean_held else statistics.mean.clone(),
                scale=scale,
                top_k=self._share_kept,
                share=1 - self._bound.share,
                trained=self._mask.trained,
                top_k_count=self._top_k_count,
            )
        direction, restored, noise = self._release(batches, query)
        with side_stream(self._context.device):
            statistics.update(restored, noise_variance=statistics.noise_variance(scale, noise))
        return direction

    def _move(self, statistics: Statistics) -> None:
        """Brings the mask to where `begin_step` wants it, and gives those that return their start."""
        if self._mask.grows:
            statistics.init_returned(*self._mask.returning())
        self._mask.move()
