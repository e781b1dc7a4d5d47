"""Models by name: small nets, the paper's CNNs, and heads on scattering features. All public.

Tanh unless told otherwise, because bounded activations keep per-sample gradients small; every net can be built with
another activation.
"""

from __future__ import annotations

from adadpigu.models.activations import TemperedSigmoid, parse_activation
from adadpigu.models.cards import ModelCard
from adadpigu.models.making import all_models, make_model

__all__ = ["ModelCard", "TemperedSigmoid", "all_models", "make_model", "parse_activation"]
