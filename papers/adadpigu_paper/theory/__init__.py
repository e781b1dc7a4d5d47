"""The paper's theory, corrected where it slips, and held against problems where the truth is known.

    retained_energy   the lemma and its corollary            second_moments   E‖update‖², of Poisson batches too
    descent           what smoothness alone gives            theorems         the three, as proved and as printed
    known_problems -> measured.measure_rows -> drawing.draw  (`adadpigu reproduce theory`, docs/theory.md)

Public numbers and synthetic records only; nothing here is on the path of a private run.
"""

from adadpigu_paper.theory.descent import Descent, gradient_norm_bound, inner_product_bound
from adadpigu_paper.theory.drawing import draw
from adadpigu_paper.theory.measured import measure_rows
from adadpigu_paper.theory.retained_energy import even_share, expected_energy, retained_energy, top_k_mask
from adadpigu_paper.theory.second_moments import fixed_batch_moment, masked_noise_moment, poisson_batch_moment
from adadpigu_paper.theory.theorems import (
    break_even_retention,
    clipped_sgd,
    masked_noisy_sgd,
    masked_noisy_sgd_whole_gradient,
    private_sgd,
    update_variance,
)

__all__ = [
    "Descent",
    "break_even_retention",
    "clipped_sgd",
    "draw",
    "even_share",
    "expected_energy",
    "fixed_batch_moment",
    "gradient_norm_bound",
    "inner_product_bound",
    "masked_noise_moment",
    "masked_noisy_sgd",
    "masked_noisy_sgd_whole_gradient",
    "measure_rows",
    "poisson_batch_moment",
    "private_sgd",
    "retained_energy",
    "top_k_mask",
    "update_variance",
]
