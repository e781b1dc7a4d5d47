"""Problems whose truth is known in closed form, on which a bound can be held against what happens.

    L(θ) = (1/N) Σ ½ (θ − x_i)ᵀ A (θ − x_i),   ∇ℓ_i = A(θ − x_i),   A diagonal, G = max A,   arg min = mean of x

All records are synthetic, so that nothing here is sensitive and un-noised values may be looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adadpigu.errors import InputError
from adadpigu_paper.theory.retained_energy import Mask, Numbers
from adadpigu_paper.theory.second_moments import clipped


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """The mean of N quadratics of equal curvature around N records."""

    curvature: Numbers
    """the diagonal of A, [d]"""
    records: Numbers
    """x_i, [N, d]"""

    def __post_init__(self) -> None:
        if self.records.ndim != 2 or self.curvature.shape != self.records.shape[1:]:
            shapes = f"{list(self.curvature.shape)}, {list(self.records.shape)}"
            raise InputError(f"curvature and records have shapes {shapes}; allowed: [d] and [N, d]")
        if not np.all(self.curvature > 0):
            raise InputError(f"curvature={self.curvature.min()}: must be above 0")

    @property
    def smoothness(self) -> float:
        return float(self.curvature.max())

    @property
    def best(self) -> Numbers:
        return np.asarray(self.records.mean(axis=0))

    def excess(self, theta: Numbers) -> Numbers:
        """L(θ) − min L, for θ of any leading shape."""
        away = theta - self.best
        return np.asarray(0.5 * np.sum(self.curvature * away * away, axis=-1))

    def gradient(self, theta: Numbers) -> Numbers:
        return np.asarray(self.curvature * (theta - self.best))

    def gradients(self, theta: Numbers) -> Numbers:
        """That of each record: [..., N, d]."""
        return np.asarray(self.curvature * (theta[..., None, :] - self.records))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Masked, clipped, noised SGD on Poisson batches: u = m ⊙ (Σ clipped(m ⊙ g_i) + z)/B, z ~ N(0, σ²C² I)."""

    learning_rate: float
    steps: int
    clip_norm: float
    mask: Mask
    sample_rate: float = 1.0
    noise_multiplier: float = 0.0

    def bounded(self, problem: Quadratic, theta: Numbers) -> Numbers:
        """The masked, clipped gradient of each record."""
        return clipped(problem.gradients(theta) * self.mask, self.clip_norm)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Averages over the T steps of each of several runs, [runs] each; given θ_t they are exact, not sampled."""

    inner_product: Numbers
    """⟨∇L(θ_t), E[u_t | θ_t]⟩"""
    gradient: Numbers
    """‖∇L(θ_t)‖²"""
    squared_bias: Numbers
    """‖∇L(θ_t) − E[u_t | θ_t]‖²"""
    largest_retention: float
    """the largest α_t of all steps and runs"""
    start: float
    end: Numbers
    """L − min L before the first and after the last step"""


def followed(problem: Quadratic, recipe: Recipe, start: Numbers, *, runs: int, seed: int) -> Trace:
    """Runs the recipe several times and watches it.

    Batches and noise are drawn; what a step does in expectation is worked out from all N records, so that the averages
    have no more spread than the paths themselves.
    """
    generator = np.random.default_rng(seed)
    theta = np.repeat(start[None], runs, axis=0)
    sums = np.zeros((3, runs))
    retention = 0.0
    batch_size = recipe.sample_rate * len(problem.records)
    deviation = 0.0 if recipe.noise_multiplier == 0 else recipe.noise_multiplier * recipe.clip_norm
    for _ in range(recipe.steps):
        gradient, bounded = problem.gradient(theta), recipe.bounded(problem, theta)
        mean = bounded.mean(axis=1)
        energy = np.sum(gradient**2, axis=1)
        sums += np.sum(gradient * mean, axis=1), energy, np.sum((gradient - mean) ** 2, axis=1)
        kept = np.sum((gradient * recipe.mask) ** 2, axis=1)
        retention = max(retention, float(np.max(np.where(energy > 0, kept / np.maximum(energy, 1e-300), 1.0))))
        taken = generator.random(bounded.shape[:2]) < recipe.sample_rate
        noise = deviation * generator.standard_normal(theta.shape)
        update = recipe.mask * (np.einsum("rnd,rn->rd", bounded, taken) + noise) / batch_size
        theta = theta - recipe.learning_rate * update
    inner, norm, bias = sums / recipe.steps
    return Trace(
        inner_product=inner,
        gradient=norm,
        squared_bias=bias,
        largest_retention=retention,
        start=float(problem.excess(start)),
        end=problem.excess(theta),
    )


@dataclass(frozen=True, kw_only=True)
class Still:
    """A noisy run that keeps its gradient's length for ever, so that each side of the second theorem is exact.

    L = ½‖θ‖², one coordinate in the mask with |θ₁| = 1, the others frozen. In state s = ±1 the gradient's deviation
    takes θ₁ back to s with probability 1 − η/2 and to −s with probability η/2: it has mean 0 and variance 2/η − 1.
    Then α_t is the same in every step, and with every frozen entry below 1 the mask is the top-1 of each gradient.
    """

    steps: int
    frozen: Numbers

    @property
    def learning_rate(self) -> float:
        """1/(G√T)"""
        return 1 / math.sqrt(self.steps)

    @property
    def variance(self) -> float:
        """σ_g², all of it in the mask"""
        return 2 / self.learning_rate - 1

    @property
    def gradient(self) -> float:
        """‖∇L(θ_t)‖² in every step"""
        return 1 + float(self.frozen @ self.frozen)

    @property
    def gap(self) -> float:
        """L(θ₁) − min L"""
        return self.gradient / 2

    def deviations(self, state: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """(deviation, probability) of either outcome in state s = ±1: θ₁ − η(θ₁ + deviation) is s or −s."""
        rate = self.learning_rate
        return (-float(state), 1 - rate / 2), (state * (2 / rate - 1), rate / 2)
