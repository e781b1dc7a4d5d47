"""Activations by name: tanh, relu, or the tempered sigmoid s·σ(T x) − o. Fixed functions, so free of privacy cost.

Bounded activations keep per-sample gradients small, so that clipping takes less of them (Papernot et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError

Activation = Callable[[], nn.Module]


class TemperedSigmoid(nn.Module):
    """s·σ(T x) − o with scale s, (inverse) temperature T and offset o; tanh is (2, 2, 1).

    >>> TemperedSigmoid(2, 2, 1)(torch.zeros(1))
    tensor([0.])
    """

    def __init__(self, scale: float, temperature: float, offset: float) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


_PLAIN: dict[str, Activation] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def parse_activation(text: str) -> Activation:
    """What makes the activation that a string names.

    >>> parse_activation("tempered:2,2,1")()
    TemperedSigmoid(scale=2.0, temperature=2.0, offset=1.0)
    """
    if text in _PLAIN:
        return _PLAIN[text]
    kind, _, numbers = text.partition(":")
    try:
        scale, temperature, offset = (float(number) for number in numbers.split(","))
        usable = scale > 0 and temperature > 0 and all(map(math.isfinite, (scale, temperature, offset)))
    except ValueError:
        usable = False
    if kind != "tempered" or not usable:
        raise InputError(
            f"activation={text!r}; allowed: tanh, relu, or tempered:SCALE,TEMPERATURE,OFFSET with scale and "
            "temperature above 0"
        )
    return lambda: TemperedSigmoid(scale, temperature, offset)
