"""Private validation records are scored once, with noise, and charged; nothing else looks at them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.accounting import epsilon, read_ledger
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import unseal
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import InputError
from adadpigu.training.options import TrainingOptions
from adadpigu.training.preparation import Preparation
from adadpigu.training.validating import loss_bound, validation_query, validation_sum, with_validation
from trials import prepare_small, small_digits, small_net

DPSGD = ad.DPSGD()
SHORT: dict[str, Any] = {"batch_size": 40, "steps": 4, "lr": 0.5, "noise_multiplier": 2.0, "quiet": True}


def prepared(data: DataSet | None = None, **options: Any) -> Preparation:
    return prepare_small(DPSGD, data, **{"private_validation": "test", **options})


def total(ready: Preparation) -> Tensor:
    return unseal(validation_sum(ready, validation_query()))


def test_the_sum_is_that_of_right_answers_bounded_losses_and_records() -> None:
    ready = prepared()
    test = ready.data.test
    assert isinstance(test, TensorRecords)
    with torch.no_grad():
        outputs = ready.model(test.inputs)
    bound = 2 * math.log(10)
    losses = F.cross_entropy(outputs, test.targets, reduction="none").clamp(max=bound) / bound
    expected = torch.tensor([(outputs.argmax(1) == test.targets).sum(), losses.sum(), len(test)]).double()
    torch.testing.assert_close(total(ready), expected, rtol=1e-5, atol=1e-5)
    assert loss_bound(ready.data) == bound


@pytest.mark.parametrize("odd", ["plain", "huge"])
def test_one_record_more_moves_the_sum_by_no_more_than_its_sensitivity(odd: str) -> None:
    data = small_digits()
    assert isinstance(data.test, TensorRecords)
    more = {"plain": data.test.inputs[:1], "huge": torch.full((1, 8, 8), 1e30)}
    inputs = torch.cat([data.test.inputs, more[odd].reshape(1, *data.test.inputs.shape[1:])])
    targets = torch.cat([data.test.targets, data.test.targets[:1]])
    moved = total(prepared(replace(data, test=TensorRecords(inputs, targets)))) - total(prepared(data))
    assert 0 < float(moved.norm()) <= validation_query().sensitivity * (1 + 1e-9)


def test_no_record_at_all_is_a_sum_of_nothing() -> None:
    ready = prepared()
    assert isinstance(ready.data.test, TensorRecords)
    blank = TensorRecords(ready.data.test.inputs[:0], ready.data.test.targets[:0])
    assert total(replace(ready, data=replace(ready.data, test=blank))).tolist() == [0.0, 0.0, 0.0]


def test_the_score_is_charged_in_the_plan_and_in_the_ledger(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = ad.train(small_net(), small_digits(), method=DPSGD, out=out, private_validation=0.25, **SHORT)
    without = ad.train(small_net(), small_digits(), method=DPSGD, **SHORT)
    (event,) = [found for found in run.privacy.events if found.event.get("sample_rate") == 1.0]
    assert (event.count, event.event["of"]) == (1, {"event": "Gaussian", "noise_multiplier": 10.0})
    assert run.epsilon > without.epsilon
    assert epsilon(read_ledger(out / "ledger.log").events(), 1e-5) == run.epsilon
    assert run.steps == 5
    told = json.loads((out / "summary.json").read_text())
    assert told["private_validation"]["stddev"] == pytest.approx(10 * math.sqrt(3))
    assert told["test_accuracy"] is None


def test_nothing_exact_is_told_of_private_validation_records(tmp_path: Path) -> None:
    """The noise is fixed, so that what would be exact is known: it stands nowhere."""
    out = tmp_path / "run"
    options = {**SHORT, "randomness": ReproducibleRandomness(3), "evaluate_every": 1}
    run = ad.train(small_net(), small_digits(), method=DPSGD, out=out, private_validation="test", **options)
    assert run.accuracy is None
    assert all(metrics.test_accuracy is None for metrics in run.metrics)
    assert run.validation is not None
    assert run.validation.records != 100
    assert run.validation.right != round(run.validation.right)


@pytest.mark.slow
def test_evaluate_does_not_score_private_validation_records_exactly(call: Any) -> None:
    flags = ("--method", "dpsgd", "--noise-multiplier", "2", "--steps", "2", "--private-validation", "test")
    assert call("train", *flags, "--out", "run")[0] == 0
    code, out, err = call("evaluate", "run")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "are its private validation records; allowed: their noisy score" in err


def test_with_little_noise_the_score_is_the_models() -> None:
    run = ad.train(small_net(), small_digits(), method=DPSGD, private_validation="test", validation_noise=0.02, **SHORT)
    data = small_digits()
    assert isinstance(data.test, TensorRecords)
    right = (run.model(data.test.inputs).argmax(1) == data.test.targets).double().mean()
    assert run.validation is not None
    assert run.validation.accuracy == pytest.approx(float(right), abs=0.01)


def test_a_record_goes_to_its_side_whoever_else_is_there() -> None:
    options = TrainingOptions(private_validation=0.3, batch_size=10)
    data = small_digits()
    assert isinstance(data.train, TensorRecords)
    fewer = replace(data, train=TensorRecords(data.train.inputs[1:], data.train.targets[1:]))
    sides = [with_validation(found, options) for found in (data, fewer)]
    held = [{row.numpy().tobytes() for row in split.test.inputs} for split in sides]  # type: ignore[union-attr]
    kept = [{row.numpy().tobytes() for row in split.train.inputs} for split in sides]  # type: ignore[attr-defined]
    assert len(held[0] ^ held[1]) + len(kept[0] ^ kept[1]) == 1
    assert sides[0].records == data.records - round(0.3 * data.records) == sides[1].records
    assert 40 < len(held[0]) < 110


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"private_validation": 1.5}, "private_validation=1.5 is neither a share"),
        ({"private_validation": "some"}, "private_validation='some' is neither"),
        ({"private_validation": "test", "validation_noise": 0.0}, "validation_noise=0.0"),
    ],
)
def test_what_is_no_validation_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingOptions(**options)


def test_records_without_a_score_are_refused_before_anything_is_charged(tmp_path: Path) -> None:
    data = small_digits()
    with pytest.raises(InputError, match="has no test records"):
        prepared(replace(data, test=None))
    with pytest.raises(InputError, match="training records among its records"):
        prepared(replace(data, test=data.train))
    records = TensorRecords(torch.randn(40, 3), torch.randn(40, 1))
    regression = DataSet(
        name="own", train=records, test=TensorRecords(torch.randn(9, 3), torch.randn(9, 1)), records=40
    )
    with pytest.warns(UserWarning, match="accuracy is of labels"), pytest.raises(InputError, match="no accuracy and"):
        ad.train(
            nn.Linear(3, 1),
            regression,
            method=DPSGD,
            loss=nn.MSELoss(),
            private_validation="test",
            out=tmp_path / "run",
            **{**SHORT, "batch_size": 10},
        )
    assert not (tmp_path / "run").exists()


def test_a_loop_of_ones_own_has_no_last_step_for_a_score() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"private_validation=0\.2: it is scored where the package's own loop ends"):
        ad.PrivateLoop(model, optimizer, small_digits(), noise_multiplier=2.0, private_validation=0.2)
