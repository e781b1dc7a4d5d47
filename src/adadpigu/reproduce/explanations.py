"""Why a claim of the paper is not reached under real privacy, each with where that is shown. Words only, no figures."""

from __future__ import annotations

from typing import Literal

Reason = Literal["unmasked", "accepted", "highest", "features", "untold"]

REASONS: dict[Reason, str] = {
    "unmasked": "The claim's mask and statistics read un-noised gradients, its batches are shuffled but accounted as "
    "Poisson (both audited in [docs/published-leaks.md](../../docs/published-leaks.md)), and its best epoch is picked "
    "on the test set. Made private, no part of the method lifts the tanh CNN that far: [ablation](ablation.md), "
    "[what the mask keeps](energy.md).",
    "accepted": "The claim charges accepted steps alone. Charged in full, its published setting on MNIST costs half as "
    "much again as it states: `python -m doctest src/adadpigu/methods/dpsur.py`.",
    "highest": "The highest claim was not obtained under the ε it states: see the row of the method that makes it.",
    "features": "The claim is another paper's model on ScatterNet features, ours the tanh CNN on pixels.",
    "untold": "The claim's settings are not told; ours are those that did best on held-out records.",
}


def why_lower(method: str, epsilon: int | None) -> Reason:
    """What explains a figure below the claim."""
    if epsilon is None:
        return "features"
    known: dict[str, Reason] = {"adadpigu": "unmasked", "dpsur": "accepted", "best": "highest"}
    return known.get(method, "untold")
