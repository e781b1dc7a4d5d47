"""Makes models: by the name of a card, or from a function of the user's own. Initialisation is public."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from adadpigu.errors import InputError, unknown
from adadpigu.models import paper_nets, scatter_heads, small_nets, wide_resnet
from adadpigu.models.activations import parse_activation
from adadpigu.models.cards import ModelCard

_CARDS = (*small_nets.CARDS, *paper_nets.CARDS, *scatter_heads.CARDS, *wide_resnet.CARDS)

INITIALISATIONS = ("default", "xavier")


def all_models() -> dict[str, ModelCard]:
    """Every model by name."""
    return {card.name: card for card in _CARDS}


def make_model(
    name: str,
    *,
    shape: tuple[int, ...] | None = None,
    classes: int = 10,
    seed: int | None = None,
    activation: str | None = None,
    initialisation: str = "default",
) -> nn.Module:
    """A freshly initialised model by name, or from `package.module:function`; a seed fixes its (public) initialisation.

    `activation` is tanh, relu or tempered:SCALE,TEMPERATURE,OFFSET; without it, the card's own (tanh for most).
    `initialisation` is torch's `default`, or `xavier`: weights uniform with variance (5/3)²·2/(inputs + outputs), which
    keeps the scale of signals through tanh, and biases zero.

    >>> sum(p.numel() for p in make_model("mnist-cnn").parameters())
    26010
    """
    if activation is not None:
        parse_activation(activation)
    if initialisation not in INITIALISATIONS:
        raise unknown("initialisation", initialisation, INITIALISATIONS)
    plain = _imported(name, activation) if ":" in name else _named(name, shape, classes, activation)

    def build() -> nn.Module:
        return plain() if initialisation == "default" else _xavier(plain())

    if seed is None:
        return build()
    if not 0 <= seed < 2**63:
        raise InputError(f"seed={seed} is not from 0 to 2^63 - 1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def _xavier(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight, gain=nn.init.calculate_gain("tanh"))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def _named(name: str, shape: tuple[int, ...] | None, classes: int, activation: str | None) -> Callable[[], nn.Module]:
    cards = all_models()
    if name not in cards:
        raise unknown("model", name, cards)
    card = cards[name]
    if card.shape is not None and shape not in (None, card.shape):
        raise InputError(f"model={name!r} takes records of shape {card.shape}, not {shape}")
    known = shape or card.shape
    if known is None:
        raise InputError(f"model={name!r} needs the shape of a record")
    return lambda: card.build(known, classes, activation)


def _imported(name: str, activation: str | None) -> Callable[[], nn.Module]:
    """A function of the user's own that returns a model."""
    if activation is not None:
        raise InputError(f"activation={activation!r} is for models by name; model={name!r} chooses its own")
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
