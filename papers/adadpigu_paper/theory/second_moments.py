"""E‖update‖² of a clipped, masked, noised mean: the number that a bound by smoothness needs to know of a step.

    E‖ḡ + m ⊙ z/B‖² = E‖ḡ‖² + kσ²C²/B²,   E‖ḡ‖² ≤ C² (batches of fixed size),  ≤ C²(1 + (1−q)/B) (Poisson batches)

B is the expected batch size qN, by which the sum is divided. Clipped gradients are sensitive; the bounds are public.
"""

from __future__ import annotations

import math

import numpy as np

from adadpigu.accounting.events import check_noise_multiplier
from adadpigu.errors import InputError
from adadpigu_paper.theory.retained_energy import Numbers


def clipped(gradients: Numbers, clip_norm: float) -> Numbers:
    """Each row times min(1, C/‖g‖): no row is longer than C, short ones stay as they are.

    >>> clipped(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    check_clip_norm(clip_norm)
    norms = np.sqrt(np.einsum("...j,...j->...", gradients, gradients))[..., None]
    return np.asarray(gradients / np.maximum(1.0, norms / clip_norm), dtype=np.float64)


def printed_clipped(gradients: Numbers, clip_norm: float) -> Numbers:
    """Each row divided by max(1, C/‖g‖), as the proof of the third theorem prints it: the fraction is upside down.

    Long rows stay as long as they are and short ones shrink, so that neither ‖ḡ‖ ≤ C nor any sensitivity follows.

    >>> printed_clipped(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).tolist()
    [[3.0, 4.0], [0.15, 0.2]]
    """
    check_clip_norm(clip_norm)
    norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
    return np.asarray(gradients * np.minimum(1.0, norms / clip_norm), dtype=np.float64)


def fixed_batch_moment(clip_norm: float) -> float:
    """E‖ḡ‖² ≤ C² for batches of exactly B records: a mean of vectors no longer than C. The paper's, and right there.

    >>> fixed_batch_moment(2.0)
    4.0
    """
    check_clip_norm(clip_norm)
    return clip_norm**2


def poisson_batch_moment(clip_norm: float, *, batch_size: float, sample_rate: float) -> float:
    """E‖ḡ‖² ≤ C²(1 + (1−q)/B) for Poisson batches, ḡ being the clipped sum divided by B = qN.

    Each of N records joins with probability q. Then E ḡ is the mean of all clipped gradients, of length at most C, and
    the variance Σ q(1−q)‖c_i‖²/B² is at most (1−q)C²/B. Equality where all clipped gradients are the same and of
    length C. The paper has C² throughout, while its accounting is that of Poisson sampling, where batches of more
    than B records carry ‖ḡ‖ above C.

    >>> poisson_batch_moment(1.0, batch_size=1.0, sample_rate=0.25)
    1.75
    """
    check_clip_norm(clip_norm)
    check_batch(batch_size, sample_rate)
    return clip_norm**2 * (1 + (1 - sample_rate) / batch_size)


def poisson_variance(vectors: Numbers, sample_rate: float) -> float:
    """E‖ḡ − E ḡ‖² = ((1−q)/B)·(1/N)Σ‖c_i‖² of the Poisson sum of N given rows, divided by B = qN: exact.

    It is the rows' second moment that counts, not their variance about the mean: the number of records varies too.
    """
    check_batch(sample_rate * len(vectors), sample_rate)
    spread = float(np.einsum("ij,ij->", vectors, vectors)) / len(vectors)
    return (1 - sample_rate) / (sample_rate * len(vectors)) * spread


def exact_poisson_moment(vectors: Numbers, sample_rate: float) -> float:
    """E‖ḡ‖² = ‖mean of all rows‖² + `poisson_variance`: exact, for rows that are known.

    >>> exact_poisson_moment(np.array([[1.0], [1.0]]), 0.5)
    1.5
    """
    mean = vectors.mean(axis=0)
    return float(mean @ mean) + poisson_variance(vectors, sample_rate)


def masked_noise_moment(*, active: int, noise_multiplier: float, clip_norm: float, batch_size: float) -> float:
    """E‖m ⊙ z/B‖² = kσ²C²/B²: exact, for one draw z ~ N(0, σ²C² I) on the *sum*, of which a fixed mask keeps k.

    The paper has three variances for it: σ²C² (statement of the third theorem and of the IGU theorem, where the noise
    is outside of 1/B), σ²C²/B (its proof, as if every record brought a draw of its own), σ²C²/B² (Algorithm 2). The
    last is what the privacy analysis pays for.

    >>> masked_noise_moment(active=4, noise_multiplier=2.0, clip_norm=0.5, batch_size=4)
    0.25
    """
    check_clip_norm(clip_norm)
    check_noise_multiplier(noise_multiplier)
    if active < 1:
        raise InputError(f"active={active}: must be 1 or more")
    check_batch(batch_size, 1.0)
    return active * (noise_multiplier * clip_norm / batch_size) ** 2


def check_clip_norm(clip_norm: float) -> None:
    if not clip_norm > 0:
        raise InputError(f"clip_norm={clip_norm}: must be above 0")


def check_batch(batch_size: float, sample_rate: float) -> None:
    if not 0 < sample_rate <= 1:
        raise InputError(f"sample_rate={sample_rate}: must be above 0 and at most 1")
    if not (batch_size > 0 and math.isfinite(batch_size)):
        raise InputError(f"batch_size={batch_size}: must be above 0 and finite")
