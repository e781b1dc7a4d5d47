"""Models by name: small nets, the paper's CNNs, heads on scattering features, a wide ResNet, the prior's last stage.

All are public. Tanh unless a card says otherwise, because bounded activations keep per-sample gradients small; every
net can be built with another activation.
"""

from __future__ import annotations

from adadpigu.models.cards import ModelCard, TemperedSigmoid, parse_activation
from adadpigu.models.making import all_models, made_as, make_model
from adadpigu.models.standardised import StandardisedConv2d

__all__ = [
    "ModelCard",
    "StandardisedConv2d",
    "TemperedSigmoid",
    "all_models",
    "made_as",
    "make_model",
    "parse_activation",
]
