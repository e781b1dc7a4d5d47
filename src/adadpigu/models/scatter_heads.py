"""Heads on scattering features: what is trained behind the fixed transform of `features.scattering`.

Records are features, 81 channels a plane, normalised before they come here. The nets are those of Tramèr and Boneh
(2021).
"""

from __future__ import annotations

from torch import nn

from adadpigu.models.activations import Activation
from adadpigu.models.cards import ModelCard
from adadpigu.models.small_nets import linear


def _gray(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(81, 16, 3, stride=2, padding=1),
        activation(),
        nn.Conv2d(16, 32, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(512, 32),
        activation(),
        nn.Linear(32, classes),
    )


def _rgb(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(243, 64, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(1024, classes),
    )


CARDS = (
    ModelCard("scatter-linear", linear, None, "one linear layer on scattering features of any image"),
    ModelCard("scatter-cnn-gray", _gray, (81, 7, 7), "CNN on scattering features of 28×28 gray images"),
    ModelCard("scatter-cnn-rgb", _rgb, (243, 8, 8), "CNN on scattering features of 32×32 colour images"),
)
