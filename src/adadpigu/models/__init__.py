"""Models by name: small nets for the embedded digits, and the paper's CNNs in both variants of each. All public.

The paper's tables and its published code disagree on both CNNs; all four are here, named plainly. Tanh everywhere,
because bounded activations keep per-sample gradients small (tempered sigmoids with scale 2, temperature 2, offset
1).
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from adadpigu.errors import InputError, unknown


@dataclass(frozen=True)
class ModelCard:
    """What `adadpigu models` tells of a model."""

    name: str
    build: Callable[[tuple[int, ...], int], nn.Module]
    """from the shape of a record and the number of classes"""
    shape: tuple[int, ...] | None
    """the shape of a record that the model takes; None for any"""
    about: str

    def parameters(self) -> int | None:
        """How many parameters there are; None where the data decides."""
        return None if self.shape is None else sum(p.numel() for p in self.build(self.shape, 10).parameters())


def _linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Tanh(), nn.Linear(64, classes))


def _digits_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Each record is normalised by itself, which mixes nothing and costs nothing."""
    return nn.Sequential(
        nn.Flatten(),
        nn.LayerNorm(64, elementwise_affine=False),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, classes),
    )


def _digits_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm((1, 8, 8), elementwise_affine=False),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def _mnist_cnn(padding: int, features: int) -> Callable[[tuple[int, ...], int], nn.Module]:
    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=2),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2, padding=padding),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(features, 32),
            nn.Tanh(),
            nn.Linear(32, classes),
        )

    return build


def _cifar_small(shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 128), nn.Tanh(), nn.Linear(128, classes))


def _cifar_big(shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, classes))


_GRAY, _RGB = (1, 28, 28), (3, 32, 32)
_CARDS = (
    ModelCard("digits-cnn", _digits_cnn, (1, 8, 8), "tanh CNN for the embedded digits"),
    ModelCard("digits-mlp", _digits_mlp, (1, 8, 8), "tanh MLP with 64 hidden units for the embedded digits"),
    ModelCard("linear", _linear, None, "one linear layer, for records of any shape"),
    ModelCard("mlp", _mlp, None, "tanh MLP with 64 hidden units, for records of any shape"),
    ModelCard("mnist-cnn", _mnist_cnn(0, 512), _GRAY, "the paper's MNIST net, as its published code builds it"),
    ModelCard(
        "mnist-cnn-padded", _mnist_cnn(2, 1152), _GRAY, "the paper's MNIST net, as its Table 1 has it (padding 2)"
    ),
    ModelCard("cifar-small", _cifar_small, _RGB, "the paper's CIFAR-10 net, as its Table 2 has it"),
    ModelCard("cifar-big", _cifar_big, _RGB, "the paper's CIFAR-10 net, as its published code builds it"),
)


def all_models() -> dict[str, ModelCard]:
    """Every model by name."""
    return {card.name: card for card in _CARDS}


def make_model(
    name: str, *, shape: tuple[int, ...] | None = None, classes: int = 10, seed: int | None = None
) -> nn.Module:
    """A freshly initialised model by name, or from `package.module:function`; a seed fixes its (public) initialisation.

    >>> sum(p.numel() for p in make_model("mnist-cnn").parameters())
    26010
    """
    build = _imported(name) if ":" in name else _named(name, shape, classes)
    if seed is None:
        return build()
    if not 0 <= seed < 2**63:
        raise InputError(f"seed={seed} is not from 0 to 2^63 - 1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def _named(name: str, shape: tuple[int, ...] | None, classes: int) -> Callable[[], nn.Module]:
    cards = all_models()
    if name not in cards:
        raise unknown("model", name, cards)
    card = cards[name]
    if card.shape is not None and shape not in (None, card.shape):
        raise InputError(f"model={name!r} takes records of shape {card.shape}, not {shape}")
    known = shape or card.shape
    if known is None:
        raise InputError(f"model={name!r} needs the shape of a record")
    return lambda: card.build(known, classes)


def _imported(name: str) -> Callable[[], nn.Module]:
    """A function of the user's own that returns a model."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"model={name!r} cannot be imported: {error}; allowed: package.module:function") from None

    def build() -> nn.Module:
        try:
            made = found() if callable(found) else found
        except Exception as error:
            raise InputError(f"model={name!r} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
        if not isinstance(made, nn.Module):
            raise InputError(
                f"model={name!r} gives a {type(made).__name__}; allowed: a function that returns an nn.Module"
            )
        return made

    return build
