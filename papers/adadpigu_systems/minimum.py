"""The minimum of a perturbed softmax regression, to a certified gradient norm, in float64. Sensitive.

    J(W) = Σ_i ℓ(W; φ_i, y_i) + (Λ/2)‖W‖² + ⟨b, W⟩

Newton's method with conjugate gradients and backtracking. J is Λ-strongly convex, so a small gradient is near the
minimum; a solver that does not get there refuses, without saying how far it came.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadpigu.errors import require


def probabilities(weights: Tensor, features: Tensor) -> Tensor:
    return torch.softmax(features @ weights.T, dim=1)


def gradient(weights: Tensor, features: Tensor, targets: Tensor, linear: Tensor, regularisation: float) -> Tensor:
    """∇J, [classes, features]."""
    error = probabilities(weights, features)
    error[torch.arange(len(targets), device=error.device), targets] -= 1.0
    return error.T @ features + regularisation * weights + linear


def value(weights: Tensor, features: Tensor, targets: Tensor, linear: Tensor, regularisation: float) -> float:
    """J."""
    losses = torch.nn.functional.cross_entropy(features @ weights.T, targets, reduction="sum")
    return float(losses + regularisation / 2 * weights.square().sum() + (linear * weights).sum())


def minimise(
    features: Tensor,
    targets: Tensor,
    linear: Tensor,
    *,
    regularisation: float,
    gradient_norm: float,
    iterations: int,
) -> Tensor:
    """Weights at which ‖∇J‖ ≤ `gradient_norm`; refuses if so many iterations do not reach that."""
    problem = (features, targets, linear, regularisation)
    weights = torch.zeros_like(linear)
    slope = gradient(weights, *problem)
    for _ in range(iterations):
        norm = float(slope.norm())
        if norm <= gradient_norm:
            return weights
        direction = _newton(weights, features, slope, regularisation, accuracy=min(0.1, norm) * norm)
        weights, slope = _backtracked(weights, direction, slope, problem)
    reached = float(slope.norm()) <= gradient_norm
    require(
        reached,
        f"gradient_norm={gradient_norm:g}: the solver does not certify it in iterations={iterations}; allowed: more "
        "iterations, a larger gradient_norm (its noise grows with it), or more regularisation",
    )
    return weights


def _newton(weights: Tensor, features: Tensor, slope: Tensor, regularisation: float, *, accuracy: float) -> Tensor:
    """−H⁻¹∇J by conjugate gradients, until the residual is at most `accuracy`."""
    p = probabilities(weights, features)

    def curved(v: Tensor) -> Tensor:
        moved = features @ v.T
        moved = p * (moved - (p * moved).sum(dim=1, keepdim=True))
        return moved.T @ features + regularisation * v

    found = torch.zeros_like(slope)
    residual = -slope
    along, size = residual.clone(), float(residual.square().sum())
    for _ in range(2 * slope.numel()):
        if size**0.5 <= accuracy:
            break
        bent = curved(along)
        step = size / float((along * bent).sum())
        found += step * along
        residual -= step * bent
        before, size = size, float(residual.square().sum())
        along = residual + size / before * along
    return found


def _backtracked(
    weights: Tensor, direction: Tensor, slope: Tensor, problem: tuple[Tensor, Tensor, Tensor, float]
) -> tuple[Tensor, Tensor]:
    """The longest of the halved steps that lowers J enough, or halves the gradient where J is too flat to tell."""
    start, descent = value(weights, *problem), float((slope * direction).sum())
    norm, length = float(slope.norm()), 1.0
    for _ in range(60):
        there = weights + length * direction
        slope_there = gradient(there, *problem)
        lower = value(there, *problem) <= start + 1e-4 * length * descent
        if lower or float(slope_there.norm()) <= norm / 2:
            break
        length /= 2
    return there, slope_there
