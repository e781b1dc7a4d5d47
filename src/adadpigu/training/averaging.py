"""Averages of the weights, which are what is evaluated and kept.

Weights are functions of releases, so averaging them is free; only a `Release` is taken.
"""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.mechanism import Release, require_release


class WeightAverage(Protocol):
    """An average of the weights over the steps of a run."""

    @property
    def value(self) -> Tensor: ...

    def update(self, weights: Release) -> None:
        """Takes the weights after a step: a function of releases, and accepted as such only."""
        ...


class ExponentialAverage:
    """θ̄ ← θ̄ + (1 − d_t)(θ − θ̄), d_t = min(decay, (1 + t)/(10 + t)), so that early weights are forgotten fast."""

    def __init__(self, decay: float, start: Tensor) -> None:
        if not 0 < decay < 1:
            raise InputError(f"ema={decay} is not in (0, 1)")
        self._decay = decay
        self._steps = 0
        self.value = start.clone()

    def update(self, weights: Release) -> None:
        parameters = require_release(weights).value
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        self.value += (1 - decay) * (parameters - self.value)


class TailAverage:
    """The plain mean of the weights of the last `share` of the steps; before those begin, the weights themselves."""

    def __init__(self, share: float, steps: int, start: Tensor) -> None:
        if not 0 < share <= 1:
            raise InputError(f"tail={share} is not in (0, 1]")
        self._first = steps - max(1, math.ceil(share * steps - 1e-9))
        self._steps = 0
        self.value = start.clone()

    def update(self, weights: Release) -> None:
        parameters = require_release(weights).value
        self._steps += 1
        taken = max(1, self._steps - self._first)
        self.value = parameters if taken == 1 else self.value + (parameters - self.value) / taken
