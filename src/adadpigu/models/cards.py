"""What is told of a model, and how one is built: a card. Public throughout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from adadpigu.models.activations import Activation, parse_activation

Net = Callable[[tuple[int, ...], int, Activation], nn.Module]
"""a net from the shape of a record, the number of classes and an activation"""


@dataclass(frozen=True)
class ModelCard:
    """What `adadpigu models` tells of a model."""

    name: str
    net: Net
    shape: tuple[int, ...] | None
    """the shape of a record that the model takes; None for any"""
    about: str
    activation: str = "tanh"
    """what stands between its layers where nobody chooses"""

    def build(self, shape: tuple[int, ...], classes: int, activation: str | None = None) -> nn.Module:
        """A freshly initialised model for records of this shape; activation as in `parse_activation`."""
        return self.net(shape, classes, parse_activation(self.activation if activation is None else activation))

    def parameters(self) -> int | None:
        """How many parameters there are; None where the data decides."""
        return None if self.shape is None else sum(p.numel() for p in self.build(self.shape, 10).parameters())
