"""scikit-learn estimators that train under differential privacy.

    from adadpigu.integrations.sklearn import AdaDPIGUClassifier
    classifier = AdaDPIGUClassifier(classes=[0, 1], bounds=(0, 100), records=5000, epsilon=4.0).fit(X, y)
    classifier.predict(X_new), classifier.epsilon_, classifier.privacy_.statement()

What is public about the records (classes, bounds, categories, their count) is an argument, and never read off them.
"""

from __future__ import annotations

from adadpigu.integrations.sklearn.estimator import PrivateEstimator
from adadpigu.integrations.sklearn.folds import RecordFolds
from adadpigu.integrations.sklearn.pipeline import PrivatePipeline, make_private_pipeline
from adadpigu.integrations.sklearn.predictors import AdaDPIGUClassifier, AdaDPIGURegressor

__all__ = [
    "EXEMPT",
    "AdaDPIGUClassifier",
    "AdaDPIGURegressor",
    "PrivateEstimator",
    "PrivatePipeline",
    "RecordFolds",
    "make_private_pipeline",
]

_BECAUSE = "noise that could be repeated could be subtracted"

EXEMPT: dict[str, str] = {
    "check_fit_idempotent": f"a second fit on the same records has to give the same predictions; {_BECAUSE}",
    "check_supervised_y_2d": f"a fit on y as a column has to predict what one on a flat y does; {_BECAUSE}",
    "check_classifier_data_not_an_array": f"fits on a list and on an array have to predict the same; {_BECAUSE}",
    "check_regressor_data_not_an_array": f"fits on a list and on an array have to predict the same; {_BECAUSE}",
    "check_regressors_int": f"fits on whole numbers and on floats have to predict the same; {_BECAUSE}",
}
"""for `check_estimator(…, expected_failed_checks=EXEMPT)`: checks that fit twice and want the same model"""
