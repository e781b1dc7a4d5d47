"""What classifier and regressor share: public facts are arguments, records are encoded one by one, `train` learns.

Everything that is learned goes through `adadpigu.train`, so it is charged there; the fitted attributes are the model,
which is a release, and public facts. No loss, gradient or training accuracy is ever shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
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
from adadpigu.compat.sklearn.arguments import file, further_options, number, text, whole_number
from adadpigu.compat.sklearn.columns import Bounds, Categories, declared_columns, encoded, refuse_text
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.description import Column, TableFacts
from adadpigu.errors import InputError, first_line
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
        with self._naming(X):
            return validate_data(self, X, y, y_numeric=numeric_target, **self._reading())  # type: ignore[no-any-return]

    def _reading(self) -> dict[str, Any]:
        """How cells are read: as numbers, or as they are where some are categories. `encoded` refuses empty ones."""
        return {"dtype": np.float64 if self.categories is None else object, "ensure_all_finite": False}

    @contextlib.contextmanager
    def _naming(self, X: Any) -> Iterator[None]:
        """Text among numbers is refused with its column, which the error of a conversion does not name."""
        try:
            yield
        except ValueError as error:
            if "could not convert string" not in str(error):
                raise
            if self.categories is None:
                refuse_text(X, getattr(self, "feature_names_in_", None))
            raise InputError(f"y: {first_line(error)}; allowed: numbers") from None

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
        count, name = public_count(self.records), text("dataset", self.dataset)
        budget, options = self._budget(count), self._training(count)
        inputs = torch.from_numpy(encoded(cells, columns))
        table = TableFacts(label="", columns=columns)
        told = (f"{count:,} records", *public, *table.public())
        data = DataSet(
            name=name,
            train=TensorRecords(inputs, targets, name=name),
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
            privacy=budget,
            loss=loss,
            seed=seed,
            observers=[Lines()] if self.verbose else [],
            ledger=file("ledger", self.ledger),
            **options,
        )
        run.model.to("cpu")  # so that it can be unpickled, and asked, anywhere
        self.run_, self.columns_ = stating(run, *NOT_COVERED), columns
        return self

    def _budget(self, records: int) -> Budget:
        """The budget of one fit."""
        delta = None if self.delta is None else number("delta", self.delta, such_as=1e-5)
        return Budget(epsilon=number("epsilon", self.epsilon, such_as=4.0), delta=chosen_delta(delta, records))

    def _training(self, records: int) -> dict[str, Any]:
        """The options of `train`."""
        if not isinstance(self.method, str | Method):
            raise InputError(f"method={self.method!r}; allowed: a method's name, or such as AdaDPIGU(retention=0.6)")
        size = self.batch_size
        size = expected_batch(records) if size is None else whole_number("batch_size", size, least=1)
        if size > records:
            raise InputError(f"batch_size={size} is more than records={records}; allowed: up to that")
        own = {
            "batch_size": size,
            "epochs": number("epochs", self.epochs, such_as=20.0),
            "lr": number("lr", self.lr, such_as=0.5),
        }
        return {**own, "device": text("device", self.device), **further_options(self.options, _OWN)}

    def _outputs(self, X: Any) -> Tensor:
        """What the model makes of new records."""
        check_is_fitted(self, "run_")
        with self._naming(X):
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
    return whole_number("records", records, least=1)


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
        return make_model("mlp" if model is None else model, shape=(features,), classes=outputs, seed=seed)
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
    check_outputs(made, features, outputs)
    return made


@torch.no_grad()
def check_outputs(model: nn.Module, features: int, outputs: int) -> None:
    """Refuses a module that does not fit the records, before one of them is drawn: it is shown zeros."""
    was_training = model.training
    try:
        shape = tuple(model.eval()(torch.zeros(2, features)).shape)
    except Exception as error:
        raise InputError(f"model does not take records of {features} numbers: {first_line(error)}") from error
    finally:
        model.train(was_training)
    if shape != (2, outputs):
        raise InputError(f"model makes outputs of shape {shape} of 2 records; allowed: (2, {outputs})")


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
