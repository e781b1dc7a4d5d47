"""Per-sample gradients: the first stage of the pipeline, all of it on the sensitive side of the privacy line.

`choose_engine` inspects a model on a synthetic example, refuses what cannot be trained privately, and returns the
fastest engine that is right; engines seal what they compute: records → g_i = ∇ℓ(θ; record i) → `PerSampleGradients`.
"""

from __future__ import annotations

from adadpigu.gradients.choice import ENGINES, choose_engine
from adadpigu.gradients.functional import FunctionalEngine, LoopEngine
from adadpigu.gradients.ghost import GhostEngine
from adadpigu.gradients.inspection import inspect_model
from adadpigu.gradients.interface import GradientEngine
from adadpigu.gradients.losses import Loss
from adadpigu.gradients.rule_engine import Precision, RuleEngine
from adadpigu.gradients.rules import RULES, Destination, rule
from adadpigu.gradients.rules_attention import attention
from adadpigu.gradients.rules_embedding import embedding_bag
from adadpigu.gradients.rules_recurrent import one_step, recurrent
from adadpigu.gradients.standardised import standardised_conv2d
from adadpigu.gradients.unfolding import UNFOLDINGS, unfolding
from adadpigu.records import GradientBatch, PerRecordLosses, PerSampleGradients

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
    "PerRecordLosses",
    "PerSampleGradients",
    "Precision",
    "RuleEngine",
    "attention",
    "choose_engine",
    "embedding_bag",
    "inspect_model",
    "one_step",
    "recurrent",
    "rule",
    "standardised_conv2d",
    "unfolding",
]
