"""scikit-learn's `check_estimator`, on subclasses that declare what is public about the checks' own data.

The checks know nothing of public facts, so the subclasses read labels off the data, as nobody may with private records.
Everything else is the estimators' own code.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from sklearn.utils import estimator_checks

from adadpigu import train
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.integrations.sklearn import EXEMPT, AdaDPIGUClassifier, AdaDPIGURegressor, estimator

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"epsilon": 100.0, "method": "dpsgd", "model": "linear"}
FAST = {"classifier": {"epochs": 5, "lr": 1.0}, "regressor": {"epochs": 5, "lr": 0.1}}
"""with secret noise 30 and 15 fits gave an accuracy of 0.917 ± 0.010 and R² of 0.77 ± 0.02, where the checks ask for
0.83 and 0.5: so that the noise which the test holds fixed is no lucky one"""


@contextlib.contextmanager
def declaring(target: Any, **facts: object) -> Iterator[None]:
    """Within it an estimator's arguments are these; they are put back, since fit may not change them."""
    before = {name: getattr(target, name) for name in facts}
    for name, value in facts.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


def labels_of(y: Any) -> list[object]:
    try:
        found: list[Any] = np.unique(np.asarray(y)).tolist()
    except TypeError:  # what the check wants refused
        return [0, 1]
    if len(found) != 1:
        return found
    return [*found, "another" if isinstance(found[0], str) else found[0] + 1]


class Classifier(AdaDPIGUClassifier):
    def fit(self, X: Any, y: Any) -> Self:
        labels = [0, 1] if y is None else labels_of(y)
        with declaring(self, classes=labels, bounds=(-4, 4), records=100):
            return super().fit(X, y)


class Regressor(AdaDPIGURegressor):
    def fit(self, X: Any, y: Any) -> Self:
        with declaring(self, target_bounds=(-3, 3), bounds=(-3, 3), records=100):
            return super().fit(X, y)


class Repeatable:
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.non_deterministic = False  # so that checks which this tag would skip are run
        return tags


class RepeatableClassifier(Repeatable, Classifier):
    pass


class RepeatableRegressor(Repeatable, Regressor):
    pass


def outcomes(subject: Any) -> dict[str, list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = estimator_checks.check_estimator(subject, on_fail=None, on_skip=None, expected_failed_checks=EXEMPT)
    found: dict[str, list[str]] = {}
    for result in results:
        why = f"{result['check_name']}: {result['exception']}" if result["status"] == "failed" else ""
        found.setdefault(result["status"], []).append(why or result["check_name"])
    return found


def settings(kind: type[Any]) -> dict[str, Any]:
    return {**SETTINGS, **FAST["regressor" if issubclass(kind, Regressor) else "classifier"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RepeatableClassifier, RepeatableRegressor])
def test_with_noise_held_fixed_every_check_passes(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def repeatable(*args: Any, **kwargs: Any) -> Any:
        return train(*args, randomness=ReproducibleRandomness(3), **kwargs)

    monkeypatch.setattr(estimator, "train", repeatable)
    found = outcomes(kind(**settings(kind)))
    assert found.keys() <= {"passed", "skipped"}, found
    assert found["skipped"] == ["check_array_api_input"]  # which needs SCIPY_ARRAY_API
    assert len(found["passed"]) > 45


@pytest.mark.parametrize("name", sorted(EXEMPT))
def test_an_exempt_check_fails_when_noise_is_secret(name: str) -> None:
    """So the exemption is needed. Almost every first try of those that compare numbers fails; where labels are compared
    two fits that are nearly noise agree on the first record every other time, so 20 tries all pass in 1 of 10⁶ cases.
    """
    kind = RepeatableRegressor if name != "check_classifier_data_not_an_array" else RepeatableClassifier
    subject = kind(**{**settings(kind), "epsilon": 0.05})

    def try_often() -> None:
        for _ in range(20):
            getattr(estimator_checks, name)(kind.__name__, subject)

    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        try_often()


def test_the_page_lists_every_exemption() -> None:
    page = (ROOT / "docs" / "scikit-learn.md").read_text()
    assert [name for name in EXEMPT if f"`{name}`" not in page] == []
