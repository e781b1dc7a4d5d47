"""Releases -> α and β, the mean and the spread that standardise the next step's gradients. After the noise: public.

    β ← γ2 β + (1 − γ2)(ĝ − α)²      then      α ← γ1 α + (1 − γ1) ĝ      on active coordinates only

Options: the known noise variance is subtracted from (ĝ − α)² and β is kept within [h1, h2]; β is shared by the
coordinates of a layer, or of a block of equal power; it starts from what stage 1 released; it is the optimiser's second
moment, itself a function of releases; only its shape matters, not its level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.mechanism import Release, look
from adadpigu.state import State

VarianceFrom = Literal["releases", "optimiser"]


@dataclass(frozen=True, kw_only=True)
class StatisticsOptions:
    """How α and β move. γ1 = γ2 = 1 holds them where they start."""

    mean_decay: float = 1.0
    """γ1"""
    variance_decay: float = 1.0
    """γ2"""
    offset: float = 0.0
    """μ, added to √β"""
    debias: bool = False
    """subtract the known noise variance before β learns from (ĝ − α)²"""
    floor: float = 0.0
    """h1, the least β"""
    ceiling: float = float("inf")
    """h2, the largest β"""
    noise_floor: float = 0.0
    """the least β as a share of the known noise variance of ĝ"""
    per_layer: bool = False
    """share β (not α) among the coordinates of a layer"""
    blocks: int = 0
    """share β among so many blocks of coordinates; 0: there are none"""
    variance_from: VarianceFrom = "releases"
    """what β follows: the spread of releases, or the second moment that the run's optimiser keeps of them"""
    normalise: bool = False
    """divide √β + μ by its geometric mean over the active coordinates, so that C stays in the gradient's units"""

    def __post_init__(self) -> None:
        for name in ("mean_decay", "variance_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)} is not in [0, 1]")
        if not self.offset >= 0:
            raise InputError(f"offset={self.offset} (μ) is not at least 0")
        if not 0 <= self.noise_floor < math.inf:
            raise InputError(f"noise_floor={self.noise_floor} is not a finite number of at least 0")
        if self.blocks < 0 or (self.blocks and self.per_layer):
            raise InputError(
                f"blocks={self.blocks} with per_layer={self.per_layer}; allowed: 0 or more, one of the two"
            )
        if not 0 <= self.floor <= self.ceiling:
            raise InputError(f"floor={self.floor} and ceiling={self.ceiling} do not satisfy 0 ≤ floor ≤ ceiling")
        if self.floor == 0 and self.offset == 0 and self.moves_variance:
            raise InputError(
                "offset=0 with floor=0 lets √β + μ reach 0; allowed: offset > 0 or floor > 0 where β moves"
            )

    @property
    def moves_variance(self) -> bool:
        """Whether β changes after the start."""
        return self.variance_from == "optimiser" or self.variance_decay < 1

    @property
    def knows_noise(self) -> bool:
        """Whether β makes use of the known noise variance."""
        return self.debias or self.noise_floor > 0

    @property
    def shares(self) -> bool:
        """Whether coordinates of a group have one β."""
        return self.per_layer or self.blocks > 0


