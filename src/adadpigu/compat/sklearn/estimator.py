"""What classifier and regressor share: public facts are arguments, records are encoded one by one, `train` learns.

Everything that is learned goes through `adadpigu.train`, so it is charged there; the fitted attributes are the model,
which is a release, and public facts. No loss, gradient or training accuracy is ever shown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.compat.sklearn.columns import Bounds, Categories, declared_columns, encoded
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.description import Column, TableFacts
from adadpigu.errors import InputError
from adadpigu.gradients import Loss
from adadpigu.methods import Method
from adadpigu.models import make_model
from adadpigu.training import Run, train
from adadpigu.training.evaluation import predict
from adadpigu.training.run import Facts, Metrics

ModelMaker = Callable[[int, int], nn.Module]
"""from the numbers of inputs and outputs to a fresh model"""

NOT_COVERED = (
    "whatever was fitted on these records before fit: a scaler, an encoder, an imputer, PCA or feature selection has "
    "seen them without noise",
    "scores on records (score, cross_val_score, GridSearchCV): they are exact, and so is what is chosen by them",
    "how the records given to fit were picked: a bootstrap repeats records, and one record more moves others between "
    "folds that are cut by position or label (RecordFolds cuts record by record)",
)
"""that no estimator can see, so every statement names it"""

_OWN = ("batch_size", "epochs", "steps", "lr", "device")


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator whose fit is differentially private. Use `AdaDPIGUClassifier` or `AdaDPIGURegressor`."""

    run_: Run
    columns_: tuple[Column, ...]

    def __init__(
        self,
        *,
        bounds: Bounds | None,
        categories: Categories | None,
        unknown: str,
        records: int | None,
        epsilon: float,
        delta: float | None,
        method: Method | str,
        model: ModelMaker | str | None,
        batch_size: int | None,
        epochs: float,
        lr: float,
        options: Mapping[str, Any] | None,
        ledger: Path | str | None,
        dataset: str,
        random_state: int | np.random.RandomState | None,
        device: str,
        verbose: int,
    ) -> None:
        self.bounds = bounds
        self.categories = categories
        self.unknown = unknown
        self.records = records
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.model = model
        self.batch_size = batch_size
        self.epochs = epochs
        self.lr = lr
        self.options = options
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @property
    def privacy_(self) -> PrivacyReport:
        """The privacy report of the last fit; `.statement()` says it in words."""
        check_is_fitted(self, "run_")
        return self.run_.privacy

    @property
    def epsilon_(self) -> float:
        """The ε to cite: of the whole plan."""
        return self.privacy_.epsilon_pld

    @property
    def delta_(self) -> float:
        """The δ that it holds at."""
        return self.privacy_.delta

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise is secret: no random_state repeats it
        tags.input_tags.categorical = tags.input_tags.string = self.categories is not None
        return tags

    def _taken(self, X: Any, y: Any, *, numeric_target: bool) -> tuple[Any, Any]:
        """The cells of X and the entries of y, as scikit-learn checks them."""
        return validate_data(self, X, y, y_numeric=numeric_target, **self._reading())  # type: ignore[no-any-return]

    def _reading(self) -> dict[str, Any]:
        """How cells are read: as numbers, or as they are where some are categories."""
        if self.categories is None:
            return {"dtype": np.float64}
        return {"dtype": object, "ensure_all_finite": False}

    def _declared(self) -> tuple[Column, ...]:
        """The public description of the columns."""
        if self.unknown not in ("refuse", "other"):
            raise InputError(f"unknown={self.unknown!r}; allowed: 'refuse', 'other'")
        names = getattr(self, "feature_names_in_", [f"x{place}" for place in range(self.n_features_in_)])
        return declared_columns(
            [str(name) for name in names],
            bounds=self.bounds,
            categories=self.categories,
            other=self.unknown == "other",
        )

    def _learn(self, cells: Any, targets: Tensor, *, outputs: int, loss: Loss, public: tuple[str, ...]) -> Self:
        """Trains a fresh model on the records, and keeps the run."""
        columns = self._declared()
        count = public_count(self.records)
        inputs = torch.from_numpy(encoded(cells, columns))
        table = TableFacts(label="", columns=columns)
        told = (f"{count:,} records", *public, *table.public())
        data = DataSet(
            name=self.dataset,
            train=TensorRecords(inputs, targets, name=self.dataset),
            records=count,
            shape=table.shape,
            public=tuple(f"{fact} (declared)" for fact in told),
        )
        random = None if self.random_state is None else check_random_state(self.random_state)
        seed = None if random is None else int(random.randint(2**31 - 1))
        run = train(
            made_model(self.model, inputs.shape[1], outputs, seed),
            data,
            method=self.method,
            privacy=Budget(epsilon=self.epsilon, delta=chosen_delta(self.delta, count)),
            loss=loss,
            seed=seed,
            observers=[Lines()] if self.verbose else [],
            ledger=self.ledger,
            **self._training(count),
        )
        run.model.to("cpu")  # so that it can be unpickled, and asked, anywhere
        self.run_, self.columns_ = stating(run, *NOT_COVERED), columns
        return self

    def _training(self, records: int) -> dict[str, Any]:
        """The options of `train`."""
        further = {} if self.options is None else dict(self.options)
        for name in _OWN:
            if name in further:
                raise InputError(f"options: {name}={further[name]!r} is an argument of its own; give epochs, not steps")
        if not isinstance(self.method, str | Method):
            raise InputError(f"method={self.method!r}; allowed: a method's name, or such as AdaDPIGU(retention=0.6)")
        size = expected_batch(records) if self.batch_size is None else self.batch_size
        return {"batch_size": size, "epochs": self.epochs, "lr": self.lr, "device": self.device, **further}

    def _outputs(self, X: Any) -> Tensor:
        """What the model makes of new records."""
        check_is_fitted(self, "run_")
        cells = validate_data(self, X, reset=False, **self._reading())
        inputs = torch.from_numpy(encoded(cells, self.columns_))
        return predict(self.run_.model, inputs, device=torch.device("cpu"))


