"""The scikit-learn estimators: what they declare, what they refuse, what they learn, what they charge."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.multiclass import OneVsRestClassifier
from torch import nn

import adadpigu as ad
from adadpigu.accounting.shared import create_shared, read_shared
from adadpigu.data.description import NumericColumn
from adadpigu.data.tabular import scale, unscale
from adadpigu.integrations.sklearn import AdaDPIGUClassifier, AdaDPIGURegressor, estimator
from adadpigu.integrations.sklearn.columns import declared_columns, encoded
from adadpigu.training.earlier import earlier_runs

Matrix = NDArray[np.float64]
SHORT: dict[str, Any] = {"records": 200, "epochs": 2, "bounds": (-3, 3), "model": "linear"}


def blobs(seed: int = 0, count: int = 200) -> tuple[Matrix, NDArray[Any]]:
    chance = np.random.default_rng(seed)
    y = chance.integers(0, 2, count)
    return chance.normal(size=(count, 3)) + 2.0 * (y[:, None] - 0.5), np.array(["no", "yes"])[y]


def short(**more: Any) -> AdaDPIGUClassifier:
    return AdaDPIGUClassifier(**{**SHORT, "classes": ["no", "yes"], **more})


JOBS = ("clerk", "nurse", "farmer", "lawyer")
CATEGORIES: dict[str, list[object]] = {"job": list(JOBS), "sex": ["F", "M"], "school": [1, 2, 3, 4]}


def adult_like(count: int, seed: int = 0) -> tuple[pa.Table, NDArray[Any]]:
    """People with numbers and names, whose income follows from all of them and some chance."""
    chance = np.random.default_rng(seed)
    age, hours = chance.integers(17, 91, count), chance.integers(1, 99, count)
    job, sex, school = (chance.integers(0, size, count) for size in (4, 2, 4))
    odds = 0.06 * (age - 45) + 0.05 * (hours - 45) + np.array([-1.0, 0.0, -0.5, 1.5])[job] + 0.5 * sex + school - 1.75
    rich = odds + 0.5 * chance.logistic(size=count) > 0
    columns = {
        "age": age,
        "job": np.array(JOBS)[job],
        "hours": hours.astype(float),
        "sex": np.array(["F", "M"])[sex],
        "school": school + 1,
    }
    return pa.table(columns), np.where(rich, ">50K", "<=50K")


@pytest.mark.slow
def test_an_adult_like_table_is_learned_at_epsilon_four() -> None:
    """Always the same answer is right on 62 % of such people. 60 runs gave 0.899 ± 0.003, so that 0.8 is far more than
    5 deviations away: fewer than 1 false alarm in 10⁶.
    """
    X, y = adult_like(3000)
    classifier = AdaDPIGUClassifier(
        classes=["<=50K", ">50K"], bounds={"age": (17, 90), "hours": (0, 99)}, categories=CATEGORIES, records=3000
    ).fit(X, y)
    assert 3.98 < classifier.epsilon_ <= 4
    assert classifier.delta_ == 1e-5
    assert classifier.feature_names_in_.tolist() == ["age", "job", "hours", "sex", "school"]
    assert classifier.score(*adult_like(2000, seed=1)) > 0.8


def test_a_number_is_predicted_at_epsilon_four() -> None:
    """R² is 0.90 for who knows the truth. 60 runs gave 0.825 ± 0.003, so that 0.7 is far more than 5 deviations away:
    fewer than 1 false alarm in 10⁶.
    """
    chance = np.random.default_rng(0)
    X = chance.uniform(-1, 1, (4000, 4))
    y = 50 + 20 * X[:, 0] - 10 * X[:, 1] + 10 * np.sin(3 * X[:, 2]) + chance.normal(size=4000) * 5
    regressor = AdaDPIGURegressor(target_bounds=(0, 100), bounds=(-1, 1), records=3000).fit(X[:3000], y[:3000])
    assert 3.98 < regressor.epsilon_ <= 4
    assert regressor.score(X[3000:], y[3000:]) > 0.7
    wild = regressor.predict(1e6 * X)
    assert 0 <= wild.min() <= wild.max() <= 100


@pytest.mark.slow
def test_probabilities_and_classes_keep_their_order_whatever_the_order_of_declaration() -> None:
    """100 runs gave an area of 0.98 ± 0.01; with columns exchanged it is 0.02. 0.5 is 40 deviations from either."""
    X, y = blobs()
    classifier = short(classes=["yes", "no"], epsilon=8.0, epochs=10).fit(X, y)
    assert classifier.classes_.tolist() == ["no", "yes"]
    shares = classifier.predict_proba(X)
    assert np.allclose(shares.sum(axis=1), 1)
    assert (classifier.classes_[shares.argmax(axis=1)] == classifier.predict(X)).all()
    assert roc_auc_score(y == "yes", shares[:, 1]) > 0.5


def test_each_record_is_encoded_by_itself_as_the_closed_form_says() -> None:
    columns = declared_columns(["age", "job", "z"], bounds=[(0, 10), (-1, 3)], categories={1: ["a", "b"]}, other=True)
    cells = np.array([[2.5, "b", 3], [-7, "zzz", 1], [99, None, -1.0]], dtype=object)
    expected = [[-0.5, 0, 1, 0, 1], [-1, 0, 0, 1, 0], [1, 0, 0, 1, -1]]
    assert encoded(cells, columns).tolist() == expected
    assert encoded(cells[1:2], columns).tolist() == expected[1:2]


@pytest.mark.parametrize("bounds", [[(0, 1)], (0, 1), {"a": (0, 1)}, {0: [0, 1]}, np.array([[0, 1]])])
def test_bounds_of_one_column_may_be_given_in_any_form(bounds: Any) -> None:
    (column,) = declared_columns(["a"], bounds=bounds, categories=None, other=False)
    assert isinstance(column, NumericColumn)
    assert (column.low, column.high) == (0, 1)


def test_scaling_a_target_and_back_is_the_identity_within_its_bounds() -> None:
    values = np.linspace(-3, 17, 41)
    assert np.allclose(unscale(scale(values, -3, 17), -3, 17), values)
    assert unscale(scale(np.array([-9.0, 99.0]), -3, 17), -3, 17).tolist() == [-3, 17]


@pytest.mark.slow
def test_nothing_public_depends_on_the_number_of_records() -> None:
    """The plan, σ and δ of two data sets of different length are the same."""
    X, y = blobs()
    reports = []
    for n in (200, 120):
        earlier_runs.clear()
        reports.append(short().fit(X[:n], y[:n]).privacy_.to_json())
    for key in ("noise_multiplier", "sample_rate", "delta", "events", "records", "stages", "not_covered"):
        assert reports[0][key] == reports[1][key], key
    assert short(delta=None).fit(X, y).delta_ == 1e-5
    assert estimator.chosen_delta(None, 10**6) == 1e-7


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"classes": None}, "classes=None: give all labels there can be"),
        ({"classes": ["no"]}, r"classes=\['no'\]; allowed: a list of at least 2 labels"),
        ({"classes": ["no", "no", "yes"]}, "allowed: a list of at least 2 labels, each once"),
        (
            {"classes": ["no", "maybe"]},
            r"y: record \d+, column 'y': the label 'yes' is not declared; allowed: maybe, no",
        ),
        ({"bounds": None}, r"bounds=None do not fit columns \['x0', 'x1', 'x2'\]; allowed: public bounds"),
        ({"bounds": (3, -3)}, r"bounds of column 'x0': \(3, -3\) is not a pair"),
        ({"bounds": [(0, 1), (0, 1)]}, r"do not fit columns \['x0', 'x1', 'x2'\]; allowed"),
        ({"bounds": [(0, 1)] * 4}, r"do not fit columns \['x0', 'x1', 'x2'\]; allowed"),
        ({"bounds": [(0, 1), (0,), (0, 1)]}, "do not fit columns"),
        ({"bounds": {0: (0, 1)}}, r"do not fit columns \['x1', 'x2'\]; allowed"),
        ({"bounds": {7: (0, 1)}}, "bounds: unknown column '7'.*0 to 2"),
        ({"categories": {"y0": [1]}}, "categories: unknown column 'y0'"),
        ({"categories": {0: []}}, "allowed: a list of at least 1, each once"),
        ({"categories": {0: [1, 1.0]}}, "allowed: a list of at least 1, each once"),
        (
            {"categories": {0: [1, 2]}},
            r"X: record 0, column 'x0': .* is not declared; allowed: 1, 2, or unknown='other'",
        ),
        ({"unknown": "drop"}, "'unknown' parameter.*Got 'drop' instead"),
        ({"records": None}, "records=None: give the public record count N"),
        ({"records": 0.5}, "'records' parameter .* must be an int in the range .*Got 0.5 instead"),
        ({"records": 10, "batch_size": 20, "epochs": 20}, "batch_size=20"),
        ({"epsilon": -1}, "'epsilon' parameter .* must be a float in the range .*Got -1 instead"),
        ({"epsilon": "4"}, "'epsilon' parameter .* Got '4' instead"),
        ({"delta": "1e-5"}, "'delta' parameter .* Got '1e-5' instead"),
        ({"batch_size": 201}, "batch_size=201 is not between 1 and the declared record count 200"),
        ({"categories": {0: pd.Series([], dtype=object)}}, r"categories of column 'x0': \[\]; allowed: a list"),
        ({"categories": {0: [[1]]}}, r"categories of column 'x0': \[\[1\]\]; allowed: a list"),
        ({"classes": ["no", None]}, "numbers alone or text alone"),
        ({"classes": pd.DataFrame({"a": [1, 2]})}, "allowed: a list of at least 2 labels"),
        ({"dataset": None}, "'dataset' parameter .* Got None instead"),
        ({"ledger": 3}, "'ledger' parameter .* Got 3 instead"),
        ({"options": "momentum"}, "'options' parameter .* Got 'momentum' instead"),
        ({"options": {"seed": 1}}, "unknown option of fit 'seed'"),
        ({"model": ""}, "unknown model ''"),
        (
            {"model": lambda features, outputs: nn.Linear(features, 7)},
            r"shape \(2, 7\) of 2 records; allowed",
        ),
        ({"model": lambda features, outputs: nn.Linear(9, outputs)}, "model does not take records of 3 numbers"),
        ({"method": "adadpig"}, "unknown method 'adadpig'; did you mean 'adadpigu'"),
        ({"method": 3}, "'method' parameter .* Got 3 instead"),
        ({"model": nn.Linear(3, 2)}, "model=Linear; allowed: a name, or a function"),
        ({"model": lambda features, outputs: None}, "model gives a NoneType"),
        ({"options": {"lr": 1.0}}, "lr=1.0: not an option of fit; allowed: the estimator's argument"),
        ({"options": {"momentun": 0.9}}, "unknown option of fit 'momentun'"),
        ({"ledger": "/nowhere/ledger"}, "does not exist"),
    ],
)
def test_bad_arguments_are_refused_in_one_line_by_fit(more: dict[str, Any], words: str) -> None:
    X, y = blobs()
    classifier = short(**more)
    with pytest.raises(ad.InputError, match=words) as caught:
        classifier.fit(X, y)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(NotFittedError):
        classifier.predict(X)


def test_numbers_of_numpy_are_numbers() -> None:
    """As a search over `np.linspace` gives them."""
    X, y = blobs()
    asked = {"epsilon": np.float32(4), "delta": np.float64(1e-5), "batch_size": np.int64(50), "epochs": np.int32(2)}
    fitted = short(**asked, lr=np.float16(0.5), records=np.uint16(200)).fit(X, y)
    assert fitted.privacy_.events == short(epsilon=4.0, delta=1e-5, batch_size=50, epochs=2).fit(X, y).privacy_.events


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([["a", 1.0, 2.0]], "X: record 0, column 'x0': 'a' is no number; allowed: a finite number"),
        (
            [[0.0, 1.0, 2.0], [0.0, None, 2.0]],
            "X: record 1, column 'x1': the value is missing or NaN; allowed: a finite number",
        ),
        ([[0.0, 1.0, math.inf]], "X: record 0, column 'x2': inf is no number; allowed: a finite number"),
    ],
)
def test_cells_that_are_no_numbers_are_named_in_fit_and_predict(cells: list[Any], words: str) -> None:
    X, y = blobs()
    fitted = short().fit(X, y)
    for use in (lambda: fitted.predict(cells), lambda: short().fit(cells, y[: len(cells)])):
        with pytest.raises(ad.InputError, match=words) as caught:
            use()
        assert len(str(caught.value).splitlines()) == 1
    frame = pd.DataFrame({"age": ["old", "young"]})
    with pytest.raises(ad.InputError, match="column 'age': 'old' is no number"):
        short().fit(frame, ["no", "yes"])


def test_an_empty_cell_of_pandas_is_the_empty_category() -> None:
    columns = declared_columns(["job"], bounds=None, categories={"job": ["a", ""]}, other=False)
    cells = np.array([[pd.NA], [pd.NaT], [None], [math.nan], ["a"]], dtype=object)
    assert encoded(cells, columns).tolist() == [[0, 1]] * 4 + [[1, 0]]


@pytest.mark.parametrize("words", [np.array(["a", "b"]), np.array(["a", "b"], dtype=object)])
def test_a_target_of_words_is_refused_by_the_regressor(words: NDArray[Any]) -> None:
    for more in ({"bounds": (0, 1)}, {"categories": {0: ["u", "v"]}}):
        cells = [[0.5], [0.6]] if "bounds" in more else [["u"], ["v"]]
        regressor = AdaDPIGURegressor(target_bounds=(0, 1), records=10, **more)
        with pytest.raises(ad.InputError, match=r"y: could not convert string to float.*'a'.*; allowed: numbers"):
            regressor.fit(cells, words)


def test_a_regressor_refuses_to_measure_its_target() -> None:
    with pytest.raises(ad.InputError, match="target_bounds=None: give the public bounds of y"):
        AdaDPIGURegressor(bounds=(0, 1), records=10).fit([[0.5]], [1.0])


@pytest.mark.slow
def test_a_strange_category_is_refused_or_counted_as_other_also_in_predictions() -> None:
    X, y = adult_like(50)
    facts: dict[str, Any] = {"bounds": (0, 100), "records": 50, "epochs": 1, "classes": ["<=50K", ">50K"]}
    row = {"age": [30], "job": ["pilot"], "hours": [40.0], "sex": ["F"], "school": [2]}
    strict = AdaDPIGUClassifier(categories=CATEGORIES, **facts).fit(X, y)
    with pytest.raises(ad.InputError, match="X: record 0, column 'job': the value 'pilot' is not declared"):
        strict.predict(pa.table(row))
    with pytest.raises(ad.InputError, match="column 'age': 'old' is no number"):
        strict.predict(pa.table({**row, "age": ["old"]}))
    with pytest.raises(ad.InputError, match="column 'hours': the value is missing"):
        strict.predict(pa.table({**row, "job": ["nurse"], "hours": [math.nan]}))
    open_minded = AdaDPIGUClassifier(categories=CATEGORIES, unknown="other", **facts).fit(X, y)
    assert open_minded.predict(pa.table(row)).shape == (1,)


def test_columns_in_another_order_are_refused() -> None:
    X, y = adult_like(50)
    facts: dict[str, Any] = {"bounds": (0, 100), "records": 50, "epochs": 1, "classes": ["<=50K", ">50K"]}
    classifier = AdaDPIGUClassifier(categories=CATEGORIES, **facts).fit(X, y)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(X.select(["job", "age", "hours", "sex", "school"]))


@pytest.mark.parametrize(
    "made",
    [
        lambda one: VotingClassifier([("a", one), ("b", one), ("c", one)]),
        lambda one: OneVsRestClassifier(one),
        lambda one: BaggingClassifier(one, n_estimators=3),
    ],
)
def test_models_of_the_same_records_say_what_they_amount_to(made: Any) -> None:
    """The sum of their ε, however scikit-learn makes several of one: by labels, by bootstraps, by the same records."""
    X, _ = blobs()
    y = np.arange(len(X)) % 3
    whole = made(short(classes=[0, 1] if made(None).__class__ is OneVsRestClassifier else [0, 1, 2])).fit(X, y)
    lines = [[line for line in one.privacy_.not_covered if "of this process" in line] for one in whole.estimators_]
    assert [len(found) for found in lines] == [0, 1, 1]
    total = sum(one.epsilon_ for one in whole.estimators_)
    assert float(lines[-1][0].split("epsilon = ")[1].split()[0]) == pytest.approx(total, rel=1e-3)


def test_random_state_fixes_the_start_and_never_the_noise() -> None:
    X, y = blobs()
    starts: list[dict[str, torch.Tensor]] = []

    def recorded(features: int, outputs: int) -> nn.Module:
        made = nn.Linear(features, outputs)
        starts.append({name: value.detach().clone() for name, value in made.named_parameters()})
        return made

    fits = [short(model=recorded, random_state=state).fit(X, y) for state in (7, 7, 8)]
    assert torch.equal(starts[0]["weight"], starts[1]["weight"])
    assert not torch.equal(starts[0]["weight"], starts[2]["weight"])
    ends = [fit.run_.model.get_parameter("weight") for fit in fits]
    assert not torch.allclose(ends[0], ends[1])
    assert all(fit.privacy_.randomness_private for fit in fits)


@pytest.mark.slow
def test_a_fit_that_no_budget_is_left_for_is_refused_and_charges_nothing(tmp_path: Path) -> None:
    X, y = blobs()
    path = tmp_path / "shared.log"
    create_shared(path, ad.Budget(epsilon=6.0), dataset="clinic", records=200)
    classifier = short(ledger=path, dataset="clinic", epsilon=2.0)

    def fit_until_refused() -> None:
        while read_shared(path).total().runs < 10:
            classifier.fit(X, y)

    with pytest.raises(ad.BudgetError, match="epsilon=6 of the shared ledger"):
        fit_until_refused()
    total = read_shared(path).total()
    assert total.runs >= 2
    assert total.epsilon <= 6
    assert classifier.privacy_.shared == total
    assert "share a ledger" in classifier.privacy_.statement()
    with pytest.raises(ad.InputError, match=r"ledger .* is for 'clinic'"):
        short(ledger=path).fit(X, y)


def test_the_statement_says_what_was_declared_and_what_is_not_covered() -> None:
    X, y = blobs()
    fitted = short().fit(X, y)
    words = " ".join(fitted.privacy_.statement().split())
    for part in (
        "200 records (declared)",
        "2 classes: 'no', 'yes' (declared)",
        "x0 [-3, 3]",
        "fitted on these records before fit",
        "cross_val_score, GridSearchCV",
        "RecordFolds",
    ):
        assert part in words, part
    assert fitted.run_.privacy is fitted.privacy_


def test_a_method_without_noise_claims_nothing() -> None:
    X, y = blobs()
    fitted = short(method="sgd").fit(X, y)
    assert fitted.epsilon_ == math.inf
    assert fitted.privacy_.statement().startswith("NOT PRIVATE")


def test_clones_and_copies_keep_arguments_and_answers() -> None:
    X, y = blobs()
    first = short(method=ad.DPSGD(clip_norm=0.3), options={"momentum": 0.5}).fit(X, y)
    again = clone(first)
    assert again.get_params() == first.get_params()
    with pytest.raises(NotFittedError):
        _ = again.privacy_
    copied = pickle.loads(pickle.dumps(first))
    assert (copied.predict_proba(X) == first.predict_proba(X)).all()
    assert copied.epsilon_ == first.epsilon_


def test_a_verbose_fit_prints_public_progress_alone(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = blobs()
    short(verbose=1).fit(X, y)
    printed = capsys.readouterr().out
    assert printed.startswith("adadpigu on own data: 8 parameters, 8 steps, (ε = 3.99")
    assert "step 8/8  training  ε 3.99" in printed
    assert "loss" not in printed


@pytest.mark.slow
def test_the_package_does_not_import_what_it_is_compatible_with() -> None:
    code = "import adadpigu, sys; print([m for m in sys.modules if 'integrations' in m and m.startswith('adadpigu')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
