"""The paper's tables and figures from this code: each is measured, kept as rows and drawn beside the paper's claims.

adadpigu reproduce NAME            measures (long: a GPU), then draws
adadpigu reproduce NAME --quick    a small version, minutes on two cores
adadpigu reproduce NAME --from results   draws what was measured before
"""

from __future__ import annotations

from adadpigu.reproduce.accuracy_table import ACCURACY_TABLE
from adadpigu.reproduce.artefact import Artefact
from adadpigu.reproduce.noise_table import NOISE_TABLE
from adadpigu.reproduce.theory import THEORY

ARTEFACTS: dict[str, Artefact] = {artefact.name: artefact for artefact in (NOISE_TABLE, ACCURACY_TABLE, THEORY)}
"""in the order of the paper"""
