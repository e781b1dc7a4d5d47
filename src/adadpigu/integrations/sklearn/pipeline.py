"""A pipeline whose privacy statement names the steps that no budget covers.

A transformer that is fitted on private records learns from them without noise: a mean, a component, a vocabulary. An
estimator cannot see what came before it in a plain `Pipeline`, so its statement warns of everything; here the pipeline
tells it, and the statement names the steps.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer

from adadpigu.errors import require
from adadpigu.integrations.sklearn.estimator import PrivateEstimator, with_caveats

STATELESS = (Binarizer, FeatureHasher, HashingVectorizer, Normalizer)
"""transformers that treat each record by itself; by exact type, since a subclass may learn"""


class PrivatePipeline(Pipeline):  # type: ignore[misc]
    """scikit-learn's `Pipeline`, ending in a private estimator whose statement names the fitted steps before it."""

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fits the steps one after the other, the last one privately."""
        last = self.steps[-1][1] if self.steps else None
        private = isinstance(last, PrivateEstimator)
        require(private, f"the last step is a {type(last).__name__}; allowed: AdaDPIGUClassifier, AdaDPIGURegressor")
        super().fit(X, y, **params)
        assert isinstance(last, PrivateEstimator)
        last.run_ = with_caveats(last.run_, *uncovered(self.steps[:-1]))
        return self


def make_private_pipeline(*steps: Any) -> PrivatePipeline:
    """A `PrivatePipeline` of these steps, named as `make_pipeline` would."""
    return PrivatePipeline(make_pipeline(*steps).steps)


def uncovered(steps: Sequence[tuple[str, Any]]) -> list[str]:
    """What to say of the steps before the private one; nothing of those that treat each record by itself.

    >>> from sklearn.preprocessing import StandardScaler
    >>> uncovered([("normalizer", Normalizer()), ("scaler", StandardScaler())])
    ["the pipeline's step 'scaler' (StandardScaler): fitted on these records without noise"]
    """
    lines = []
    for name, step in steps:
        function = step.func if type(step) is FunctionTransformer else ""
        if step in (None, "passthrough") or type(step) in STATELESS or isinstance(function, np.ufunc | None):
            continue
        what = "fitted on these records without noise"
        if type(step) is FunctionTransformer:
            what = "covered only if its function treats each record by itself"
        elif type(step) is FrozenEstimator:
            what = "not covered if it was fitted on these records"
        lines.append(f"the pipeline's step {name!r} ({type(step).__name__}): {what}")
    return lines
