"""What classifier and regressor share: public facts are arguments, records are encoded one by one, `train` learns.

Everything that is learned goes through `adadpigu.train`, so it is charged there; the fitted attributes are the model,
which is a release, and public facts. No loss, gradient or training accuracy is ever shown.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.console import Progress
from adadpigu.core.gradients import Loss
from adadpigu.core.gradients.state import untouched
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.description import Column, TableFacts
from adadpigu.errors import InputError, first_line, require
from adadpigu.integrations.shared import check_options
from adadpigu.integrations.sklearn.columns import Bounds, Categories, declared_columns, encoded
from adadpigu.methods import Method
from adadpigu.models import make_model
from adadpigu.training import Run, train
from adadpigu.training.evaluation import predict

ModelMaker = Callable[[int, int], nn.Module]  # from the numbers of inputs and outputs to a fresh model

NOT_COVERED = (
    "whatever was fitted on these records before fit: a scaler, an encoder, an imputer, PCA or feature selection has "
    "seen them without noise",
    "scores on records (score, cross_val_score, GridSearchCV): they are exact, and so is what is chosen by them",
    "how the records given to fit were picked: a bootstrap repeats records, and one record more moves others between "
    "folds that are cut by position or label (RecordFolds cuts record by record)",
)
"""that no estimator can see, so every statement names it"""

_STANDARDISED = (
    "X has columns of mean 0 and deviation 1, to five places: a scaler that was fitted on these records has seen them "
    "without noise, which no epsilon covers; leave it out: bounds= scales by public numbers"
)

_ELSEWHERE = {
    **dict.fromkeys(("batch_size", "epochs", "lr", "device"), "the estimator's argument of this name"),
    "steps": "the estimator's argument epochs",
}
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
    loss: Loss | None = None
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
        "loss": [callable, None],
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
        tags.input_tags.categorical, tags.input_tags.string = self.categories is not None, True
        return tags

    def _check_arguments(self) -> None:
        for name, advice in _DECLARE.items():
            require(getattr(self, name, 0) is not None, f"{name}=None: {advice}")
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None

    def _read(self, X: Any, *y: Any, **how: Any) -> Any:
        """The cells of X, and the entries of y, as scikit-learn checks them; `encoded` refuses what does not fit."""
        kind = None if self.categories is None else object  # categories stay as they are
        return validate_data(self, X, *y, dtype=kind, ensure_all_finite=False, **how)

    def _learn(self, cells: Any, targets: Tensor, *, outputs: int, loss: Loss, public: tuple[str, ...]) -> Self:
        """Trains a fresh model on the records, and keeps the run."""
        names = getattr(self, "feature_names_in_", [f"x{place}" for place in range(self.n_features_in_)])
        other, count = self.unknown == "other", int(self.records or 0)
        columns = declared_columns([*map(str, names)], bounds=self.bounds, categories=self.categories, other=other)
        options = self._training(count)
        inputs = torch.from_numpy(encoded(cells, columns))
        if is_standardised(cells):
            warnings.warn(_STANDARDISED, stacklevel=3)
        table = TableFacts(label="", columns=columns)
        facts = (f"{count:,} records", *public, *table.public())
        data = DataSet(
            name=self.dataset,
            train=TensorRecords(inputs, targets, name=self.dataset),
            records=count,
            shape=table.shape,
            public=tuple(f"{fact} (declared)" for fact in facts),
        )
        fixed = self.random_state is not None
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) if fixed else None
        run = train(
            made_model(self.model, inputs.shape[1], outputs, seed),
            data,
            method=self.method,
            privacy=Budget(epsilon=float(self.epsilon), delta=chosen_delta(self.delta, count)),
            loss=loss,
            seed=seed,
            observers=[Progress(Console())] if self.verbose else [],
            ledger=self.ledger,
            quiet=not self.verbose,
            **options,
        )
        run.model.to("cpu")  # so that it can be unpickled, and asked, anywhere
        self.run_, self.columns_ = with_caveats(run, *NOT_COVERED), columns
        return self

    def _training(self, records: int) -> dict[str, Any]:
        """The options of `train`."""
        size = expected_batch(records) if self.batch_size is None else int(self.batch_size)
        check_options("fit", self.options or {}, _ELSEWHERE, method=self.method)
        own = {"batch_size": size, "epochs": float(self.epochs), "lr": float(self.lr), "device": self.device}
        return {**own, **(self.options or {})}

    def _outputs(self, X: Any) -> Tensor:
        """What the model makes of new records."""
        check_is_fitted(self, "run_")
        inputs = torch.from_numpy(encoded(self._read(X, reset=False), self.columns_))
        return predict(self.run_.model, inputs, device=torch.device("cpu"))


def is_standardised(cells: NDArray[Any]) -> bool:
    """Whether a column looks as a `StandardScaler` leaves the records that it was fitted on, and not balanced ±1."""
    if cells.dtype.kind != "f":
        return False
    each = np.isclose(cells.mean(0), 0, atol=1e-5) & np.isclose(cells.std(0), 1, atol=1e-5) & (abs(cells) != 1).any(0)
    return bool(each.any())


def chosen_delta(delta: float | None, records: int) -> float:
    """δ as given; else 1e-5, or a tenth of 1/N where that is less.

    >>> chosen_delta(None, 500), chosen_delta(None, 100_000), chosen_delta(1e-4, 500)
    (1e-05, 1e-06, 0.0001)
    """
    return min(1e-5, 1 / (10 * records)) if delta is None else float(delta)


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
    maker = "a function of (features, outputs) that makes a fresh module, since every fit starts anew"
    require(not isinstance(model, nn.Module), f"model={type(model).__name__}; allowed: a name, or {maker}")
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        made = model(features, outputs)
    module = isinstance(made, nn.Module)
    require(module, f"model gives a {type(made).__name__}; allowed: a function that returns an nn.Module")
    try:
        with untouched(made), torch.no_grad():
            shape = tuple(made.eval()(torch.zeros(2, features)).shape)
    except Exception as error:
        raise InputError(f"model does not take records of {features} numbers: {first_line(error)}") from error
    require(shape == (2, outputs), f"model makes outputs of shape {shape} of 2 records; allowed: (2, {outputs})")
    return made


def with_caveats(run: Run, *uncovered: str) -> Run:
    """The run, its statement naming more that is not covered."""
    lines = tuple(dict.fromkeys((*run.privacy.not_covered, *uncovered)))
    return replace(run, privacy=replace(run.privacy, not_covered=lines))
