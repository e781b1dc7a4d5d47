"""Pruning as noise: what a pruned layer leaves out, were its weights random; and why that is no private mechanism.

The claim (Huang et al. 2020) is that pruning changes hidden activations as noise would, so that it is differentially
private. The closed form holds for weights drawn independently of the records; trained weights are a function of them.

Refutation. Fix everything public: the first weights, the order of the records. Training without noise and pruning are
then deterministic, so neighbouring data sets D, D′ give one output each, w and w′. Where w ≠ w′, the set {w} has
probability 1 under D and 0 under D′, so (ε, δ) needs 1 ≤ e^ε·0 + δ: no ε holds for any δ < 1. Weights that are random
at the start do not help: nobody has to draw them in secret, and what they hide is bounded by nothing. Pruning weights
that were *released* is post-processing: it costs nothing and gains nothing. `pruning_attack` shows it at work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adadpigu.errors import check, check_range

Numbers = NDArray[np.float64]


def removed_variance(squared_norm: float, deviation: float, threshold: float) -> float:
    """Variance of what pruning at a threshold t removes from ⟨w, x⟩, for w ~ N(0, s²)ⁿ: ‖x‖²s²(2Φ(a) − 1 − 2aφ(a)).

    With a = t/s. Proof: what is removed is Σ x_j w_j 1[|w_j| ≤ t]. Its terms are independent, of mean 0 since w_j is
    symmetric, and of variance x_j² s² ∫_{−a}^{a} z²φ(z) dz. By parts, with φ′ = −zφ, the integral is
    [−zφ(z)]_{−a}^{a} + ∫_{−a}^{a} φ = −2aφ(a) + 2Φ(a) − 1. With t → ∞ all of ⟨w, x⟩ is removed: ‖x‖²s².

    >>> round(removed_variance(2.0, 0.5, 0.5), 6), removed_variance(2.0, 0.5, float("inf"))
    (0.099374, 0.5)
    """
    from scipy.stats import norm

    check_range("squared_norm", squared_norm, "a finite number of at least 0")
    check_range("deviation", deviation, "a finite number above 0")
    check_range("threshold", threshold, "at least 0")
    a = threshold / deviation
    edge = 0.0 if np.isinf(a) else 2 * a * float(norm.pdf(a))
    return squared_norm * deviation**2 * (2 * float(norm.cdf(a)) - 1 - edge)


def printed_removed_variance(squared_norm: float, deviation: float, rate: float) -> float:
    """p‖x‖²s²: what a share p of the weights would carry, were those that are removed as large as the others.

    They are the smallest, so it is too much for every p in (0, 1): the noise that is claimed is not even there.
    """
    check_range("rate", rate, "in [0, 1]")
    return rate * squared_norm * deviation**2


def threshold_of_rate(deviation: float, rate: float) -> float:
    """t below which a share p of N(0, s²) weights lies: s·Φ⁻¹((1 + p)/2).

    >>> round(threshold_of_rate(1.0, 0.5), 6)
    0.67449
    """
    from scipy.stats import norm

    check_range("rate", rate, "in [0, 1]")
    return deviation * float(norm.ppf((1 + rate) / 2))


def removed_part(weights: Numbers, inputs: Numbers, threshold: float) -> Numbers:
    """What pruning removes from every activation: ⟨w 1[|w| ≤ t], x⟩, [outputs, n] and [b, n] -> [b, outputs]."""
    return np.asarray(inputs @ np.where(np.abs(weights) <= threshold, weights, 0.0).T)


def measured_share(weights: Numbers, inputs: Numbers, rate: float) -> tuple[float, float]:
    """What pruning a share of a layer's weights removes, as a share of ‖x‖²s²: as measured, and by the closed form.

    Measured is the mean square over the layer's outputs and the inputs, each relative to its ‖x‖². The two agree for
    weights drawn at random, whatever the inputs, and come apart in a trained layer.
    """
    check("weights", weights.shape, weights.ndim == 2 and weights.size > 0, "a matrix [outputs, n] is needed")
    deviation = float(np.sqrt(np.mean(np.square(weights))))
    threshold = float(np.quantile(np.abs(weights), rate))
    norms = np.square(inputs).sum(axis=1)
    squares = np.square(removed_part(weights, inputs, threshold)).mean(axis=1)
    measured = float(np.mean(squares[norms > 0] / norms[norms > 0])) / deviation**2
    return measured, removed_variance(1.0, deviation, threshold_of_rate(deviation, rate)) / deviation**2
