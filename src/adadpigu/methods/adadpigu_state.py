"""AdaDPIGU at work: stage 1 ranks coordinates by releases; stage 2 standardises, clips, releases, restores, learns."""

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import Release
from adadpigu.core.side_stream import side_stream
from adadpigu.core.standardising import entries_kept
from adadpigu.core.state import State, TensorState, as_tensor, named, part
from adadpigu.methods.base import Batches, MethodState, RunContext, Stage
from adadpigu.methods.importance import CoordinatePower, Importance, LayerPower, chosen, rank
from adadpigu.methods.mask import GrowingMask, MaskSchedule
from adadpigu.methods.quantile import FollowedBound
from adadpigu.methods.statistics import Statistics, group_means

if TYPE_CHECKING:
    from adadpigu.methods.adadpigu import AdaDPIGU


class AdaDPIGUState(MethodState):
    """Importance, mask, statistics and bound of one run; it learns from releases alone."""

    def __init__(self, options: "AdaDPIGU", context: RunContext) -> None:
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
        self._restricts, ranking = restricts, self._ranking()
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

    def _ranking(self) -> Tensor:
        """Coordinates in the order in which they become active."""
        options, layers = self._options, self._groups
        count = int(layers.max()) + 1
        ranking = self._importance.ranking()
        if options.order == "layers":
            ranking = rank(group_means(self._importance.scores, layers, count)[layers])
        if options.head_first:
            ranking = ranking[rank((layers[ranking] == count - 1).double())]
        return ranking

    def _worthwhile(self) -> bool:
        """Whether the power that a mask freezes out, measured by half of stage 1, is less than the noise it saves.

        Scores made of releases rank by the other half here: what made a coordinate rank high must not measure it too.
        """
        options = self._options
        if options.restrict == "always" or options.retention == 1:
            return True
        assert self._halves is not None
        ranking = self._ranking() if options.score in ("random", "public") else self._halves.ranking()
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
