"""Per-sample gradients: the first stage of the pipeline, all of it on the sensitive side of the privacy line.

`choose_engine` inspects a model on a synthetic example, refuses what cannot be trained privately, and returns the
fastest engine that is right; engines seal what they compute: records → g_i = ∇ℓ(θ; record i) → `PerSampleGradients`.
"""

from adadpigu.core.gradients import rules_attention, rules_recurrent  # noqa: F401  (their layers are registered)
from adadpigu.core.gradients.choice import ENGINES, choose_engine
from adadpigu.core.gradients.engine import GradientEngine
from adadpigu.core.gradients.losses import Loss, Losses
from adadpigu.core.gradients.rule_engine import Precision

__all__ = ["ENGINES", "GradientEngine", "Loss", "Losses", "Precision", "choose_engine"]
