"""Layer rules for modules that Hugging Face models have of their own. They see sensitive tensors and keep nothing.

Conv1D (GPT-2): y = x W + b, so ∂ℓ_i/∂W = Σ_p x_ip dy_ipᵀ, the transposed of a linear layer's. RMS norms: y = γ ⊙ x̂, so
∂ℓ_i/∂γ = Σ_p dy_ip ⊙ x̂_ip. Whether a rule is right for a model is checked against autograd before it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adadpigu.gradients.ghost import factors
from adadpigu.gradients.rules import RULES, Destination, positions, rule


@rule(Conv1D)
def conv1d(module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = x W + b at every position."""
    dy = positions(dy, keep=1)
    if into.wants("weight"):
        into.add_product("weight", positions(x, keep=1).mT, dy)
    if into.wants("bias"):
        into.add_sum("bias", dy, 1)


@factors(Conv1D)
def _conv1d_factors(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    return x, dy


def root_mean_square_norm(module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = γ ⊙ x̂ (or (1 + γ) ⊙ x̂), x̂ = x / √(mean x² + ε) over the last dimension."""
    stability = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + stability)
    into.add("weight", positions(dy * normal, 1).sum(1))


def know_layers_of(model: nn.Module) -> None:
    """Registers the rule of RMS norms for the classes that a model has for them: each family has its own."""
    for module in model.modules():
        kind = type(module)
        if kind not in RULES and kind.__name__.endswith("RMSNorm") and [*module._parameters] == ["weight"]:
            RULES[kind] = root_mean_square_norm
