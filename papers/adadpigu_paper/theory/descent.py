"""What smoothness alone says of T steps θ ← θ − η·u, whatever u is: the step that all three theorems share.

    L(θ − ηu) ≤ L(θ) − η⟨∇L(θ), u⟩ + (Gη²/2)‖u‖²   (L is G-smooth)

Sums of this over the steps bound inner products. That a *gradient* gets small needs a further argument, given here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adadpigu.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Descent:
    """T steps of rate η on a G-smooth loss, and how far the loss can fall."""

    smoothness: float
    """G: the gradient's Lipschitz constant, for a quadratic its largest eigenvalue"""
    learning_rate: float
    """η"""
    steps: int
    """T"""
    gap: float
    """Δ ≥ E L(θ₁) − E L(θ_T+1). Known beforehand: E L(θ₁) − min L, the minimum over what a fixed mask lets change being
    enough. Known afterwards: the decrease itself, which makes the bounds equalities on an isotropic quadratic"""

    def __post_init__(self) -> None:
        for name in ("smoothness", "learning_rate"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name}={value}: must be above 0 and finite")
        if self.steps < 1:
            raise InputError(f"steps={self.steps}: must be 1 or more")
        if not math.isfinite(self.gap):
            raise InputError(f"gap={self.gap}: must be finite")

    @classmethod
    def at_paper_rate(cls, *, smoothness: float, steps: int, gap: float) -> Descent:
        """With η = 1/(G√T), the second theorem's choice.

        >>> Descent.at_paper_rate(smoothness=2.0, steps=25, gap=1.0).learning_rate
        0.1
        """
        if steps < 1:
            raise InputError(f"steps={steps}: must be 1 or more")
        return cls(smoothness=smoothness, learning_rate=1 / (smoothness * math.sqrt(steps)), steps=steps, gap=gap)


def inner_product_bound(descent: Descent, second_moment: float) -> float:
    """(1/T) Σ E⟨∇L(θ_t), u_t⟩ ≤ Δ/(ηT) + (ηG/2)·S, where E‖u_t‖² ≤ S in every step.

    Assumes G-smoothness and nothing else: not that u_t is unbiased, nor that its batch is independent of θ_t. Equality
    where L is (G/2)‖θ‖² plus a constant, Δ the true decrease and S the true mean of E‖u_t‖².

    >>> inner_product_bound(Descent(smoothness=1.0, learning_rate=0.5, steps=10, gap=2.0), 4.0)
    1.4
    """
    rate = descent.learning_rate
    return descent.gap / (rate * descent.steps) + rate * descent.smoothness / 2 * second_moment


def gradient_norm_bound(inner_product: float, squared_bias: float) -> float:
    """(1/T) Σ E‖∇L(θ_t)‖² ≤ 2·(1/T) Σ E⟨∇L(θ_t), u_t⟩ + (1/T) Σ E‖∇L(θ_t) − E[u_t | θ_t]‖².

    The argument that the first and the third theorem leave out: ‖a‖² = 2⟨a, b⟩ − ‖b‖² + ‖a − b‖². A bound on the inner
    product by itself shows no convergence, since ⟨∇L, E ḡ⟩ may be 0 or negative where ∇L is large: clipping turns the
    mean's direction. What is left over is that bias. It is at most the mean of (‖g_i‖ − C)₊ for clipping alone, and
    at least ‖(1 − m) ⊙ ∇L‖ for a mask, and no learning rate removes it.

    >>> gradient_norm_bound(0.5, 0.25)
    1.25
    """
    if squared_bias < 0:
        raise InputError(f"squared_bias={squared_bias}: must be 0 or more")
    return 2 * inner_product + squared_bias
