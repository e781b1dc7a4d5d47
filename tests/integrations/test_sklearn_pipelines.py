"""Pipelines and cross-validation: what no budget covers is named, what is fitted is charged."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

import adadpigu as ad
from adadpigu.accounting.shared import create_shared, read_shared
from adadpigu.integrations.sklearn import AdaDPIGUClassifier, PrivatePipeline, RecordFolds, make_private_pipeline

ROOT = Path(__file__).parents[2]


def blobs(count: int = 200) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    chance = np.random.default_rng(0)
    y = chance.integers(0, 2, count)
    return chance.normal(size=(count, 3)) + 2.0 * (y[:, None] - 0.5), y


def short(**more: Any) -> AdaDPIGUClassifier:
    facts = {"classes": [0, 1], "bounds": (-3, 3), "records": 200, "epochs": 2, "model": "linear"}
    return AdaDPIGUClassifier(**{**facts, **more})


class LearningNormalizer(Normalizer):  # type: ignore[misc]
    """A subclass of a transformer that learns nothing may learn."""


def centred(X: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = X - X.mean(axis=0)
    return shifted


def told_of_steps(fitted: AdaDPIGUClassifier) -> list[str]:
    return [line for line in fitted.privacy_.not_covered if line.startswith("the pipeline's step")]


def test_fitted_steps_are_named_and_stateless_ones_are_not() -> None:
    X, y = blobs()
    steps = [
        ("log", FunctionTransformer(np.arctan)),
        ("unit", Normalizer()),
        ("nothing", "passthrough"),
        ("scale", StandardScaler()),
        ("centre", FunctionTransformer(centred)),
        ("public", FrozenEstimator(StandardScaler().fit(X))),
        ("odd", LearningNormalizer()),
        ("parts", ColumnTransformer([("pca", PCA(2), [0, 1, 2])])),
    ]
    pipeline = PrivatePipeline([*steps, ("classify", short())]).fit(X, y)
    assert told_of_steps(pipeline[-1]) == [
        "the pipeline's step 'scale' (StandardScaler): fitted on these records without noise",
        "the pipeline's step 'centre' (FunctionTransformer): covered only if its function treats each record by itself",
        "the pipeline's step 'public' (FrozenEstimator): not covered if it was fitted on these records",
        "the pipeline's step 'odd' (LearningNormalizer): fitted on these records without noise",
        "the pipeline's step 'parts' (ColumnTransformer): fitted on these records without noise",
    ]
    assert "step 'scale' (StandardScaler)" in " ".join(pipeline[-1].privacy_.statement().split())
    assert pipeline.predict(X).shape == y.shape


def test_a_plain_pipeline_warns_of_everything_fitted_before() -> None:
    X, y = blobs()
    pipeline = make_pipeline(StandardScaler(), short()).fit(X, y)
    assert told_of_steps(pipeline[-1]) == []
    assert "a scaler, an encoder, an imputer, PCA" in " ".join(pipeline[-1].privacy_.statement().split())


def test_a_private_pipeline_ends_in_a_private_estimator() -> None:
    with pytest.raises(ad.InputError, match="the last step is a LogisticRegression; allowed"):
        make_private_pipeline(StandardScaler(), LogisticRegression()).fit(*blobs())
    with pytest.raises(ad.InputError, match="the last step is a NoneType; allowed"):
        make_private_pipeline().fit(*blobs())


@pytest.mark.slow
def test_every_fit_of_a_search_is_charged_and_named(tmp_path: Path) -> None:
    X, y = blobs()
    path = tmp_path / "shared.log"
    create_shared(path, ad.Budget(epsilon=20.0), dataset="own data", records=200)
    pipeline = make_private_pipeline(StandardScaler(), short(ledger=path, epsilon=1.0))
    search = GridSearchCV(pipeline, {"adadpiguclassifier__lr": [0.1, 0.5]}, cv=RecordFolds(3), error_score="raise")
    best = search.fit(X, y).best_estimator_[-1]
    assert read_shared(path).total().runs == 2 * 3 + 1
    assert best.privacy_.shared is not None
    assert best.privacy_.shared.runs == 7
    assert told_of_steps(best) == [
        "the pipeline's step 'standardscaler' (StandardScaler): fitted on these records without noise"
    ]


@pytest.mark.slow
def test_cross_validation_stops_where_the_shared_budget_ends(tmp_path: Path) -> None:
    X, y = blobs()
    path = tmp_path / "shared.log"
    create_shared(path, ad.Budget(epsilon=6.0), dataset="own data", records=200)
    with pytest.warns(FitFailedWarning, match="epsilon=6 of the shared ledger"):
        scores = cross_val_score(short(ledger=path, epsilon=2.0), X, y, cv=RecordFolds(8))
    paid = int(np.isfinite(scores).sum())
    assert 2 <= paid == read_shared(path).total().runs < 8
    with pytest.raises(ad.BudgetError):
        cross_val_score(short(ledger=path, epsilon=2.0), X, y, cv=RecordFolds(8), error_score="raise")


def test_one_record_more_moves_no_other_between_folds() -> None:
    X, y = blobs()
    folds = RecordFolds(4, seed=3)
    whole = folds.folds(X)
    assert (folds.folds(np.delete(X, 17, axis=0)) == np.delete(whole, 17)).all()
    assert (folds.folds(X[::-1]) == whole[::-1]).all()
    assert (RecordFolds(4, seed=4).folds(X) != whole).any()
    parts = list(folds.split(X, y))
    assert sorted(np.concatenate([test for _, test in parts]).tolist()) == list(range(200))
    for fold, (train, test) in enumerate(parts):
        assert sorted([*train, *test]) == list(range(200))
        assert (whole[test] == fold).all()
        assert len(test) > 20


def test_a_number_falls_into_one_fold_whatever_type_its_column_has() -> None:
    folds = RecordFolds(64)
    whole = np.arange(40)[:, None]
    assert (folds.folds(whole) == folds.folds(whole.astype(np.float64))).all()
    assert (folds.folds(whole.tolist()) == folds.folds(whole)).all()
    names = np.array([["a", 1], ["b", 2.0]], dtype=object)
    assert folds.folds(names).tolist() == folds.folds(names.tolist()).tolist()


@pytest.mark.parametrize(
    "arguments", [{"n_splits": 1}, {"seed": -1}, {"n_splits": 2.5}, {"n_splits": "5"}, {"seed": 2**32}]
)
def test_folds_refuse_what_they_cannot_be(arguments: dict[str, Any]) -> None:
    ((name, value),) = arguments.items()
    with pytest.raises(ad.InputError, match=f"{name}={value!r} is not"):
        RecordFolds(**arguments)


def test_folds_of_numpy_are_those_of_python() -> None:
    X, _ = blobs()
    asked: dict[str, Any] = {"n_splits": np.int64(3), "seed": np.uint8(1)}
    assert (RecordFolds(**asked).folds(X) == RecordFolds(3, seed=1).folds(X)).all()


@pytest.mark.slow
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("sklearn_classifier", ROOT / "examples" / "sklearn_classifier.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(epochs=2)
    out = capsys.readouterr().out
    assert "accuracy" in out
    assert re.search(r"^epsilon (3\.99|4\.00)\d* at delta 1e-05$", out, re.MULTILINE)
    assert re.search(r"^PRIVATE: epsilon", out, re.MULTILINE)
