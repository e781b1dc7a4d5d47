"""Per-sample gradients: the first stage of the pipeline, all of it on the sensitive side of the privacy line.

`choose_engine` inspects a model on a synthetic example, refuses what cannot be trained privately, and returns the
fastest engine that is right; engines seal what they compute: records → g_i = ∇ℓ(θ; record i) → `PerSampleGradients`.
"""

from __future__ import annotations

from adadpigu.core.gradients.choice import ENGINES, choose_engine
from adadpigu.core.gradients.engine import FunctionalEngine, GradientEngine, LoopEngine
from adadpigu.core.gradients.ghost import GhostEngine
from adadpigu.core.gradients.losses import Loss, Losses
from adadpigu.core.gradients.rule_engine import Precision, RuleEngine
from adadpigu.core.gradients.rules import RULES, Destination, rule
from adadpigu.core.gradients.rules_attention import attention
from adadpigu.core.gradients.rules_recurrent import recurrent
from adadpigu.core.gradients.unfolding import UNFOLDINGS
from adadpigu.core.sensitive import GradientBatch, PerSampleGradients

__all__ = [
    "ENGINES",
    "RULES",
    "UNFOLDINGS",
    "Destination",
    "FunctionalEngine",
    "GhostEngine",
    "GradientBatch",
    "GradientEngine",
    "LoopEngine",
    "Loss",
    "Losses",
    "PerSampleGradients",
    "Precision",
    "RuleEngine",
    "attention",
    "choose_engine",
    "recurrent",
    "rule",
]