class Statistics:
    """α and β for every coordinate, learned from releases alone."""

    def __init__(self, options: StatisticsOptions, *, variance: Tensor, groups: Tensor) -> None:
        """`variance` is β at the start, [d], whose dtype state has; `groups` the number of each coordinate's group."""
        self._options = options
        self._groups = groups
        self._group_count = int(groups.max()) + 1
        self.variance = variance.clamp(options.floor, options.ceiling)
        self.mean = torch.zeros_like(self.variance)
        self.plain = self.variance_held and bool((self.scale() == 1).all())
        """whether √β + μ is 1 and stays so: then nothing is scaled"""
        if not bool((self.scale() > 0).all()):
            raise InputError("√β + μ must be above 0: raise beta_start, floor or offset")

    def scale(self, active: Tensor | None = None) -> Tensor:
        """√β + μ, [d]; with `normalise`, over its geometric mean on the active coordinates (None: all)."""
        scale = self.variance.sqrt() + self._options.offset
        if not self._options.normalise:
            return scale
        logarithms = scale.log()
        if active is None:
            return scale / logarithms.mean().exp()
        return scale / (torch.where(active, logarithms, 0.0).sum() / active.sum().clamp(min=1)).exp()

    def noise_variance(self, scale: Tensor | None, stddev: float) -> Tensor | None:
        """The variance in ĝ of noise of this size in the standardised mean, where β makes use of it."""
        if not self._options.knows_noise or self.variance_held:
            return None
        return (torch.ones_like(self.variance) if scale is None else scale).mul(stddev).square()

    @property
    def variance_held(self) -> bool:
        """Whether β stays where it started."""
        return not self._options.moves_variance

    @property
    def mean_held(self) -> bool:
        """Whether α stays 0 (γ1 = 1)."""
        return self._options.mean_decay == 1

    def update(self, restored: Release, *, noise_variance: Tensor | None = None) -> None:
        """Takes ĝ (a restored release) and, to `debias`, its known noise variance ((√β + μ)σC/B)², [d]."""
        gradient, active = look(restored)
        gradient, options = gradient.to(self.mean.dtype), self._options
        if options.variance_from == "releases" and not self.variance_held:
            spread = self._cleaned((gradient - self.mean).square(), noise_variance, active)
            _set(self.variance, active, torch.lerp(self.variance, spread, 1 - options.variance_decay))
        if not self.mean_held:
            _set(self.mean, active, torch.lerp(self.mean, gradient, 1 - options.mean_decay))

    def follow(self, second_moment: Tensor, *, noise_variance: Tensor | None, active: Tensor | None) -> None:
        """Makes the optimiser's second moment of ĝ, [d], a function of releases, the β of the active coordinates."""
        _set(self.variance, active, self._cleaned(second_moment.to(self.variance), noise_variance, active))

    def _cleaned(self, spread: Tensor, noise_variance: Tensor | None, active: Tensor | None) -> Tensor:
        """The spread of ĝ without its noise, shared and bounded as the options say."""
        options = self._options
        if options.debias:
            assert noise_variance is not None
            spread = spread - noise_variance
        if options.shares:
            spread = _group_means(spread, self._groups, self._group_count, active)[self._groups]
        if options.noise_floor > 0:
            assert noise_variance is not None
            spread = torch.maximum(spread, noise_variance * options.noise_floor)
        if options.debias or options.floor > 0 or options.ceiling < math.inf:
            spread = spread.clamp(options.floor, options.ceiling)
        return spread

    def state(self) -> State:
        return {"mean": self.mean, "variance": self.variance}

    def load(self, state: State) -> None:
        self.mean.copy_(state["mean"])
        self.variance.copy_(state["variance"])

    def welcome(self, returned: Tensor, active: Tensor) -> None:
        """Coordinates that return from the frozen set start with α = 0 and the median β of the active ones.

        Both are masks. Where β is held or shared by a group, a coordinate has no β of its own to start afresh: it takes
        its group's. The optimiser keeps a second moment of every coordinate.
        """
        self.mean.masked_fill_(returned, 0.0)
        if self.variance_held or self._options.variance_from == "optimiser":
            return
        start = _median(self.variance, active)
        if self._options.shares:
            shared = _group_means(self.variance, self._groups, self._group_count, active)
            start = torch.where(shared > 0, shared, start)[self._groups]
        _set(self.variance, returned, start)


