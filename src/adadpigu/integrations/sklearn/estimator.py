"""What classifier and regressor share: public facts are arguments, records are encoded one by one, `train` learns.

Everything that is learned goes through `adadpigu.train`, so it is charged there; the fitted attributes are the model,
which is a release, and public facts. No loss, gradient or training accuracy is ever shown.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.core.gradients import Loss
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.description import Column, TableFacts
from adadpigu.errors import InputError, first_line, require, unknown
from adadpigu.integrations.sklearn.columns import Bounds, Categories, declared_columns, encoded, refuse_text
from adadpigu.methods import Method
from adadpigu.models import make_model
from adadpigu.runs.run import Facts, Metrics
from adadpigu.training import Run, train
from adadpigu.training.evaluation import predict
from adadpigu.training.options import TrainingOptions

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
"""options of `train` that are arguments of the estimator"""

_DECLARE = {
    "classes": "give all labels there can be, e.g. classes=[0, 1]; taken from y they would tell which occur among "
    "private records",
    "target_bounds": "give the public bounds of y, e.g. target_bounds=(0, 100); taken from y they would tell the "
    "largest and smallest private value",
    "records": "give the public record count N, e.g. records=5000 (it sets the sampling rate; the length of X is "
    "private, so it is never read for that)",
}
"""public facts that have no default, and what to say where one is not given"""


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator whose fit is differentially private. Use `AdaDPIGUClassifier` or `AdaDPIGURegressor`.

    scikit-learn keeps whatever a constructor is given; arguments are checked when `fit` begins.
    """

    bounds: Bounds | None = None
    categories: Categories | None = None
    unknown: str = "refuse"
    records: int | None = None
    epsilon: float = 4.0
    delta: float | None = None
    method: Method | str = "adadpigu"
    model: ModelMaker | str | None = None
    batch_size: int | None = None
    epochs: float = 20
    lr: float = 0.5
    options: Mapping[str, Any] | None = None
    ledger: Path | str | None = None
    dataset: str = "own data"
    random_state: int | np.random.RandomState | None = None
    device: str = "cpu"
    verbose: int = 0

    run_: Run = field(init=False)
    columns_: tuple[Column, ...] = field(init=False)

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "categories": [Mapping, None],
        "unknown": [StrOptions({"refuse", "other"})],
        "records": [Interval(Integral, 1, None, closed="left")],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither"), None],
        "method": [str, Method],
        "model": [str, callable, None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "epochs": [Interval(Real, 0, None, closed="neither")],
        "lr": [Interval(Real, 0, None, closed="left")],
        "options": [Mapping, None],
        "ledger": [str, os.PathLike, None],
        "dataset": [str],
        "random_state": ["random_state"],
        "device": [str],
    }

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

    def _check_arguments(self) -> None:
        for name, advice in _DECLARE.items():
            require(getattr(self, name, 0) is not None, f"{name}=None: {advice}")
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None

    def _read(self, X: Any, y: Any, *, numeric_target: bool) -> tuple[Any, Any]:
        """The cells of X and the entries of y, as scikit-learn checks them."""
        self._check_arguments()
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
        names = getattr(self, "feature_names_in_", [f"x{place}" for place in range(self.n_features_in_)])
        other = self.unknown == "other"
        return declared_columns([*map(str, names)], bounds=self.bounds, categories=self.categories, other=other)

    def _learn(self, cells: Any, targets: Tensor, *, outputs: int, loss: Loss, public: tuple[str, ...]) -> Self:
        """Trains a fresh model on the records, and keeps the run."""
        columns, count = self._declared(), int(self.records or 0)
        options = self._training(count)
        inputs = torch.from_numpy(encoded(cells, columns))
        table = TableFacts(label="", columns=columns)
        facts = (f"{count:,} records", *public, *table.public())
        data = DataSet(
            name=self.dataset,
            train=TensorRecords(inputs, targets, name=self.dataset),
            records=count,
            shape=table.shape,
            public=tuple(f"{fact} (declared)" for fact in facts),
        )
        random = None if self.random_state is None else check_random_state(self.random_state)
        seed = None if random is None else int(random.randint(2**31 - 1))
        delta = None if self.delta is None else float(self.delta)
        run = train(
            made_model(self.model, inputs.shape[1], outputs, seed),
            data,
            method=self.method,
            privacy=Budget(epsilon=float(self.epsilon), delta=chosen_delta(delta, count)),
            loss=loss,
            seed=seed,
            observers=[Lines()] if self.verbose else [],
            ledger=None if self.ledger is None else Path(self.ledger),
            **options,
        )
        run.model.to("cpu")  # so that it can be unpickled, and asked, anywhere
        self.run_, self.columns_ = stating(run, *NOT_COVERED), columns
        return self

    def _training(self, records: int) -> dict[str, Any]:
        """The options of `train`."""
        size = expected_batch(records) if self.batch_size is None else int(self.batch_size)
        require(size <= records, f"batch_size={size} is more than records={records}; allowed: up to that")
        known = [option.name for option in fields(TrainingOptions) if option.name not in _OWN]
        for name, value in (self.options or {}).items():
            require(name not in _OWN, f"options: {name}={value!r} is an argument of its own; give epochs, not steps")
            if name not in known:
                raise unknown("option of train", str(name), known)
        own = {"batch_size": size, "epochs": float(self.epochs), "lr": float(self.lr), "device": self.device}
        return {**own, **(self.options or {})}

    def _outputs(self, X: Any) -> Tensor:
        """What the model makes of new records."""
        check_is_fitted(self, "run_")
        with self._naming(X):
            cells = validate_data(self, X, reset=False, **self._reading())
        inputs = torch.from_numpy(encoded(cells, self.columns_))
        return predict(self.run_.model, inputs, device=torch.device("cpu"))


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
    require(
        not isinstance(model, nn.Module),
        f"model={type(model).__name__}; allowed: a name, or a function of (features, outputs) that makes a fresh "
        "module, since every fit starts anew",
    )
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        made = model(features, outputs)
    require(
        isinstance(made, nn.Module),
        f"model gives a {type(made).__name__}; allowed: a function that returns an nn.Module",
    )
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
    require(shape == (2, outputs), f"model makes outputs of shape {shape} of 2 records; allowed: (2, {outputs})")


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
