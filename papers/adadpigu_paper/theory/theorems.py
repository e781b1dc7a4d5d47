"""The paper's three convergence theorems: each as it can be proved, and beside it as it is printed.

    clipped SGD; a mask and Gaussian noise without a clip; a mask, a clip and Gaussian noise (DP-SGD)

Functions of public numbers. A `printed_…` function is there to be compared, never to be relied upon: docs/theory.md has
a counterexample to each. θ_t, and with it ∇L(θ_t), is random, so that left-hand sides are expectations throughout.
"""

from __future__ import annotations

import math

from adadpigu.errors import InputError
from adadpigu_paper.theory.descent import Descent, inner_product_bound
from adadpigu_paper.theory.retained_energy import check_active, printed_expected_energy
from adadpigu_paper.theory.second_moments import check_batch, check_clip_norm


def clipped_sgd(descent: Descent, *, batch_moment: float) -> float:
    """First theorem: (1/T) Σ E⟨∇L(θ_t), ḡ_t⟩ ≤ Δ/(ηT) + (ηG/2)·M, where E‖ḡ_t‖² ≤ M.

    Assumes a G-smooth L that is bounded below. M = C² for batches of fixed size (`fixed_batch_moment`), C²(1 + (1−q)/B)
    for Poisson batches (`poisson_batch_moment`). Attained: L = (G/2)‖θ‖², the same gradient for all records, η = 1/G,
    ‖θ₁‖ = TC/G. It bounds an inner product, not a gradient: `gradient_norm_bound` says what is missing.

    >>> clipped_sgd(Descent(smoothness=1.0, learning_rate=1.0, steps=10, gap=50.0), batch_moment=1.0)
    5.5
    """
    return inner_product_bound(descent, batch_moment)


def printed_clipped_sgd(descent: Descent, *, clip_norm: float) -> float:
    """First theorem as stated: ηΔ/T + ηGC²/(2T).

    η should divide Δ (its proof has 1/(ηT)); the second term has lost a factor T, since the average of T equal terms is
    one of them. With either slip the bound falls to 0 as T grows at constant η, which is not so.

    >>> printed_clipped_sgd(Descent(smoothness=1.0, learning_rate=0.5, steps=10, gap=50.0), clip_norm=1.0)
    2.525
    """
    check_clip_norm(clip_norm)
    rate, steps = descent.learning_rate, descent.steps
    return rate * descent.gap / steps + rate * descent.smoothness * clip_norm**2 / (2 * steps)


def printed_proof_of_clipped_sgd(descent: Descent, *, clip_norm: float) -> float:
    """First theorem as its proof ends: Δ/(ηT) + ηGC²/(2T), which has the second of the two slips only.

    >>> printed_proof_of_clipped_sgd(Descent(smoothness=1.0, learning_rate=0.5, steps=10, gap=50.0), clip_norm=1.0)
    10.025
    """
    check_clip_norm(clip_norm)
    rate, steps = descent.learning_rate, descent.steps
    return descent.gap / (rate * steps) + rate * descent.smoothness * clip_norm**2 / (2 * steps)


def update_variance(*, kept_gradient_variance: float, noise_deviation: float, active: int, batch_size: float) -> float:
    """V = v/B + kσ²/B²: the variance of m ⊙ (mean of B gradients + z/B), z ~ N(0, σ² I), σ not relative to a clip.

    v = E‖m ⊙ (g_i − ∇L)‖² is the records' variance *inside the mask*, at most σ_g² and equal to it when all of it lies
    there; the gradient's α_t has no part in it. For Poisson batches v/B becomes `poisson_variance` of the masked rows.

    >>> update_variance(kept_gradient_variance=2.0, noise_deviation=3.0, active=4, batch_size=2.0)
    10.0
    """
    check_batch(batch_size, 1.0)
    for name, value in (("kept_gradient_variance", kept_gradient_variance), ("noise_deviation", noise_deviation)):
        if not (value >= 0 and math.isfinite(value)):
            raise InputError(f"{name}={value}: must be 0 or more and finite")
    return kept_gradient_variance / batch_size + active * (noise_deviation / batch_size) ** 2


def masked_noisy_sgd(descent: Descent, *, variance: float) -> float:
    """Second theorem: (1/T) Σ E‖m_t ⊙ ∇L(θ_t)‖² ≤ (Δ/(ηT) + (ηG/2)·V) / (1 − ηG/2), with V of `update_variance`.

    Assumes G-smoothness, η < 2/G, deviations of mean 0 with the variance given (the paper calls this a bounded *bias*),
    and a mask m_t chosen before the step's batch and noise are drawn. It may follow from earlier releases, but not from
    the noisy gradient that it is applied to: what it keeps of that noise need not have mean 0. At η = 1/(G√T) the right
    side is (2GΔ + V)/(2√T − 1). Equality on L = (G/2)‖θ‖² with Δ the decrease.

    What is bounded is the gradient *inside the mask*: Σ α_t‖∇L(θ_t)‖², where α_t belongs to its step and cannot leave
    the sum. For the whole gradient see `masked_noisy_sgd_whole_gradient`.

    >>> masked_noisy_sgd(Descent.at_paper_rate(smoothness=1.0, steps=400, gap=2.0), variance=35.0)
    1.0
    """
    slack = 1 - descent.learning_rate * descent.smoothness / 2
    if slack <= 0:
        raise InputError(f"learning_rate={descent.learning_rate}: must be below 2/smoothness={2 / descent.smoothness}")
    return inner_product_bound(descent, variance) / slack


