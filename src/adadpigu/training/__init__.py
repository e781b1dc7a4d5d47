"""Training, in the order of a run: configured (config -> everything it names), preparation (checks, σ), placement
(features, devices), loop, draws and view (the sensitive side of a step), optimiser and averaging (the public side),
reporting, run (the folder that stays).
"""

from __future__ import annotations

from adadpigu.training.options import TrainingOptions
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.preparation import Preparation, prepare
from adadpigu.training.run import Facts, Metrics, Observer, Run
from adadpigu.training.train import train, train_prepared

__all__ = [
    "Facts",
    "Metrics",
    "Observer",
    "Preparation",
    "PrivateBatch",
    "PrivateLoop",
    "Run",
    "TrainingOptions",
    "prepare",
    "train",
    "train_prepared",
]