class LayerPower:
    """Estimates each layer's mean squared gradient from stage-1 releases, noise variance subtracted."""

    def __init__(self, layers: Tensor) -> None:
        self._layers = layers
        self._layer_count = int(layers.max()) + 1
        self._sum = torch.zeros(self._layer_count, dtype=torch.float64, device=layers.device)
        self._count = torch.zeros((), dtype=torch.float64, device=layers.device)

    def update(self, gradient: Release, *, noise_variance: float) -> None:
        """Takes a stage-1 mean gradient and the variance of its noise."""
        squares = look(gradient)[0].double().square() - noise_variance
        self._sum += _group_means(squares, self._layers, self._layer_count)
        self._count += 1

    def state(self) -> State:
        return {"sum": self._sum, "count": self._count}

    def load(self, state: State) -> None:
        self._sum.copy_(state["sum"])
        self._count.copy_(state["count"])

    def variance(self) -> Tensor:
        """β_l with √β_l ∝ P_l^(1/4), geometric mean 1 over the layers, spread over the coordinates, [d]."""
        return _balanced(self._sum / self._count.clamp(min=1))[self._layers]


class CoordinatePower:
    """Each coordinate's mean squared release less its noise, over the first, third, … step of stage 1 and the others.

    What one half ranks, the other measures: noise that made a coordinate look strong is not in its measurement too.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._sums = torch.zeros(2, size, dtype=torch.float64, device=device)
        self._count = torch.zeros(1, dtype=torch.int64, device=device)

    def update(self, gradient: Release, *, noise_variance: float) -> None:
        """Takes a stage-1 mean gradient and the variance of its noise."""
        squares = look(gradient)[0].double().square() - noise_variance
        self._sums.index_add_(0, self._count % 2, squares[None])
        self._count += 1

    def ranking(self) -> Tensor:
        """Coordinates by the power that the first half saw, descending, ties broken by index."""
        return torch.argsort(self._sums[0], descending=True, stable=True)

    def measured(self) -> Tensor:
        """Power by the second half, [d]: unbiased, whatever the first half says."""
        return self._sums[1] / (self._count // 2).clamp(min=1)

    def blocks(self, count: int) -> Tensor:
        """The number of each coordinate's block, [d]: blocks of equal size, by falling power."""
        size = self._sums.shape[1]
        place = torch.empty(size, dtype=torch.int64, device=self._sums.device)
        place[self.ranking()] = torch.arange(size, device=place.device)
        return place * min(count, size) // size

    def variance(self, blocks: Tensor) -> Tensor:
        """β by block as `LayerPower.variance` by layer, [d]."""
        return _balanced(_group_means(self.measured(), blocks, int(blocks.max()) + 1))[blocks]

    def state(self) -> State:
        return {"sums": self._sums, "count": self._count}

    def load(self, state: State) -> None:
        self._sums.copy_(state["sums"])
        self._count.copy_(state["count"])


def _balanced(power: Tensor) -> Tensor:
    """β of each group with √β ∝ P^(1/4) and geometric mean 1 over the groups.

    A group whose estimate is not above zero carries no visible signal: it gets a hundredth of the least positive one.
    """
    positive = power[power > 0]
    if not len(positive):
        return torch.ones_like(power)
    root = power.clamp(min=float(positive.min()) / 100).pow(0.25)
    return (root / root.log().mean().exp()).square()


def _set(state: Tensor, active: Tensor | None, new: Tensor) -> None:
    """Writes new values in place, where the mask has them."""
    if active is None:
        state.copy_(new)
    else:
        torch.where(active, new, state, out=state)


def _median(values: Tensor, active: Tensor) -> Tensor:
    """The lower median of the active values, [1]; no device waits for how many there are."""
    ordered = values.masked_fill(~active, math.inf).sort().values
    return ordered.index_select(0, ((active.sum() - 1) // 2).clamp(min=0).reshape(1))


def _group_means(values: Tensor, groups: Tensor, group_count: int, active: Tensor | None = None) -> Tensor:
    """The mean of the (active) values of each group (0 for a group without any)."""
    present = torch.ones_like(values) if active is None else active.to(values.dtype)
    total = values.new_zeros(group_count)
    count = total.index_add(0, groups, present)
    return total.index_add(0, groups, torch.where(present > 0, values, 0.0)) / count.clamp(min=1)
