"""Stage 2: releases -> α and β, which standardise the next step's gradients. Public.

    β ← γ2 β + (1 − γ2)(ĝ − α)²      then      α ← γ1 α + (1 − γ1) ĝ      on active coordinates only

Options: the known noise variance is subtracted from (ĝ − α)² and β is kept within [h1, h2]; β is shared by the
coordinates of a layer, or of a block of equal power; it starts from what stage 1 released; it is the optimiser's second
moment, itself a function of releases; only its shape matters, not its level.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.core.mechanism import Release, look
from adadpigu.core.state import TensorState
from adadpigu.errors import require
from adadpigu.methods.base import check_options

Decay = Annotated[float, "in [0, 1]"]
NoiseFloor = Annotated[float, "a finite number of at least 0"]
VarianceFrom = Literal["releases", "optimiser"]


@dataclass(frozen=True, kw_only=True)
class StatisticsOptions:
    """How α and β move: the options of these names of `AdaDPIGU`. γ1 = γ2 = 1 holds them where they start."""

    mean_decay: Decay = 1.0
    variance_decay: Decay = 1.0
    offset: Annotated[float, "at least 0"] = 0.0
    debias: bool = False
    floor: float = 0.0
    ceiling: float = float("inf")
    noise_floor: NoiseFloor = 0.0
    per_layer: bool = False
    blocks: int = 0
    variance_from: VarianceFrom = "releases"
    normalise: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        fits = self.blocks == 0 or (self.blocks > 0 and not self.per_layer)
        require(fits, f"blocks={self.blocks} with per_layer={self.per_layer}; allowed: 0 or more, one of the two")
        bounds = f"floor={self.floor} and ceiling={self.ceiling}"
        require(0 <= self.floor <= self.ceiling, f"{bounds} do not satisfy 0 ≤ floor ≤ ceiling")
        above_zero = self.floor > 0 or self.offset > 0 or not self.moves_variance
        require(above_zero, "offset=0 with floor=0 lets √β + μ reach 0; allowed: either above 0 where β moves")

    @property
    def moves_variance(self) -> bool:
        return self.variance_from == "optimiser" or self.variance_decay < 1

    @property
    def shares(self) -> bool:
        """Whether coordinates of a group have one β."""
        return self.per_layer or self.blocks > 0


class Statistics(TensorState):
    """α and β for every coordinate, learned from releases alone."""

    state_names: ClassVar[tuple[str, ...]] = ("mean", "variance")

    def __init__(self, options: StatisticsOptions, *, variance: Tensor, groups: Tensor) -> None:
        """`variance` is β at the start, [d], whose dtype state has; `groups` the number of each coordinate's group."""
        self._options = options
        self.variance_held = not options.moves_variance  # whether β stays where it started
        self.mean_held = options.mean_decay == 1  # whether α stays 0 (γ1 = 1)
        self._groups = groups
        self._group_count = int(groups.max()) + 1
        self.variance = variance.clamp(options.floor, options.ceiling)
        self.mean = torch.zeros_like(self.variance)
        self.plain = self.variance_held and bool((self.scale() == 1).all())  # whether √β + μ stays 1: nothing is scaled
        require((self.scale() > 0).all(), "√β + μ must be above 0: raise beta, floor or offset")

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
        if self.variance_held or not (self._options.debias or self._options.noise_floor > 0):
            return None
        return (torch.ones_like(self.variance) if scale is None else scale).mul(stddev).square()

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
            spread = group_means(spread, self._groups, self._group_count, active)[self._groups]
        if options.noise_floor > 0:
            assert noise_variance is not None
            spread = torch.maximum(spread, noise_variance * options.noise_floor)
        if options.debias or options.floor > 0 or options.ceiling < math.inf:
            spread = spread.clamp(options.floor, options.ceiling)
        return spread

    def init_returned(self, returned: Tensor, active: Tensor) -> None:
        """Coordinates that return from the frozen set start with the lower median β of the active ones, and α = 0.

        Both are masks; α is 0 where nothing was learned. A shared β is the group's; one that is held, or is the
        optimiser's, stays.
        """
        if self.variance_held or self._options.variance_from == "optimiser":
            return
        ordered = self.variance.masked_fill(~active, math.inf).sort().values  # no device waits for how many are active
        start = ordered.index_select(0, ((active.sum() - 1) // 2).clamp(min=0).reshape(1))
        if self._options.shares:
            shared = group_means(self.variance, self._groups, self._group_count, active)
            start = torch.where(shared > 0, shared, start)[self._groups]
        _set(self.variance, returned, start)


def _set(state: Tensor, active: Tensor | None, new: Tensor) -> None:
    if active is None:
        state.copy_(new)
    else:
        torch.where(active, new, state, out=state)


def group_means(values: Tensor, groups: Tensor, group_count: int, active: Tensor | None = None) -> Tensor:
    """The mean of the (active) values of each group (0 for a group without any)."""
    present = torch.ones_like(values) if active is None else active.to(values.dtype)
    total = values.new_zeros(group_count)
    count = total.index_add(0, groups, present)
    return total.index_add(0, groups, torch.where(present > 0, values, 0.0)) / count.clamp(min=1)
