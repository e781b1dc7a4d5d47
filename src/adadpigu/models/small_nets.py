"""Small nets: linear and one hidden layer for records of any shape, and two nets for the embedded digits."""

from __future__ import annotations

import math

from torch import nn

from adadpigu.models.activations import Activation
from adadpigu.models.cards import ModelCard

_DIGITS = (1, 8, 8)


def linear(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), activation(), nn.Linear(64, classes))


def _digits_mlp(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    """Each record is normalised by itself, which mixes nothing and costs nothing."""
    return nn.Sequential(
        nn.Flatten(),
        nn.LayerNorm(64, elementwise_affine=False),
        nn.Linear(64, 64),
        activation(),
        nn.Linear(64, classes),
    )


def _digits_cnn(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm((1, 8, 8), elementwise_affine=False),
        nn.Conv2d(1, 16, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


CARDS = (
    ModelCard("digits-cnn", _digits_cnn, _DIGITS, "CNN for the embedded digits"),
    ModelCard("digits-mlp", _digits_mlp, _DIGITS, "MLP with 64 hidden units for the embedded digits"),
    ModelCard("linear", linear, None, "one linear layer, for records of any shape"),
    ModelCard("mlp", _mlp, None, "MLP with 64 hidden units, for records of any shape"),
)
