"""Small nets: for records of any shape, for the embedded digits, the paper's CNNs, and heads on scattering features.

The paper's tables and its published code disagree on both CNNs, so all four are here, named plainly. Heads are those of
Tramèr and Boneh (2021); their records are features, 81 channels a plane, normalised before they come here.
"""

from __future__ import annotations

import math

from torch import nn

from adadpigu.models.cards import Activation, ModelCard, Net

_DIGITS, _GRAY, _RGB = (1, 8, 8), (1, 28, 28), (3, 32, 32)


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


def _mnist_cnn(padding: int, features: int) -> Net:
    def net(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=2),
            activation(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2, padding=padding),
            activation(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(features, 32),
            activation(),
            nn.Linear(32, classes),
        )

    return net


def _cifar_small(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), activation(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 128), activation(), nn.Linear(128, classes))


def _cifar_big(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), activation()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), activation(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), activation(), nn.Linear(128, classes))


def _scatter_gray(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
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


def _scatter_rgb(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
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
    ModelCard("digits-cnn", _digits_cnn, _DIGITS, "CNN for the embedded digits"),
    ModelCard("digits-mlp", _digits_mlp, _DIGITS, "MLP with 64 hidden units for the embedded digits"),
    ModelCard("linear", linear, None, "one linear layer, for records of any shape"),
    ModelCard("mlp", _mlp, None, "MLP with 64 hidden units, for records of any shape"),
    ModelCard("mnist-cnn", _mnist_cnn(0, 512), _GRAY, "the paper's MNIST net, as its published code builds it"),
    ModelCard(
        "mnist-cnn-padded", _mnist_cnn(2, 1152), _GRAY, "the paper's MNIST net, as its Table 1 has it (padding 2)"
    ),
    ModelCard("cifar-small", _cifar_small, _RGB, "the paper's CIFAR-10 net, as its Table 2 has it"),
    ModelCard("cifar-big", _cifar_big, _RGB, "the paper's CIFAR-10 net, as its published code builds it"),
    ModelCard("scatter-linear", linear, None, "one linear layer on scattering features of any image"),
    ModelCard("scatter-cnn-gray", _scatter_gray, (81, 7, 7), "CNN on scattering features of 28×28 gray images"),
    ModelCard("scatter-cnn-rgb", _scatter_rgb, (243, 8, 8), "CNN on scattering features of 32×32 colour images"),
)
