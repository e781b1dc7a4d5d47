"""The paper's tables and figures from this code: each is measured, kept as rows and drawn beside the paper's claims.

adadpigu reproduce NAME            measures (long: a GPU), then draws
adadpigu reproduce NAME --quick    a small version, minutes on two cores
adadpigu reproduce NAME --from results   draws what was measured before
"""

from __future__ import annotations

from adadpigu_paper.reproduce.ablation import ABLATION
from adadpigu_paper.reproduce.ablation_tuning import ABLATION_TUNING
from adadpigu_paper.reproduce.accuracy_table import ACCURACY_TABLE
from adadpigu_paper.reproduce.artefact import Artefact
from adadpigu_paper.reproduce.batch_tradeoff import BATCH_TRADEOFF
from adadpigu_paper.reproduce.budget_curve import BUDGET_CURVE
from adadpigu_paper.reproduce.energy import ENERGY
from adadpigu_paper.reproduce.frontier import FRONTIER
from adadpigu_paper.reproduce.gradient_histogram import GRADIENT_HISTOGRAM
from adadpigu_paper.reproduce.kept_share import KEPT_SHARE
from adadpigu_paper.reproduce.noise_table import NOISE_TABLE
from adadpigu_paper.reproduce.pruning import PRUNING_CURVES, PRUNING_SWEEP
from adadpigu_paper.reproduce.regimes import REGIMES
from adadpigu_paper.reproduce.retention import RETENTION
from adadpigu_paper.reproduce.retention_time import RETENTION_TIME
from adadpigu_paper.reproduce.systems import SYSTEMS_TABLE
from adadpigu_paper.reproduce.theory import THEORY

_ALL = (
    *(GRADIENT_HISTOGRAM, THEORY, ENERGY, NOISE_TABLE, PRUNING_CURVES, BUDGET_CURVE, PRUNING_SWEEP),
    *(BATCH_TRADEOFF, ACCURACY_TABLE, RETENTION_TIME, RETENTION, ABLATION_TUNING, ABLATION),
    *(SYSTEMS_TABLE, KEPT_SHARE, FRONTIER, REGIMES),
)
ARTEFACTS: dict[str, Artefact] = {artefact.name: artefact for artefact in _ALL}
"""in the order of the paper, then what goes beyond it"""
