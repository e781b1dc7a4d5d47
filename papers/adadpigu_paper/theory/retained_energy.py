"""How much of a vector's energy ‖u‖² a mask of k of d coordinates keeps: the energy-retention lemma, its corollary.

    α(u, m) = ‖m ⊙ u‖² / ‖u‖²,   and α(u, top-k of u) ≥ k/d

Pure functions of vectors that the caller may look at; on gradients of records that is under Diagnostics only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adadpigu.errors import InputError

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]


def top_k_mask(vector: Numbers, active: int) -> Mask:
    """The k coordinates of largest magnitude; of equal ones the first, so that there are always exactly k.

    >>> top_k_mask(np.array([1.0, -3.0, 1.0, 2.0]), 3).tolist()
    [True, True, False, True]
    """
    check_active(active, len(vector))
    mask = np.zeros(len(vector), dtype=bool)
    mask[np.argsort(-np.abs(vector), kind="stable")[:active]] = True
    return mask


def retained_energy(vector: Numbers, mask: Mask) -> float:
    """α(u, m) = ‖m ⊙ u‖²/‖u‖² of any mask, so that ⟨u, m ⊙ u⟩ = α‖u‖²; 1 for the zero vector, which loses nothing.

    Statement (lemma). For m = top-k of u *itself*, α ≥ k/d: the mean of the k largest squares is no smaller than the
    mean of all. With k < d equality holds if and only if all magnitudes are equal.

    The paper puts this bound in the proof and says "≈ k/d for nearly uniform magnitudes" in the statement; it does not
    say when equality holds and leaves 0/0 open. It then uses the bound for a *fixed* mask, for which nothing holds but
    0 ≤ α ≤ 1: the gradient may lie wholly outside.

    >>> retained_energy(np.array([3.0, 4.0]), np.array([False, True]))
    0.64
    """
    largest = float(np.max(np.abs(vector), initial=0.0))
    if largest == 0:
        return 1.0
    squares = np.square(vector / largest)  # of the largest: squares of tiny numbers would vanish
    kept, lost = float(squares[mask].sum()), float(squares[~mask].sum())
    return kept / (kept + lost)


def even_share(active: int, dimension: int) -> float:
    """k/d: the least α of a vector under its own top-k, and exactly what a mask keeps of noise that it does not see.

    Statement (corollary, corrected). For z with E z_j² equal for all j and m independent of z,
    E‖m ⊙ z‖² = (k/d)·E‖z‖². Under the top-k of z itself more is kept: E‖m ⊙ z‖² > (k/d)·E‖z‖² for Gaussian z, k < d.

    >>> even_share(3, 12)
    0.25
    """
    check_active(active, dimension)
    return active / dimension


def expected_energy(second_moments: Numbers, mask: Mask) -> float:
    """E‖m ⊙ v‖² = Σ_{j in m} E v_j² for a mask that is independent of v, whatever v's distribution.

    Assumes E v_j² finite, and m chosen before v is drawn (it may depend on earlier releases).

    >>> expected_energy(np.array([1.0, 4.0, 9.0]), np.array([True, False, True]))
    10.0
    """
    return float(second_moments[mask].sum())


def printed_expected_energy(total: float, retention: float) -> float:
    """α_t·E‖v‖²: the corollary as the paper uses it on noise, α_t being the energy that is kept of the *gradient*.

    No bound in general. The corollary defines α_t as sup α(v), which it places in (0, 1); the supremum is 1, reached by
    every vector with at most k entries, so what is proved is E‖m ⊙ v‖² ≤ E‖v‖². The theorems then put in the
    gradient's α_t, which says nothing about another vector: on isotropic noise it is too small wherever α_t < k/d, on
    the batch's deviations wherever they lie in the mask. (The first "≤" of the printed chain is an equality.)

    >>> printed_expected_energy(10.0, 0.25)
    2.5
    """
    if not 0 <= retention <= 1:
        raise InputError(f"retention={retention}: must be from 0 to 1")
    return retention * total


def check_active(active: int, dimension: int) -> None:
    if not 1 <= active <= dimension:
        raise InputError(f"active={active}: must be from 1 to dimension={dimension}")
