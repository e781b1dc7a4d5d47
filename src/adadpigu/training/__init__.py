"""Training, in the order of a run: configured (config -> everything it names), preparation (checks, σ), placement
(features, devices), loop, step (one step on one page), micro_batches (its sensitive side), optimiser and learned
(its public side), reporting.
"""

from adadpigu.runs.run import Facts as Facts
from adadpigu.runs.run import Metrics as Metrics
from adadpigu.runs.run import Observer as Observer
from adadpigu.runs.run import Run as Run
from adadpigu.training.guarding import public as public
from adadpigu.training.options import TrainingOptions as TrainingOptions
from adadpigu.training.own_loop import PrivateBatch as PrivateBatch
from adadpigu.training.own_loop import PrivateLoop as PrivateLoop
from adadpigu.training.preparation import Preparation as Preparation
from adadpigu.training.preparation import prepare as prepare
from adadpigu.training.train import train as train
from adadpigu.training.train import train_prepared as train_prepared
