"""The private classifier: cross entropy over declared classes. Labels are looked up one by one, before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor
from torch.nn import functional as F

from adadpigu.compat.sklearn.arguments import shown
from adadpigu.compat.sklearn.columns import Bounds, Categories
from adadpigu.compat.sklearn.estimator import ModelMaker, PrivateEstimator
from adadpigu.data.description import listed
from adadpigu.errors import InputError
from adadpigu.methods import Method


class AdaDPIGUClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Classifies records after training under (ε, δ)-differential privacy.

    Public facts, each of them needed: `classes`, all labels there can be; `bounds`, a pair (low, high) for all numeric
    columns, one for each of them in order, or a mapping from column to pair (values are clamped to it and scaled to
    [−1, 1]); `records`, N, how many records fit is about to see. `categories` maps a column to the list of what it may
    hold, encoded one-hot; `unknown` says whether any other value is refused or encoded as "other".

    `delta` None is 1e-5, or 1/(10 N) where that is less. `method` is a name or a `Method`; `model` None is a net with
    one hidden layer of 64, a name is a model of the package, a function takes (features, outputs). `batch_size` None is
    N/4, from 32 to 4096. `options` are further fields of `TrainingOptions`. `ledger` is a file that all fits on the
    data set `dataset` share. `random_state` fixes public choices (the initial weights), never noise or draws.

    Formal guarantee: what fit leaves is (`epsilon_`, `delta_`)-differentially private with respect to adding or
    removing one record of those given to fit, as `privacy_` states, provided that what was declared is public.

    >>> AdaDPIGUClassifier(classes=["no", "yes"], bounds=(0, 1)).fit([[0.2], [0.9]], ["no", "yes"])
    Traceback (most recent call last):
        ...
    adadpigu.errors.InputError: records=None: give the public record count N, e.g. records=5000 (it sets the sampling \
rate; the length of X is private, so it is never read for that)
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        *,
        classes: Sequence[object] | None = None,
        bounds: Bounds | None = None,
        categories: Categories | None = None,
        unknown: str = "refuse",
        records: int | None = None,
        epsilon: float = 4.0,
        delta: float | None = None,
        method: Method | str = "adadpigu",
        model: ModelMaker | str | None = None,
        batch_size: int | None = None,
        epochs: float = 20,
        lr: float = 0.5,
        options: Mapping[str, Any] | None = None,
        ledger: Path | str | None = None,
        dataset: str = "own data",
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        super().__init__(
            bounds=bounds,
            categories=categories,
            unknown=unknown,
            records=records,
            epsilon=epsilon,
            delta=delta,
            method=method,
            model=model,
            batch_size=batch_size,
            epochs=epochs,
            lr=lr,
            options=options,
            ledger=ledger,
            dataset=dataset,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.classes = classes

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a fresh model on private records; charged in full, whatever was fitted before."""
        cells, labels = self._taken(X, y, numeric_target=False)
        check_classification_targets(labels)
        classes = declared_classes(self.classes)
        shown = listed([repr(label) for label in classes.tolist()])
        self._learn(
            cells,
            positions(labels, classes),
            outputs=len(classes),
            loss=F.cross_entropy,
            public=(f"{len(classes)} classes: {shown}",),
        )
        self.classes_ = classes
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The model's probabilities, one column a class in the order of `classes_`."""
        shares: NDArray[np.float64] = torch.softmax(self._outputs(X).double(), dim=1).numpy()
        return shares

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each record."""
        places = self._outputs(X).argmax(dim=1).numpy()
        predicted: NDArray[Any] = self.classes_[places]
        return predicted


def declared_classes(classes: Sequence[object] | None) -> NDArray[Any]:
    """The declared labels in scikit-learn's order, which is sorted."""
    if classes is None:
        raise InputError(
            "classes=None: give all labels there can be, e.g. classes=[0, 1]; taken from y they would tell which occur "
            "among private records"
        )
    if isinstance(classes, str) or np.ndim(classes) != 1:  # type: ignore[arg-type]
        raise InputError(f"classes={shown(classes)}; allowed: a list of labels")
    kinds = {isinstance(label, str) for label in classes}
    if len(kinds) > 1 or any(label is None or label != label for label in classes):
        raise InputError(f"classes={shown(classes)}; allowed: numbers alone or text alone, none missing")
    found = np.unique(np.asarray(classes))
    if len(found) != len(classes):
        raise InputError(f"classes={listed(list(classes))} holds a label twice; allowed: each once")
    if len(found) < 2:
        raise InputError(f"classes={list(classes)!r} is one class; allowed: at least 2")
    return found


def positions(labels: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """The place of each record's label among the classes."""
    places = {label: place for place, label in enumerate(classes.tolist())}
    found = [places.get(label, -1) for label in labels.tolist()]
    if -1 in found:
        record = found.index(-1)
        raise InputError(
            f"y: record {record} has the label {labels[record]!r}; allowed: {listed(classes.tolist())}, the declared "
            "classes"
        )
    return torch.tensor(found, dtype=torch.int64)
