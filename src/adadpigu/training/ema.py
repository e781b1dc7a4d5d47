"""An exponential moving average of the weights. Weights are post-processed releases, so averaging them is free."""

from __future__ import annotations

from torch import Tensor

from adadpigu.errors import InputError


class WeightAverage:
    """θ̄ ← θ̄ + (1 − d_t)(θ − θ̄), d_t = min(decay, (1 + t)/(10 + t)), so that early weights are forgotten fast."""

    def __init__(self, decay: float, start: Tensor) -> None:
        if not 0 < decay < 1:
            raise InputError(f"ema={decay} is not in (0, 1)")
        self._decay = decay
        self._steps = 0
        self.value = start.clone()

    def update(self, parameters: Tensor) -> None:
        """Takes the weights after a step."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        self.value += (1 - decay) * (parameters - self.value)