def masked_noisy_sgd_whole_gradient(descent: Descent, *, variance: float, least_retention: float) -> float:
    """Second theorem for (1/T) Σ E‖∇L(θ_t)‖²: the bound of `masked_noisy_sgd` over a, where α_t ≥ a in every step.

    a = k/d will do if m_t is the top-k of ∇L(θ_t) itself, which nobody who trains privately can look at. A mask that is
    fixed may have α_t = 0 while the gradient outside stays what it was: then this bound is infinite, and rightly.

    >>> run = Descent.at_paper_rate(smoothness=1.0, steps=400, gap=2.0)
    >>> masked_noisy_sgd_whole_gradient(run, variance=35.0, least_retention=0.25)
    4.0
    """
    if not 0 <= least_retention <= 1:
        raise InputError(f"least_retention={least_retention}: must be from 0 to 1")
    inside = masked_noisy_sgd(descent, variance=variance)
    return inside / least_retention if least_retention else math.inf


def printed_masked_noisy_sgd(
    descent: Descent,
    *,
    gradient_variance: float,
    noise_deviation: float,
    retention: float,
    dimension: int,
    batch_size: float,
) -> float:
    """Second theorem as stated, for (1/T) Σ ‖∇L(θ_t)‖² at η = 1/(G√T): 2GΔ/(α√T) + (σ_g²/B + dσ²/B²)/√T.

    The corollary is used to multiply the variances by the gradient's α_t, which then cancels. But a mask does not
    shrink them by it: σ_g²/B should keep a 1/α, and d should be k/α. (2 − 1/√T has been replaced by 1, which is
    allowed.) One α stands for all α_t; the proof also writes r for it.

    >>> run = Descent.at_paper_rate(smoothness=1.0, steps=400, gap=2.0)
    >>> printed_masked_noisy_sgd(
    ...     run, gradient_variance=39.0, noise_deviation=0.0, retention=0.25, dimension=5, batch_size=1.0
    ... )
    2.75
    """
    if not 0 < retention <= 1:
        raise InputError(f"retention={retention}: must be above 0 and at most 1")
    check_batch(batch_size, 1.0)
    root = math.sqrt(descent.steps)
    variance = gradient_variance / batch_size + dimension * (noise_deviation / batch_size) ** 2
    return 2 * descent.smoothness * descent.gap / (retention * root) + variance / root


def break_even_retention(descent: Descent, *, masked_variance: float, whole_variance: float) -> float:
    """The α above which a mask lowers the second theorem's bound on the whole gradient, against no mask at all.

    With the mask (b + V_m)/α, without it b + V, where b = 2Δ/(η²GT): so α > (b + V_m)/(b + V). Where noise is all there
    is this is k/d, what top-k gives at worst; where there is none it is 1, and a mask only costs. Not in the paper.

    >>> run = Descent.at_paper_rate(smoothness=1.0, steps=400, gap=2.0)
    >>> break_even_retention(run, masked_variance=1.0, whole_variance=6.0)
    0.5
    """
    masked = masked_noisy_sgd(descent, variance=masked_variance)
    return masked / masked_noisy_sgd(descent, variance=whole_variance)


def private_sgd(descent: Descent, *, batch_moment: float, noise_moment: float) -> float:
    """Third theorem: (1/T) Σ E⟨∇L(θ_t), ḡ_t⟩ ≤ Δ/(ηT) + (ηG/2)(M + kσ²C²/B²), ḡ_t masked, then clipped.

    Assumes G-smoothness, E‖ḡ_t‖² ≤ M as in `clipped_sgd`, noise independent of θ_t and the batch with the energy of
    `masked_noise_moment`. With steps=1 and Δ the step's decrease it is the paper's one-step form. The noise has mean 0,
    so that the left side is the same with it. As in the first theorem, what is bounded may be negative.

    >>> private_sgd(
    ...     Descent(smoothness=1.0, learning_rate=0.5, steps=10, gap=2.0), batch_moment=1.0, noise_moment=3.0
    ... )
    1.4
    """
    return inner_product_bound(descent, batch_moment + noise_moment)


def printed_private_sgd(
    descent: Descent,
    *,
    clip_norm: float,
    noise_multiplier: float,
    retention: float,
    dimension: int,
    batch_size: float,
) -> float:
    """Third theorem as stated, summed over T steps: Δ/(ηT) + (ηG/2)(C² + α·dσ²C²/B).

    α·d should be k, and B should be B²: too much noise by a factor B for a good mask, too little where α < k/(dB). And
    C² leaves out what Poisson sampling adds. The proof writes "=" where smoothness gives "≤".

    >>> run = Descent(smoothness=1.0, learning_rate=0.5, steps=10, gap=2.0)
    >>> printed_private_sgd(run, clip_norm=1.0, noise_multiplier=2.0, retention=0.25, dimension=8, batch_size=4.0)
    1.15
    """
    check_clip_norm(clip_norm)
    check_active(dimension, dimension)
    check_batch(batch_size, 1.0)
    whole = dimension * (noise_multiplier * clip_norm) ** 2 / batch_size
    return inner_product_bound(descent, clip_norm**2 + printed_expected_energy(whole, retention))
