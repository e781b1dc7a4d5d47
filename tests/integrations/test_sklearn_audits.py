"""Audits through `fit` of the scikit-learn estimators, and DataFrames of pandas."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from adadpigu.audit.replay import Recording
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.integrations.sklearn import AdaDPIGUClassifier, estimator
from adadpigu.integrations.sklearn.columns import encoded
from adadpigu.runs.run import Run
from adadpigu.training.preparation import Preparation
from adadpigu.training.train import prepared_for

N = 40


class _Ready(Exception):
    def __init__(self, prepared: Preparation) -> None:
        self.prepared = prepared


def fitted(inputs: Any, targets: Any, **more: Any) -> Any:
    asked = {"classes": [0, 1], "bounds": (-3, 3), "records": N, "model": "linear", "epochs": 2, "method": "dpsgd"}
    return AdaDPIGUClassifier(**{**asked, **more}).fit(inputs, targets)


def prepared_by_fit(data: DataSet) -> Preparation:
    """What `fit` makes ready of a table."""

    def stop(model: Any, dataset: Any, **asked: Any) -> Run:
        asked.pop("observers"), asked.pop("ledger"), asked.pop("quiet")
        raise _Ready(prepared_for(model, dataset, **asked))

    inputs, targets = data.train.take(torch.arange(len(data.train)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "train", stop)
        try:
            fitted(inputs.numpy(), targets.numpy(), random_state=0)
        except _Ready as ready:
            return ready.prepared
    raise AssertionError


def table(last: list[float]) -> DataSet:
    chance = np.random.default_rng(0)
    inputs = torch.tensor(np.vstack([chance.normal(size=(N - 1, 3)), last]))
    targets = torch.tensor(chance.integers(0, 2, N))
    return DataSet(name="table", train=TensorRecords(inputs, targets), records=N)


@pytest.mark.parametrize("last", [[0.1, 0.2, 0.3], [1e300, -1e300, 0.0], [3.0, 3.0, 3.0]])
def test_no_row_of_a_table_moves_a_release_farther_than_declared(last: list[float]) -> None:
    result = Recording(prepared_by_fit, table(last)).without_last()
    assert not result.breaches
    assert 0 < result.largest <= 1 + 1e-6


def test_a_row_that_is_scaled_by_the_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: columns are scaled by what is in them, not by the declared bounds."""
    honest = encoded

    def planted(cells: Any, columns: Any) -> Any:
        return (honest(cells, columns) / np.abs(cells).max()).astype(np.float32)

    monkeypatch.setattr(estimator, "encoded", planted)
    result = Recording(prepared_by_fit, table([100.0, 0.0, 0.0])).without_last()
    assert result.breaches


@pytest.mark.slow
def test_the_audit_command_has_the_encoding_on_its_path(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    """Planted: rows are turned by how many there are, so that one more moves them all."""
    asked = ("audit", "replay", "--method", "dpsgd", "--through", "sklearn", "--json", "--out", "audits")
    code, out, _ = call(*asked)
    assert (code, json.loads(out)["passed"]) == (0, True)
    honest = encoded
    monkeypatch.setattr(estimator, "encoded", lambda cells, columns: np.roll(honest(cells, columns), len(cells) % 7, 0))
    code, out, _ = call(*asked)
    assert (code, json.loads(out)["passed"]) == (1, False)


def test_a_data_frame_is_read_by_its_columns() -> None:
    chance = np.random.default_rng(1)
    frame = pd.DataFrame({"age": chance.integers(17, 91, N), "job": chance.choice(["clerk", "nurse"], N)})
    target = pd.Series(np.where(frame["age"] > 50, "old", "young"))
    model = fitted(
        frame,
        target,
        classes=["old", "young"],
        bounds={"age": (17, 90)},
        categories={"job": ["clerk", "nurse"]},
        epochs=1,
    )
    assert list(model.feature_names_in_) == ["age", "job"]
    assert set(model.predict(frame)) <= {"old", "young"}
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))
