"""The private classifier (cross entropy over declared classes) and regressor (squared error on a target that is scaled
from its declared bounds to [−1, 1]). Targets are read one by one, before training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import nn
from torch.nn import functional as F

from adadpigu.core.gradients import Loss
from adadpigu.data.description import NumericColumn, listed, shorten
from adadpigu.data.tabular import Rows, positions, scale, text_of, unscale
from adadpigu.errors import InputError, first_line, require, unknown
from adadpigu.integrations.sklearn.columns import Pair, numeric_column
from adadpigu.integrations.sklearn.estimator import PrivateEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class AdaDPIGUClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Classifies records after training under (ε, δ)-differential privacy.

    Public facts, each of them needed: `classes`, all labels there can be; `bounds`, a pair (low, high) for all numeric
    columns, one for each of them in order, or a mapping from column to pair (values are clamped to it and scaled to
    [−1, 1]); `records`, N, how many records fit is about to see. `categories` maps a column to the list of what it may
    hold, encoded one-hot; `unknown` says whether any other value is refused or encoded as "other". `class_weight` maps
    a class to the public number that multiplies the loss of its records; a class that is left out has 1.

    `delta` None is 1e-5, or 1/(10 N) where that is less. `method` is a name or a `Method`; `model` None is a net with
    one hidden layer of 64, a name is a model of the package, a function takes (features, outputs). `loss` is a torch
    loss of (outputs, targets), taken of each record by itself; None is cross entropy. `batch_size` None is N/4, from 32
    to 4096. `options` are further fields of `TrainingOptions`. `ledger` is a file that all fits on the data set
    `dataset` share. `random_state` fixes public choices (the initial weights), never noise or draws.

    Formal guarantee: what fit leaves is (`epsilon_`, `delta_`)-differentially private with respect to adding or
    removing one record of those given to fit, as `privacy_` states, provided that what was declared is public.

    >>> AdaDPIGUClassifier(classes=["no", "yes"], bounds=(0, 1)).fit([[0.2], [0.9]], ["no", "yes"])
    Traceback (most recent call last):
        ...
    adadpigu.errors.InputError: records=None: give the public record count N, e.g. records=5000 (it sets the sampling \
rate; the length of X is private, so it is never read for that)
    """

    classes: Sequence[object] | None = None
    class_weight: Mapping[Any, float] | None = None

    classes_: NDArray[Any] = field(init=False)

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a fresh model on private records; charged in full, whatever was fitted before."""
        self._check_arguments()
        alone = self.loss is None or self.class_weight is None
        require(alone, "loss and class_weight are both given; allowed: one of them, e.g. loss with weights of its own")
        cells, labels = self._read(X, y)
        check_classification_targets(labels)
        classes = declared_classes(self.classes)
        rows = Rows({"y": labels}, "y: record {}".format)
        places = positions(rows, "y", [*map(text_of, classes.tolist())], what="label")
        self._learn(
            cells,
            torch.from_numpy(places),
            outputs=len(classes),
            loss=self.loss or weighted_loss(self.class_weight, classes),
            public=(f"{len(classes)} classes: {listed([*map(repr, classes.tolist())])}",),
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


@dataclass(kw_only=True, eq=False, repr=False)
class AdaDPIGURegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Predicts a number after training under (ε, δ)-differential privacy.

    `target_bounds` is the public pair (low, high) of y: values beyond it are clamped, in training and in predictions.
    `loss` is of outputs and targets [n, 1], scaled to [−1, 1]; None is the squared error. The other arguments and the
    guarantee are those of `AdaDPIGUClassifier`.
    """

    lr: float = 0.1
    target_bounds: Pair | None = None

    target_: NumericColumn = field(init=False)

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a fresh model on private records; charged in full, whatever was fitted before."""
        self._check_arguments()
        target = numeric_column("y", self.target_bounds, argument="target_bounds")
        known = f"range of the target [{target.low:g}, {target.high:g}], scaled to [-1, 1]"
        try:
            cells, values = self._read(X, y, y_numeric=True)
            values = np.asarray(values, np.float64)
        except ValueError as error:
            if "could not convert string" not in str(error):
                raise
            raise InputError(f"y: {first_line(error)}; allowed: numbers") from None
        goal = torch.from_numpy(scale(values, target.low, target.high).astype(np.float32))
        self._learn(cells, goal[:, None], outputs=1, loss=self.loss or F.mse_loss, public=(known,))
        self.target_ = target
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The predicted numbers, within the target's bounds."""
        return unscale(self._outputs(X).double().numpy()[:, 0], self.target_.low, self.target_.high)


def declared_classes(classes: Any) -> NDArray[Any]:
    """The declared labels in scikit-learn's order, which is sorted."""
    plain = not isinstance(classes, str) and np.ndim(classes) == 1
    labels = [*classes] if plain else []
    alike = len({isinstance(label, str) for label in labels}) == 1
    fits = alike and not any(label is None or label != label for label in labels)
    found = np.unique(np.asarray(labels)) if fits else np.zeros(0)
    allowed = "a list of at least 2 labels, each once, numbers alone or text alone"
    require(1 < len(found) == len(labels), f"classes={shorten(classes)}; allowed: {allowed}")
    return found


def weighted_loss(weights: Any, classes: NDArray[Any]) -> Loss:
    """Cross entropy, times the declared weight of a record's class."""
    if weights is None:
        return F.cross_entropy
    labels = classes.tolist()
    example = {label: 1 if place == 0 else 10 for place, label in enumerate(labels[:2])}
    given = weights.values() if isinstance(weights, Mapping) else [None]
    fits = all(isinstance(weight, int | float | np.number) and 0 <= weight < np.inf for weight in given)
    allowed = f"public weights of at least 0 by class, e.g. class_weight={example}"
    why = "('balanced' would count the classes of private records)"
    require(fits, f"class_weight={shorten(weights)}; allowed: {allowed} {why}")
    for label in weights.keys() - {*labels}:
        raise InputError(f"class_weight: {unknown('class', str(label), map(str, labels))}")
    return nn.CrossEntropyLoss(weight=torch.tensor([float(weights.get(label, 1)) for label in labels]))
