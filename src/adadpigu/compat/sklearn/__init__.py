"""scikit-learn estimators that train under differential privacy.

    from adadpigu.compat.sklearn import AdaDPIGUClassifier
    classifier = AdaDPIGUClassifier(classes=[0, 1], bounds=(0, 100), records=5000, epsilon=4.0).fit(X, y)
    classifier.predict(X_new), classifier.epsilon_, classifier.privacy_.statement()

What is public about the records (classes, bounds, categories, their count) is an argument, and never read off them.
"""

from __future__ import annotations

from adadpigu.compat.sklearn.checks import EXEMPT
from adadpigu.compat.sklearn.classifier import AdaDPIGUClassifier
from adadpigu.compat.sklearn.estimator import PrivateEstimator
from adadpigu.compat.sklearn.folds import RecordFolds
from adadpigu.compat.sklearn.pipeline import PrivatePipeline, make_private_pipeline
from adadpigu.compat.sklearn.regressor import AdaDPIGURegressor

__all__ = [
    "EXEMPT",
    "AdaDPIGUClassifier",
    "AdaDPIGURegressor",
    "PrivateEstimator",
    "PrivatePipeline",
    "RecordFolds",
    "make_private_pipeline",
]
