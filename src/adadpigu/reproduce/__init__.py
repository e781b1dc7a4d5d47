"""The paper's tables and figures from this code: each is measured, kept as rows and drawn beside the paper's claims.

adadpigu reproduce NAME            measures (long: a GPU), then draws
adadpigu reproduce NAME --quick    a small version, minutes on two cores
adadpigu reproduce NAME --from results   draws what was measured before
"""

from __future__ import annotations

from adadpigu.reproduce.ablation import ABLATION
from adadpigu.reproduce.ablation_tuning import ABLATION_TUNING
from adadpigu.reproduce.accuracy_table import ACCURACY_TABLE
from adadpigu.reproduce.artefact import Artefact
from adadpigu.reproduce.batch_tradeoff import BATCH_TRADEOFF
from adadpigu.reproduce.budget_curve import BUDGET_CURVE
from adadpigu.reproduce.energy import ENERGY
from adadpigu.reproduce.gradient_histogram import GRADIENT_HISTOGRAM
from adadpigu.reproduce.noise_table import NOISE_TABLE
from adadpigu.reproduce.pruning import PRUNING_CURVES, PRUNING_SWEEP
from adadpigu.reproduce.theory import THEORY

_ALL = (
    *(GRADIENT_HISTOGRAM, THEORY, ENERGY, NOISE_TABLE, PRUNING_CURVES, BUDGET_CURVE, PRUNING_SWEEP),
    *(BATCH_TRADEOFF, ACCURACY_TABLE, ABLATION_TUNING, ABLATION),
)
ARTEFACTS: dict[str, Artefact] = {artefact.name: artefact for artefact in _ALL}
"""in the order of the paper, then what goes beyond it"""
