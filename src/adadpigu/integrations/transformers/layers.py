"""Layer rules for modules that Hugging Face models have of their own. They see sensitive tensors and keep nothing.

Conv1D (GPT-2): y = x W + b, so ∂ℓ_i/∂W = Σ_p x_ip dy_ipᵀ, the transposed of a linear layer's. RMS norms: y = γ ⊙ x̂, so
∂ℓ_i/∂γ = Σ_p dy_ip ⊙ x̂_ip. Whether a rule is right for a model is checked against autograd before it is used.
"""

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adadpigu.core.gradients.ghost import FACTORS
from adadpigu.core.gradients.rules import RULES, Destination, positions


def conv1d(module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = x W + b at every position."""
    dy = positions(dy, keep=1)
    if into.wants("weight"):
        into.add_product("weight", positions(x, keep=1).mT, dy)
    if into.wants("bias"):
        into.add_sum("bias", dy, 1)


def root_mean_square_norm(module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = γ ⊙ x̂ (or (1 + γ) ⊙ x̂), x̂ = x / √(mean x² + ε) over the last dimension."""
    stability = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + stability)
    into.add("weight", positions(dy * normal, 1).sum(1))


def register_rules(model: nn.Module) -> None:
    """Registers the rules of the layers that a model has; each family of models has an RMS norm of its own."""
    for kind in {type(module) for module in model.modules() if [*module._parameters] == ["weight"]}:
        if kind.__name__.endswith("RMSNorm"):
            RULES.setdefault(kind, root_mean_square_norm)
    RULES.setdefault(Conv1D, conv1d)
    FACTORS.setdefault(Conv1D, lambda x, dy: (x, dy))
