"""scikit-learn estimators that train under differential privacy.

    from adadpigu.integrations.sklearn import AdaDPIGUClassifier
    classifier = AdaDPIGUClassifier(classes=[0, 1], bounds=(0, 100), records=5000, epsilon=4.0).fit(X, y)
    classifier.predict(X_new), classifier.epsilon_, classifier.privacy_.statement()

What is public about the records (classes, bounds, categories, their count) is an argument, and never read off them.
"""

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

EXEMPT: dict[str, str] = dict.fromkeys(
    (
        *("check_fit_idempotent", "check_supervised_y_2d", "check_regressors_int"),
        *("check_classifier_data_not_an_array", "check_regressor_data_not_an_array"),
    ),
    "it fits twice and wants the same predictions; noise that could be repeated could be subtracted",
)
"""for `check_estimator(…, expected_failed_checks=EXEMPT)`"""
