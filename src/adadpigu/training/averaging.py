"""Averages of the weights, which are what is evaluated and kept.

Weights are functions of releases, so averaging them is free; only a `Release` is taken.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.mechanism import Release, look
from adadpigu.state import State, number


class WeightAverage(Protocol):
    """An average of the weights over the steps of a run."""

    @property
    def value(self) -> Tensor: ...

    def begin_step(self) -> None:
        """Counts a step; called before each."""
        ...

    def update(self, weights: Release) -> None:
        """Takes the weights after a step: a function of releases, and accepted as such only."""
        ...

    def state(self) -> State:
        """What a checkpoint keeps."""
        ...

    def load(self, state: State) -> None:
        """Takes it again."""
        ...


class _Average(ABC):
    """θ̄ ← θ̄ + w_t (θ − θ̄). The weight w_t lies beside θ̄, so that a recorded step finds the new one there."""

    def __init__(self, start: Tensor) -> None:
        self._steps = 0
        self._filled = 1.0
        self._weight = torch.ones((), dtype=start.dtype, device=start.device)
        self.value = start.clone()

    def begin_step(self) -> None:
        self._steps += 1
        if (share := self._share()) != self._filled:
            self._weight.fill_(share)
            self._filled = share

    def update(self, weights: Release) -> None:
        self.value.lerp_(look(weights)[0], self._weight)

    def state(self) -> State:
        return {"value": self.value, "steps": number(self._steps)}

    def load(self, state: State) -> None:
        self.value.copy_(state["value"])
        self._steps = int(state["steps"])

    @abstractmethod
    def _share(self) -> float:
        """w_t."""


class ExponentialAverage(_Average):
    """θ̄ ← θ̄ + (1 − d_t)(θ − θ̄), d_t = min(decay, (1 + t)/(10 + t)), so that early weights are forgotten fast."""

    def __init__(self, decay: float, start: Tensor) -> None:
        if not 0 < decay < 1:
            raise InputError(f"ema={decay} is not in (0, 1)")
        self._decay = decay
        super().__init__(start)

    def _share(self) -> float:
        return 1 - min(self._decay, (1 + self._steps) / (10 + self._steps))


class TailAverage(_Average):
    """The plain mean of the weights of the last `share` of the steps; before those begin, the weights themselves."""

    def __init__(self, share: float, steps: int, start: Tensor) -> None:
        if not 0 < share <= 1:
            raise InputError(f"tail={share} is not in (0, 1]")
        self._first = steps - max(1, math.ceil(share * steps - 1e-9))
        super().__init__(start)

    def _share(self) -> float:
        return 1 / max(1, self._steps - self._first)
