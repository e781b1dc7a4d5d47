"""The plan of a fit: steps of an epoch from the declared count, and as many of them as epochs and max_steps allow."""

from __future__ import annotations

from typing import Any

import pytest

from adadpigu.integrations.lightning.loading import PrivateLoader
from lightning_cases import B, Classifier, loader, records, strategy, trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize(("count", "expected"), [(64, 4), (65, 5), (63, 4), (16, 1), (10, 1), (17, 2)])
def test_an_epoch_has_as_many_steps_as_batches_begin_in_it(count: int, expected: int) -> None:
    """⌈N/B⌉ of the declared N; the loader's data set has 64 records in each case."""
    assert B == 16
    assert len(PrivateLoader(loader(), count)) == expected


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        pytest.param({"max_epochs": 2}, 10, marks=pytest.mark.slow),
        ({"max_epochs": 2, "max_steps": 7}, 7),
        pytest.param({"max_epochs": 1, "max_steps": 7}, 5, marks=pytest.mark.slow),
        ({"max_epochs": -1, "max_steps": 7}, 7),
        pytest.param({"max_epochs": None, "max_steps": 3}, 3, marks=pytest.mark.slow),
        ({"max_epochs": 2, "limit_train_batches": 3}, 6),
        ({"max_epochs": 1, "limit_train_batches": 0.5}, 2),
    ],
)
def test_the_tighter_of_two_limits_is_the_plan(limits: dict[str, Any], steps: int) -> None:
    """Of 66 declared records at B = 16 an epoch is five steps; all that is planned is trained and charged."""
    private = strategy(records=66)
    trainer(private, **limits).fit(Classifier(), loader(records(count=66)))
    assert private.run.steps == private.run.steps_done == private.privacy.steps_charged == steps
    assert not private.run.interrupted
