"""The paper's CNNs. Its tables and its published code disagree on both, so all four are here, named plainly."""

from __future__ import annotations

from torch import nn

from adadpigu.models.activations import Activation
from adadpigu.models.cards import ModelCard, Net

_GRAY, _RGB = (1, 28, 28), (3, 32, 32)


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


CARDS = (
    ModelCard("mnist-cnn", _mnist_cnn(0, 512), _GRAY, "the paper's MNIST net, as its published code builds it"),
    ModelCard(
        "mnist-cnn-padded", _mnist_cnn(2, 1152), _GRAY, "the paper's MNIST net, as its Table 1 has it (padding 2)"
    ),
    ModelCard("cifar-small", _cifar_small, _RGB, "the paper's CIFAR-10 net, as its Table 2 has it"),
    ModelCard("cifar-big", _cifar_big, _RGB, "the paper's CIFAR-10 net, as its published code builds it"),
)
