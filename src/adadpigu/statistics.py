"""Releases -> α and β, the mean and the spread that standardise the next step's gradients. After the noise: public.

    β ← γ2 β + (1 − γ2)(ĝ − α)²      then      α ← γ1 α + (1 − γ1) ĝ      on active coordinates only

Options: the known noise variance is subtracted from (ĝ − α)² and β is kept within [h1, h2]; β is shared by all
coordinates of a layer; β starts from what stage 1 released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.mechanism import Release, look
from adadpigu.state import State


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
    per_layer: bool = False
    """share β (not α) among the coordinates of a layer"""

    def __post_init__(self) -> None:
        for name in ("mean_decay", "variance_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)} is not in [0, 1]")
        if not self.offset >= 0:
            raise InputError(f"offset={self.offset} (μ) is not at least 0")
        if not 0 <= self.floor <= self.ceiling:
            raise InputError(f"floor={self.floor} and ceiling={self.ceiling} do not satisfy 0 ≤ floor ≤ ceiling")
        if self.floor == 0 and self.offset == 0 and self.variance_decay < 1:
            raise InputError(
                "offset=0 with floor=0 lets √β + μ reach 0; allowed: offset > 0 or floor > 0 where β moves"
            )


class Statistics:
    """α and β for every coordinate, learned from releases alone."""

    def __init__(self, options: StatisticsOptions, *, variance: Tensor, layers: Tensor) -> None:
        """`variance` is β at the start, [d], whose dtype state has; `layers` the number of each coordinate's layer."""
        self._options = options
        self._layers = layers
        self._layer_count = int(layers.max()) + 1
        self.variance = variance.clamp(options.floor, options.ceiling)
        self.mean = torch.zeros_like(self.variance)
        self.plain = self.variance_held and bool((self.scale == 1).all())
        """whether √β + μ is 1 and stays so: then nothing is scaled"""
        if not bool((self.scale > 0).all()):
            raise InputError("√β + μ must be above 0: raise beta_start, floor or offset")

    @property
    def scale(self) -> Tensor:
        """√β + μ, [d]."""
        return self.variance.sqrt() + self._options.offset

    def noise_variance(self, stddev: float) -> Tensor | None:
        """What `update` wants to know of noise of this size in the standardised mean: its variance in ĝ, if at all."""
        return (self.scale * stddev).square() if self._options.debias and not self.variance_held else None

    @property
    def variance_held(self) -> bool:
        """Whether β stays where it started (γ2 = 1)."""
        return self._options.variance_decay == 1

    @property
    def mean_held(self) -> bool:
        """Whether α stays 0 (γ1 = 1)."""
        return self._options.mean_decay == 1

    def update(self, restored: Release, *, noise_variance: Tensor | None = None) -> None:
        """Takes ĝ (a restored release) and, to `debias`, its known noise variance ((√β + μ)σC/B)², [d]."""
        gradient, active = look(restored)
        gradient, options = gradient.to(self.mean.dtype), self._options
        if not self.variance_held:
            spread = (gradient - self.mean).square()
            if options.debias:
                assert noise_variance is not None
                spread = spread - noise_variance
            if options.per_layer:
                spread = _layer_means(spread, self._layers, self._layer_count, active)[self._layers]
            if options.debias or options.floor > 0 or options.ceiling < math.inf:
                spread = spread.clamp(options.floor, options.ceiling)
            _set(self.variance, active, torch.lerp(self.variance, spread, 1 - options.variance_decay))
        if not self.mean_held:
            _set(self.mean, active, torch.lerp(self.mean, gradient, 1 - options.mean_decay))

    def state(self) -> State:
        return {"mean": self.mean, "variance": self.variance}

    def load(self, state: State) -> None:
        self.mean.copy_(state["mean"])
        self.variance.copy_(state["variance"])

    def welcome(self, returned: Tensor, active: Tensor) -> None:
        """Coordinates that return from the frozen set start with α = 0 and the median β of the active ones.

        Both are masks. Where β is held or shared by a layer, a coordinate has no β of its own to start afresh: it takes
        its layer's.
        """
        self.mean.masked_fill_(returned, 0.0)
        if self.variance_held:
            return
        start = _median(self.variance, active)
        if self._options.per_layer:
            shared = _layer_means(self.variance, self._layers, self._layer_count, active)
            start = torch.where(shared > 0, shared, start)[self._layers]
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
        self._sum += _layer_means(squares, self._layers, self._layer_count)
        self._count += 1

    def state(self) -> State:
        return {"sum": self._sum, "count": self._count}

    def load(self, state: State) -> None:
        self._sum.copy_(state["sum"])
        self._count.copy_(state["count"])

    def variance(self) -> Tensor:
        """β_l with √β_l ∝ P_l^(1/4), geometric mean 1 over the layers, spread over the coordinates, [d].

        A layer whose estimate is not above zero carries no visible signal: it gets a hundredth of the smallest
        positive one.
        """
        power = self._sum / self._count.clamp(min=1)
        positive = power[power > 0]
        if not len(positive):
            return torch.ones(len(self._layers), dtype=torch.float64, device=self._layers.device)
        root = power.clamp(min=float(positive.min()) / 100).pow(0.25)
        scale = root / root.log().mean().exp()
        return scale.square()[self._layers]


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


def _layer_means(values: Tensor, layers: Tensor, layer_count: int, active: Tensor | None = None) -> Tensor:
    """The mean of the (active) values of each layer (0 for a layer without any)."""
    present = torch.ones_like(values) if active is None else active.to(values.dtype)
    total = values.new_zeros(layer_count)
    count = total.index_add(0, layers, present)
    return total.index_add(0, layers, torch.where(present > 0, values, 0.0)) / count.clamp(min=1)
