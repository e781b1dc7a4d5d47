"""Differentially private training whose guarantee is real, fast and accurate.

    import adadpigu as ad
    run = ad.train(model, (inputs, targets), records=60_000, privacy=ad.Budget(epsilon=4, delta=1e-5),
                   method=ad.AdaDPIGU(retention=0.6), batch_size=1000, epochs=30)
    run.accuracy, run.epsilon, run.privacy.statement()

The pipeline, as the modules stand: data -> core.sampling -> features -> core.gradients -> core.bounding ->
core.mechanism (the privacy line) -> methods -> training.
"""

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.core.bounding import GradientSum, MappedSum, RecordSum
from adadpigu.core.mechanism import Release
from adadpigu.data import DataSet, load_dataset
from adadpigu.data.public import PublicRecords
from adadpigu.errors import AdaDPIGUError, BudgetError, InputError, ModelError, PrivacyLineError
from adadpigu.features.front import Front, make_front
from adadpigu.methods import (
    DPSGD,
    DPSUR,
    SGD,
    AdaCliP,
    AdaDPIGU,
    Layers,
    Masked,
    Method,
    ParameterFreezing,
    QuantileClipping,
    RandomFreeze,
    make_method,
)
from adadpigu.models import make_model
from adadpigu.runs.loading import load_into as load
from adadpigu.training import Observer, PrivateBatch, PrivateLoop, Run, TrainingOptions, public, train
from adadpigu.training.releasing import Released, release_counts, release_quantiles

__all__ = [
    "DPSGD",
    "DPSUR",
    "SGD",
    "AdaCliP",
    "AdaDPIGU",
    "AdaDPIGUError",
    "Budget",
    "BudgetError",
    "DataSet",
    "Front",
    "GradientSum",
    "InputError",
    "Layers",
    "MappedSum",
    "Masked",
    "Method",
    "ModelError",
    "Observer",
    "ParameterFreezing",
    "PrivacyLineError",
    "PrivacyReport",
    "PrivateBatch",
    "PrivateLoop",
    "PublicRecords",
    "QuantileClipping",
    "RandomFreeze",
    "RecordSum",
    "Release",
    "Released",
    "Run",
    "TrainingOptions",
    "load",
    "load_dataset",
    "make_front",
    "make_method",
    "make_model",
    "public",
    "release_counts",
    "release_quantiles",
    "train",
]