def public_count(records: object) -> int:
    """N, which has to be declared."""
    if records is None:
        raise InputError(
            "records=None: give the public record count N, e.g. records=5000 (it sets the sampling rate; the length of "
            "X is private, so it is never read for that)"
        )
    try:
        count = 0 if isinstance(records, bool) else operator.index(records)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1:
        raise InputError(f"records={records!r} is not a whole number of at least 1")
    return count


def chosen_delta(delta: float | None, records: int) -> float:
    """δ as given; else 1e-5, or a tenth of 1/N where that is less.

    >>> chosen_delta(None, 500), chosen_delta(None, 100_000), chosen_delta(1e-4, 500)
    (1e-05, 1e-06, 0.0001)
    """
    return min(1e-5, 1 / (10 * records)) if delta is None else delta


def expected_batch(records: int) -> int:
    """B where none is given: a quarter of N, since noise averages out in large batches, up to 4096.

    >>> expected_batch(20), expected_batch(100), expected_batch(1000), expected_batch(100_000)
    (20, 32, 250, 4096)
    """
    return min(records, max(32, min(4096, records // 4)))


def made_model(model: ModelMaker | str | None, features: int, outputs: int, seed: int | None) -> nn.Module:
    """A fresh model: by name, or from the user's function; a seed fixes its public start."""
    if model is None or isinstance(model, str):
        return make_model(model or "mlp", shape=(features,), classes=outputs, seed=seed)
    if isinstance(model, nn.Module) or not callable(model):
        raise InputError(
            f"model={type(model).__name__}; allowed: a name, or a function of (features, outputs) that makes a fresh "
            "module, since every fit starts anew"
        )
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        made = model(features, outputs)
    if not isinstance(made, nn.Module):
        raise InputError(f"model gives a {type(made).__name__}; allowed: a function that returns an nn.Module")
    return made


def stating(run: Run, *uncovered: str) -> Run:
    """The run, its statement naming more that is not covered."""
    lines = tuple(dict.fromkeys((*run.privacy.not_covered, *uncovered)))
    return replace(run, privacy=replace(run.privacy, not_covered=lines))


class Lines:
    """Prints the public progress of a fit, ten lines of it."""

    def begin(self, facts: Facts) -> None:
        print(f"{facts.method}: {facts.parameters} parameters, {facts.steps} steps, sigma {facts.noise_multiplier:.4g}")

    def update(self, metrics: Metrics) -> None:
        if metrics.step % max(1, metrics.steps // 10) == 0:
            spent = "" if metrics.epsilon is None else f", epsilon so far {metrics.epsilon:.4g}"
            print(f"step {metrics.step} of {metrics.steps}{spent}")

    def end(self, run: Run) -> None:
        print(f"epsilon {run.epsilon:.4g} at delta {run.privacy.delta:g}")
