"""TP-TopK: a charged warm-up finds a support, and a test on releases decides whether to keep to it. Sees releases.

warm-up: DP-SGD, its releases ranked     restrict iff the power that the rest would have < the noise that it costs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adadpigu.methods.adadpigu import Masked, Restrict
from adadpigu.methods.base import register
from adadpigu.methods.importance import Score
from adadpigu.methods.mask import Schedule


@register
@dataclass(frozen=True, kw_only=True)
class TPTopK(Masked):
    """TP-TopK (arXiv 2606.04375, abstract only) from parts of AdaDPIGU: its settings are ours, not the paper's.

    Released is DP-SGD's sum in the warm-up, then its sum on the support m, charged as one event (q, σ) a step, the
    warm-up included. Both the support and the decision are functions of releases, so they are free.

    The criterion. Without coordinate j an update errs by its signal p_j = E[ĝ_j]², with it by the noise (σC/B)²; so to
    restrict pays in squared error iff the mean of p_j over what would be frozen is less than (σC/B)². Every other
    release of the warm-up ranks, the others measure p_j (their square less the known noise variance, unbiased),
    because the noise that made a coordinate rank high must not measure it too.

    The support then stays; `schedule` lets the rest return.
    """

    name: ClassVar[str] = "tp-topk"
    source: ClassVar[str] = "arXiv 2606.04375 (abstract)"
    adds: ClassVar[str] = "a support from a warm-up's releases, kept to only where that pays"
    costs: ClassVar[str] = "one event a step, the warm-up included"

    retention: float = 0.3
    """the share of coordinates in the support"""
    score: Score = "energy"
    restrict: Restrict = "worthwhile"
    schedule: Schedule = "constant"
