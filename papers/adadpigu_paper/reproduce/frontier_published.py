"""The best published accuracies without public images, as far as they could be read; none of them is measured here.

Public leaderboard: Private-MachineLearning.github.io. Reproduced: the R+R study of ACSAC 2024. Where no figure at an ε
was found, the best one at a smaller ε stands in, or at the nearest larger one, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from adadpigu_paper.reproduce.paper import TITLES

EPSILONS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A figure in percent, and where it stands."""

    accuracy: float
    source: str


_SCATTER = "ScatterNet, Tramèr and Boneh 2021"
_DPSUR, _ADADPIGU = "DPSUR, in AdaDPIGU's table", "AdaDPIGU 2025, as printed"
_FOUND = {
    "mnist": {
        1: (98.1, f"{_SCATTER}, at ε = 1.2"),
        2: (98.70, _DPSUR),
        4: (98.99, _ADADPIGU),
        8: (99.12, _ADADPIGU),
    },
    "fashion-mnist": {
        1: (89.34, f"{_DPSUR}, at ε = 2"),
        2: (89.7, f"{_SCATTER}, at ε = 3"),
        4: (90.18, _DPSUR),
        8: (90.18, f"{_DPSUR}, at ε = 4"),
    },
    "cifar10": {
        1: (72.5, "DP-RandP, Tang et al. 2023, reproduced"),
        2: (72.5, "DP-RandP, Tang et al. 2023, reproduced, at ε = 1"),
        4: (73.5, "WRN-40-4, De et al. 2022"),
        8: (81.4, "WRN-40-4, De et al. 2022"),
    },
}
BEST = {
    (dataset, epsilon): Published(accuracy=accuracy, source=source)
    for dataset in TITLES
    for epsilon, (accuracy, source) in _FOUND[dataset].items()
}
"""by data set and ε"""
