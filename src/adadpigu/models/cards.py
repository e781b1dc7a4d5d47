"""What is told of a model, and how one is built: a card, with an activation by name. Public throughout.

tanh, relu, or the tempered sigmoid s·σ(T x) − o: bounded activations keep per-sample gradients small, so that clipping
takes less of them (Papernot et al., 2021).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError

Activation = Callable[[], nn.Module]


class TemperedSigmoid(nn.Module):
    """s·σ(T x) − o with scale s, (inverse) temperature T and offset o; tanh is (2, 2, 1)."""

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
        allowed = "tanh, relu, or tempered:SCALE,TEMPERATURE,OFFSET with scale and temperature above 0"
        raise InputError(f"activation={text!r}; allowed: {allowed}")
    return lambda: TemperedSigmoid(scale, temperature, offset)


Net = Callable[[tuple[int, ...], int, Activation], nn.Module]  # a net from record shape, number of classes, activation


@dataclass(frozen=True)
class ModelCard:
    """What `adadpigu models` tells of a model."""

    name: str
    net: Net
    shape: tuple[int, ...] | None  # the shape of a record that the model takes; None for any
    about: str
    activation: str = "tanh"  # what stands between its layers where nobody chooses

    def build(self, shape: tuple[int, ...], classes: int, activation: str | None = None) -> nn.Module:
        """A freshly initialised model for records of this shape; activation as in `parse_activation`."""
        return self.net(shape, classes, parse_activation(self.activation if activation is None else activation))

    def parameters(self) -> int | None:
        """How many parameters there are; None where the data decides."""
        return None if self.shape is None else sum(p.numel() for p in self.build(self.shape, 10).parameters())
