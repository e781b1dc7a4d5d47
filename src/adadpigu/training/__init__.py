"""Training, in the order of a run: configured (config -> everything it names), preparation (checks, σ), placement
(features, devices), loop, step (one step on one page), micro_batches (its sensitive side), optimiser and learned
(its public side), reporting.
"""

from adadpigu.runs.run import Facts, Metrics, Observer, Run
from adadpigu.training.guarding import public
from adadpigu.training.options import TrainingOptions
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.preparation import Preparation, prepare
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
    "public",
    "train",
    "train_prepared",
]
