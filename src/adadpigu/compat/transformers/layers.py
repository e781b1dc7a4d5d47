"""Layer rules for modules that Hugging Face models have of their own. They see sensitive tensors and keep nothing.

Conv1D (GPT-2): y = x W + b, so ∂ℓ_i/∂W = Σ_p x_ip dy_ipᵀ, the transposed of a linear layer's. RMS norms: y = γ ⊙ x̂, so
∂ℓ_i/∂γ = Σ_p dy_ip ⊙ x̂_ip. Whether a rule is right for a model is checked against autograd before it is used. Rules
are known while a trainer needs them and no longer: what was imported or trained before changes no other run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adadpigu.gradients.ghost import FACTORS
from adadpigu.gradients.rules import RULES, Destination, Rule, positions

_needed: Counter[type[nn.Module]] = Counter()
"""how many want the rule of a class to be known"""


def conv1d(module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = x W + b at every position."""
    dy = positions(dy, keep=1)
    if into.wants("weight"):
        into.add_product("weight", positions(x, keep=1).mT, dy)
    if into.wants("bias"):
        into.add_sum("bias", dy, 1)


def _conv1d_factors(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    return x, dy


def root_mean_square_norm(module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = γ ⊙ x̂ (or (1 + γ) ⊙ x̂), x̂ = x / √(mean x² + ε) over the last dimension."""
    stability = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + stability)
    into.add("weight", positions(dy * normal, 1).sum(1))


@contextmanager
def known_layers(model: nn.Module) -> Iterator[None]:
    """Within, the rules of the layers that a model has are known; rules that were known before stay as they are."""
    found = {kind: rule for kind, rule in map(_rule_of, model.modules()) if rule is not None}
    wanted = [kind for kind in found if kind not in RULES or kind in _needed]
    for kind in wanted:
        _needed[kind] += 1
        RULES[kind] = found[kind]
        if kind is Conv1D:
            FACTORS[kind] = _conv1d_factors
    try:
        yield
    finally:
        for kind in wanted:
            _needed[kind] -= 1
            if not _needed[kind]:
                del _needed[kind], RULES[kind]
                FACTORS.pop(kind, None)


def _rule_of(module: nn.Module) -> tuple[type[nn.Module], Rule[Any] | None]:
    """RMS norms go by their name and their one parameter: each family of models has a class of its own."""
    kind = type(module)
    if kind is Conv1D:
        return kind, conv1d
    is_norm = kind.__name__.endswith("RMSNorm") and [*module._parameters] == ["weight"]
    return kind, root_mean_square_norm if is_norm else None
