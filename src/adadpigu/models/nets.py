"""Small nets: for records of any shape, for the embedded digits, the paper's CNNs, and heads on scattering features.

The paper's tables and its published code disagree on both CNNs, so all four are here, named plainly. Heads are those of
Tramèr and Boneh (2021); their records are features, 81 channels a plane, normalised before they come here.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import nn

from adadpigu.models.cards import Activation, ModelCard, Net

_DIGITS, _GRAY, _RGB = (1, 8, 8), (1, 28, 28), (3, 32, 32)
Part = Callable[[], nn.Module]
_HALVE = partial(nn.MaxPool2d, 2)
_POOL = partial(nn.MaxPool2d, 2, stride=1)


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> Part:
    return partial(nn.Conv2d, inputs, outputs, kernel, stride=stride, padding=padding)


def _net(*parts: Part, hidden: tuple[int, ...] = (), features: int | None = None, norm: bool = False) -> Net:
    """Convolutions, an activation after each, and poolings; then linear layers through the hidden widths.

    `features` enter the first linear layer: as many as a record has numbers, if None. `norm` brings each record to mean
    0 and variance 1 first, which mixes nothing and costs nothing.
    """

    def net(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
        layers: list[nn.Module] = [nn.LayerNorm(shape, elementwise_affine=False)] if norm else []
        for part in parts:
            layers.append(part())
            if isinstance(layers[-1], nn.Conv2d):
                layers.append(activation())
        layers.append(nn.Flatten())
        widths = (math.prod(shape) if features is None else features, *hidden)
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    return net


def _mnist_cnn(padding: int, features: int) -> Net:
    first, second = _conv(1, 16, 8, stride=2, padding=2), _conv(16, 32, 4, stride=2, padding=padding)
    return _net(first, _POOL, second, _POOL, features=features, hidden=(32,))


_digits_cnn = _net(_conv(1, 16), _HALVE, _conv(16, 32), features=512, norm=True)
_cifar_small = _net(_conv(3, 16), _HALVE, _conv(16, 16), _HALVE, _conv(16, 32), _HALVE, features=512, hidden=(128,))
_cifar_big = _net(
    *(_conv(3, 32), _conv(32, 32), _HALVE),
    *(_conv(32, 64), _conv(64, 64), _HALVE),
    *(_conv(64, 128), _conv(128, 128), _HALVE),
    features=2048,
    hidden=(128,),
)
_scatter_gray = _net(_conv(81, 16, stride=2), _conv(16, 32), features=512, hidden=(32,))
_scatter_rgb = _net(_conv(243, 64), _HALVE, _conv(64, 64), features=1024)

CARDS = (
    ModelCard("digits-cnn", _digits_cnn, _DIGITS, "CNN for the embedded digits"),
    ModelCard("digits-mlp", _net(hidden=(64,), norm=True), _DIGITS, "MLP with 64 hidden units for the embedded digits"),
    ModelCard("linear", _net(), None, "one linear layer, for records of any shape"),
    ModelCard("mlp", _net(hidden=(64,)), None, "MLP with 64 hidden units, for records of any shape"),
    ModelCard("mnist-cnn", _mnist_cnn(0, 512), _GRAY, "the paper's MNIST net, as its published code builds it"),
    ModelCard("mnist-cnn-padded", _mnist_cnn(2, 1152), _GRAY, "the paper's MNIST net, as in its Table 1 (padding 2)"),
    ModelCard("cifar-small", _cifar_small, _RGB, "the paper's CIFAR-10 net, as its Table 2 has it"),
    ModelCard("cifar-big", _cifar_big, _RGB, "the paper's CIFAR-10 net, as its published code builds it"),
    ModelCard("scatter-linear", _net(), None, "one linear layer on scattering features of any image"),
    ModelCard("scatter-cnn-gray", _scatter_gray, (81, 7, 7), "CNN on scattering features of 28×28 gray images"),
    ModelCard("scatter-cnn-rgb", _scatter_rgb, (243, 8, 8), "CNN on scattering features of 32×32 colour images"),
)
