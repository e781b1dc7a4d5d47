"""Models by name, or from a function of the user's own: small nets, the paper's CNNs, heads on features, a wide ResNet.

All are public, and so is their initialisation. Tanh unless a card says otherwise, because bounded activations keep
per-sample gradients small; every net can be built with another activation.
"""

import weakref
from collections.abc import Callable

import torch
from torch import nn

from adadpigu.errors import check_known, require
from adadpigu.models import nets, prior_nets, wide_resnet
from adadpigu.models.cards import ModelCard, parse_activation
from adadpigu.models.standardised import StandardisedConv2d as StandardisedConv2d
from adadpigu.models.starts import SAVED, start_from
from adadpigu.own_code import from_code

_CARDS = {card.name: card for card in (*nets.CARDS, *wide_resnet.CARDS, *prior_nets.CARDS)}
INITIALISATIONS = ("default", "xavier", f"FILE{SAVED}")
_made: weakref.WeakKeyDictionary[nn.Module, dict[str, object]] = weakref.WeakKeyDictionary()


def all_models() -> dict[str, ModelCard]:
    return _CARDS


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
    keeps the scale of signals through tanh, and biases zero; or a file of weights of this net, the last layer's aside.

    >>> sum(p.numel() for p in make_model("mnist-cnn").parameters())
    26010
    """
    if activation is not None:
        parse_activation(activation)
    saved = initialisation.endswith(SAVED)
    check_known("initialisation", INITIALISATIONS[-1] if saved else initialisation, INITIALISATIONS)
    own = activation is None or ":" not in name
    require(own, f"activation={activation!r} is for models by name; model={name!r} chooses its own")
    build = from_code("model", name) if ":" in name else _named(name, shape, classes, activation)
    require(seed is None or 0 <= seed < 2**63, f"seed={seed} is not from 0 to 2^63 - 1")
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        made = _xavier(build()) if initialisation == "xavier" else build()
    if saved:
        start_from(made, initialisation)
    _made[made] = {"model": name, "activation": activation, "shape": shape, "classes": classes}
    return made


def made_as(model: nn.Module) -> dict[str, object]:
    """What `make_model` was asked for when it made this model; nothing for any other."""
    return dict(_made.get(model, {}))


def _xavier(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight, gain=nn.init.calculate_gain("tanh"))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def _named(name: str, shape: tuple[int, ...] | None, classes: int, activation: str | None) -> Callable[[], nn.Module]:
    check_known("model", name, _CARDS)
    card = _CARDS[name]
    fits = card.shape is None or shape in (None, card.shape)
    require(fits, f"model={name!r} takes records of shape {card.shape}, not {shape}")
    known = shape or card.shape
    require(known, f"model={name!r} needs the shape of a record")
    return lambda: card.build(known or (), classes, activation)
