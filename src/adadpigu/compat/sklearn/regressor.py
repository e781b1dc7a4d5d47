"""The private regressor: mean squared error on a target that is scaled from its declared bounds to [−1, 1]."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch.nn import functional as F

from adadpigu.compat.sklearn.columns import Bounds, Categories, Pair, numeric_column, scaled, unscaled
from adadpigu.compat.sklearn.estimator import ModelMaker, PrivateEstimator
from adadpigu.data.description import NumericColumn
from adadpigu.errors import InputError
from adadpigu.methods import Method


class AdaDPIGURegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Predicts a number after training under (ε, δ)-differential privacy.

    `target_bounds` is the public pair (low, high) of y: values beyond it are clamped, in training and in predictions.
    The other arguments and the guarantee are those of `AdaDPIGUClassifier`.
    """

    target_: NumericColumn

    def __init__(
        self,
        *,
        target_bounds: Pair | None = None,
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
        lr: float = 0.1,
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
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a fresh model on private records; charged in full, whatever was fitted before."""
        cells, values = self._taken(X, y, numeric_target=True)
        if self.target_bounds is None:
            raise InputError(
                "target_bounds=None: give the public bounds of y, e.g. target_bounds=(0, 100); taken from y they would "
                "tell the largest and smallest private value"
            )
        target = numeric_column("y", self.target_bounds, argument="target_bounds")
        known = f"range of the target [{target.low:g}, {target.high:g}], scaled to [-1, 1]"
        with self._naming(X):
            goal = torch.from_numpy(scaled(np.asarray(values, np.float64), target).astype(np.float32))
        self._learn(cells, goal[:, None], outputs=1, loss=F.mse_loss, public=(known,))
        self.target_ = target
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The predicted numbers, within the target's bounds."""
        return unscaled(self._outputs(X).double().numpy()[:, 0], self.target_)
