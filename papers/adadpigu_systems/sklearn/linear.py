"""Linear classifiers whose one release is private by convexity: output and objective perturbation as estimators.

    from adadpigu_systems.sklearn import OutputPerturbationClassifier
    OutputPerturbationClassifier(classes=[0, 1], feature_norm=3.0, records=5000, epsilon=1.0).fit(X, y)

What is public (classes, the bound on a record's norm, the record count) is an argument, and never read off the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from adadpigu.errors import require
from adadpigu.integrations.sklearn.estimator import chosen_delta
from adadpigu_systems.convex import LinearRelease, objective_perturbation, output_perturbation
from adadpigu_systems.one_shot import OneShotStatement


class _PrivateLinear(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What both have in common: public facts are arguments, checked when `fit` begins."""

    result_: LinearRelease
    classes: Sequence[Any] | None
    feature_norm: float | None
    records: int | None
    epsilon: float
    delta: float | None
    intercept: bool
    ledger: Path | str | None
    dataset: str

    @property
    def privacy_(self) -> OneShotStatement:
        """The statement of the last fit."""
        check_is_fitted(self, "result_")
        return self.result_.privacy

    @property
    def epsilon_(self) -> float:
        return self.privacy_.epsilon

    @property
    def coef_(self) -> NDArray[np.float64]:
        """The released weights, the intercept's last."""
        check_is_fitted(self, "result_")
        return np.asarray(self.result_.weights.numpy())

    def fit(self, X: Any, y: Any) -> Self:
        """Learns from the records, and makes one private release."""
        require(self.classes is not None, "classes=None: give all labels there can be, e.g. classes=[0, 1]")
        require(self.records is not None, "records=None: give the public record count N, e.g. records=5000")
        assert self.classes is not None
        assert self.records is not None
        cells, labels = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=False)
        self.classes_ = np.asarray(self.classes)
        order = np.argsort(self.classes_, kind="stable")
        places = order[np.minimum(np.searchsorted(self.classes_[order], labels), len(order) - 1)]
        known = bool((self.classes_[places] == labels).all())
        require(known, f"classes={list(self.classes)}: y has another label; allowed: these")
        self.result_ = self._release(
            torch.from_numpy(cells),
            torch.from_numpy(places),
            classes=len(self.classes_),
            records=int(self.records),
            epsilon=float(self.epsilon),
            delta=chosen_delta(self.delta, int(self.records)),
            feature_norm=self.feature_norm,
            intercept=self.intercept,
            dataset=self.dataset,
            ledger=None if self.ledger is None else Path(self.ledger),
        )
        return self

    def _release(self, inputs: torch.Tensor, targets: torch.Tensor, **facts: Any) -> LinearRelease:
        raise NotImplementedError

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Class scores of new records."""
        check_is_fitted(self, "result_")
        cells = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(self.result_.scores(torch.from_numpy(cells)).numpy())

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        return np.asarray(torch.softmax(torch.from_numpy(self.decision_function(X)), 1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        return np.asarray(self.classes_[self.decision_function(X).argmax(axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class OutputPerturbationClassifier(_PrivateLinear):
    """SGD on a linear head, and Gaussian noise on its weights: `convex.output_perturbation`."""

    def __init__(
        self,
        *,
        classes: Sequence[Any] | None = None,
        feature_norm: float | None = None,
        records: int | None = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        intercept: bool = True,
        passes: int = 10,
        lr: float | None = None,
        ledger: Path | str | None = None,
        dataset: str = "own data",
    ) -> None:
        self.classes, self.feature_norm, self.records = classes, feature_norm, records
        self.epsilon, self.delta, self.intercept, self.dataset = epsilon, delta, intercept, dataset
        self.passes, self.lr, self.ledger = passes, lr, ledger

    def _release(self, inputs: torch.Tensor, targets: torch.Tensor, **facts: Any) -> LinearRelease:
        return output_perturbation(inputs, targets, passes=self.passes, lr=self.lr, **facts)


class ObjectivePerturbationClassifier(_PrivateLinear):
    """The minimum of a perturbed softmax regression: `convex.objective_perturbation`."""

    def __init__(
        self,
        *,
        classes: Sequence[Any] | None = None,
        feature_norm: float | None = None,
        records: int | None = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        intercept: bool = True,
        regularisation: float | None = None,
        gradient_norm: float | None = None,
        ledger: Path | str | None = None,
        dataset: str = "own data",
    ) -> None:
        self.classes, self.feature_norm, self.records = classes, feature_norm, records
        self.epsilon, self.delta, self.intercept, self.dataset = epsilon, delta, intercept, dataset
        self.regularisation, self.gradient_norm, self.ledger = regularisation, gradient_norm, ledger

    def _release(self, inputs: torch.Tensor, targets: torch.Tensor, **facts: Any) -> LinearRelease:
        chosen = {"regularisation": self.regularisation, "gradient_norm": self.gradient_norm}
        return objective_perturbation(inputs, targets, **chosen, **facts)  # type: ignore[arg-type]
