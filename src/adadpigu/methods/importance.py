"""Stage 1: releases -> importance scores -> ranking, and the power of layers or coordinates. Public.

    absolute  s_j = Σ_t |g̃_tj| / T_pre      signed  s_j = |Σ_t g̃_tj| / T_pre      energy  s_j = Σ_t g̃_tj² / T_pre

The published code sums the un-noised gradient; here nothing but a `Release` is taken. `random` and `public` look at
none: scores are drawn before training, so that one sees what importance is worth, or come from public images.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from adadpigu.core.mechanism import Release, look
from adadpigu.core.state import TensorState
from adadpigu.methods.statistics import group_means

Score = Literal["absolute", "signed", "energy", "random", "public"]

_TERMS: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute": torch.Tensor.abs,
    "signed": lambda gradient: gradient,
    "energy": torch.Tensor.square,
    "random": torch.zeros_like,
    "public": torch.zeros_like,
}


class Importance(TensorState):
    """Accumulates a score for each coordinate from noisy mean gradients."""

    state_names: ClassVar[tuple[str, ...]] = ("_sum", "_count")

    def __init__(
        self,
        size: int,
        score: Score = "absolute",
        device: torch.device | None = None,
        public_rng: np.random.Generator | None = None,
    ) -> None:
        """`public_rng` draws the public scores of `random`."""
        self._term = _TERMS[score]
        self._sum = torch.zeros(size, dtype=torch.float64, device=device)
        if score == "random":
            assert public_rng is not None
            self._sum += torch.from_numpy(public_rng.random(size)).to(self._sum.device)
        self._count = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, gradient: Release) -> None:
        self._sum += self._term(look(gradient)[0].double().to(self._sum.device))
        self._count += 1

    def take_public(self, scores: Tensor) -> None:
        """Takes scores, [d], that no record had a part in."""
        self._sum.copy_(scores)
        self._count.fill_(1)

    @property
    def scores(self) -> Tensor:
        """s_j, the mean over the steps taken so far (the absolute value matters to `signed` alone)."""
        return self._sum.abs() / self._count.clamp(min=1)

    def ranking(self) -> Tensor:
        """Coordinates by score, descending, ties broken by index."""
        return rank(self.scores)


def rank(scores: Tensor) -> Tensor:
    """Positions in order of descending score, ties broken by index.

    >>> rank(torch.tensor([1.0, 3.0, 1.0, 2.0])).tolist()
    [1, 3, 0, 2]
    """
    return torch.argsort(scores, descending=True, stable=True)


def chosen(ranking: Tensor, count: int) -> Tensor:
    """The mask of the first `count` positions of a ranking.

    >>> chosen(torch.tensor([2, 0, 1]), 2).tolist()
    [True, False, True]
    """
    return torch.zeros(len(ranking), dtype=torch.bool, device=ranking.device).index_fill_(0, ranking[:count], True)


class LayerPower(TensorState):
    """Estimates each layer's mean squared gradient from stage-1 releases, noise variance subtracted."""

    state_names: ClassVar[tuple[str, ...]] = ("_sum", "_count")

    def __init__(self, layers: Tensor) -> None:
        self._layers = layers
        self._layer_count = int(layers.max()) + 1
        self._sum = torch.zeros(self._layer_count, dtype=torch.float64, device=layers.device)
        self._count = torch.zeros((), dtype=torch.float64, device=layers.device)

    def update(self, gradient: Release, *, noise_variance: float) -> None:
        """Takes a stage-1 mean gradient and the variance of its noise."""
        squares = look(gradient)[0].double().square() - noise_variance
        self._sum += group_means(squares, self._layers, self._layer_count)
        self._count += 1

    def variance(self) -> Tensor:
        """β_l with √β_l ∝ P_l^(1/4), geometric mean 1 over the layers, spread over the coordinates, [d]."""
        return _balanced(self._sum / self._count.clamp(min=1))[self._layers]


class CoordinatePower(TensorState):
    """Each coordinate's mean squared release less its noise, over the first, third, … step of stage 1 and the others.

    What one half ranks, the other measures: noise that made a coordinate look strong is not in its measurement too.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_sums", "_count")

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
        return rank(self._sums[0])

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
        return _balanced(group_means(self.measured(), blocks, int(blocks.max()) + 1))[blocks]


def _balanced(power: Tensor) -> Tensor:
    """β of each group with √β ∝ P^(1/4) and geometric mean 1 over the groups.

    A group whose estimate is not above zero carries no visible signal: it gets a hundredth of the least positive one.
    """
    positive = power[power > 0]
    if not len(positive):
        return torch.ones_like(power)
    root = power.clamp(min=float(positive.min()) / 100).pow(0.25)
    return (root / root.log().mean().exp()).square()
