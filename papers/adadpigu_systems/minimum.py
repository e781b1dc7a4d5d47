"""The minimum of a perturbed softmax regression, to a certified gradient norm, in float64. Sensitive.

    J(W) = Σ_i ℓ(W; φ_i, y_i) + (Λ/2)‖W‖² + ⟨b, W⟩

Newton's method with conjugate gradients and backtracking. J is Λ-strongly convex, so a small gradient is near the
minimum; a solver that does not get there refuses, without saying how far it came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adadpigu.errors import require

Numbers = NDArray[np.float64]


def probabilities(weights: Numbers, features: Numbers) -> Numbers:
    scores = features @ weights.T
    made = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(made / made.sum(axis=1, keepdims=True))


def gradient(
    weights: Numbers, features: Numbers, targets: NDArray[Any], linear: Numbers, regularisation: float
) -> Numbers:
    """∇J, [classes, features]."""
    error = probabilities(weights, features)
    error[np.arange(len(targets)), targets] -= 1.0
    return np.asarray(error.T @ features + regularisation * weights + linear)


def value(weights: Numbers, features: Numbers, targets: NDArray[Any], linear: Numbers, regularisation: float) -> float:
    """J."""
    scores = features @ weights.T
    most = scores.max(axis=1, keepdims=True)
    logs = np.log(np.exp(scores - most).sum(axis=1)) + most[:, 0]
    losses = logs - scores[np.arange(len(targets)), targets]
    return float(losses.sum() + regularisation / 2 * np.square(weights).sum() + (linear * weights).sum())


def minimise(
    features: Numbers,
    targets: NDArray[Any],
    linear: Numbers,
    *,
    regularisation: float,
    gradient_norm: float,
    iterations: int,
) -> Numbers:
    """Weights at which ‖∇J‖ ≤ `gradient_norm`; refuses if so many iterations do not reach that."""
    problem = (features, targets, linear, regularisation)
    weights = np.zeros_like(linear)
    slope = gradient(weights, *problem)
    for _ in range(iterations):
        norm = float(np.linalg.norm(slope))
        if norm <= gradient_norm:
            return weights
        direction = _newton(weights, features, slope, regularisation, accuracy=min(0.1, norm) * norm)
        weights, slope = _backtracked(weights, direction, slope, problem)
    reached = float(np.linalg.norm(slope)) <= gradient_norm
    require(
        reached,
        f"gradient_norm={gradient_norm:g}: the solver does not certify it in iterations={iterations}; allowed: more "
        "iterations, a larger gradient_norm (its noise grows with it), or more regularisation",
    )
    return weights


def _newton(weights: Numbers, features: Numbers, slope: Numbers, regularisation: float, *, accuracy: float) -> Numbers:
    """−H⁻¹∇J by conjugate gradients, until the residual is at most `accuracy`."""
    p = probabilities(weights, features)

    def curved(v: Numbers) -> Numbers:
        moved = features @ v.T
        moved = p * (moved - (p * moved).sum(axis=1, keepdims=True))
        return np.asarray(moved.T @ features + regularisation * v)

    found = np.zeros_like(slope)
    residual = -slope
    along, size = residual.copy(), float(np.square(residual).sum())
    for _ in range(2 * slope.size):
        if size**0.5 <= accuracy:
            break
        bent = curved(along)
        step = size / float((along * bent).sum())
        found += step * along
        residual -= step * bent
        before, size = size, float(np.square(residual).sum())
        along = residual + size / before * along
    return found


def _backtracked(
    weights: Numbers, direction: Numbers, slope: Numbers, problem: tuple[Numbers, NDArray[Any], Numbers, float]
) -> tuple[Numbers, Numbers]:
    """The longest of the halved steps that lowers J enough, or halves the gradient where J is too flat to tell."""
    start, descent = value(weights, *problem), float((slope * direction).sum())
    norm, length = float(np.linalg.norm(slope)), 1.0
    for _ in range(60):
        there = weights + length * direction
        slope_there = gradient(there, *problem)
        lower = value(there, *problem) <= start + 1e-4 * length * descent
        if lower or float(np.linalg.norm(slope_there)) <= norm / 2:
            break
        length /= 2
    return there, slope_there
