"""Training: prepare (checks, σ), loop, run folder."""

from __future__ import annotations

from adadpigu.training.options import TrainingOptions
from adadpigu.training.preparation import Preparation, prepare
from adadpigu.training.run import Facts, Metrics, Observer, Run
from adadpigu.training.train import train, train_prepared

__all__ = [
    "Facts",
    "Metrics",
    "Observer",
    "Preparation",
    "Run",
    "TrainingOptions",
    "prepare",
    "train",
    "train_prepared",
]
