"""Counts and quantiles of private records: near the truth, moved by one record as far as is charged, and no further."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import adadpigu as ad
from adadpigu.accounting import create_shared, read_ledger
from adadpigu.accounting.shared import read_shared
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import unseal
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import BudgetError, InputError
from adadpigu.training import releasing
from adadpigu.training.earlier import earlier_runs

GENEROUS = ad.Budget(epsilon=50.0, delta=1e-5)


def people(count: int = 4000, seed: int = 0) -> DataSet:
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(np.stack([rng.uniform(0, 1, count), rng.beta(2, 5, count)], axis=1)).float()
    targets = torch.from_numpy(rng.choice(3, count, p=[0.7, 0.2, 0.1]))
    return DataSet(name="people", train=TensorRecords(inputs, targets), records=count, classes=3)


def test_counts_are_the_true_ones_with_noise() -> None:
    """Within 5.5 standard deviations of their noise (1e-7 each)."""
    data = people()
    found = ad.release_counts(data, privacy=ad.Budget(epsilon=1.0, delta=1e-5))
    assert isinstance(data.train, TensorRecords)
    true = torch.bincount(data.train.targets, minlength=3)
    assert all(abs(a - float(b)) < 5.5 * found.stddev for a, b in zip(found.values, true, strict=True))
    assert found.values != tuple(true.tolist())
    assert 0.98 < found.privacy.epsilon <= 1.0
    weights = found.class_weights
    assert weights[0] < weights[1] < weights[2]
    assert sum(w * v for w, v in zip(weights, found.values, strict=True)) == pytest.approx(sum(found.values), rel=1e-6)


def test_exact_counts_are_whole_multiples_of_their_grid() -> None:
    found = ad.release_counts(people(), privacy=ad.Budget(epsilon=1.0), randomness="exact")
    assert all(value * 2.0**20 == round(value * 2.0**20) for value in found.values)
    assert any(value != round(value) for value in found.values)


def test_a_class_without_records_has_a_finite_weight() -> None:
    found = ad.release_counts(people(), classes=6, privacy=ad.Budget(epsilon=1.0))
    assert len(found.class_weights) == 6
    assert all(0 < weight < 1e6 for weight in found.class_weights)


def test_quantiles_are_near_those_of_the_records() -> None:
    data = people()
    assert isinstance(data.train, TensorRecords)
    found = ad.release_quantiles(data, shares=(0.1, 0.5, 0.9), bins=100, privacy=GENEROUS)
    for column, values in enumerate(found.values):
        true = np.quantile(data.train.inputs[:, column].numpy(), [0.1, 0.5, 0.9])
        assert np.abs(np.array(values) - true).max() < 0.02
        assert list(values) == sorted(values)
    far = ad.release_quantiles(data, low=5.0, high=6.0, privacy=GENEROUS)
    assert all(5 <= value <= 5.1 for values in far.values for value in values)  # beyond its bounds a value is at them


def test_quantiles_under_much_noise_stay_in_their_bounds_and_in_order() -> None:
    found = ad.release_quantiles(people(50), low=-1.0, high=2.0, privacy=ad.Budget(epsilon=0.05))
    for values in found.values:
        assert all(-1 <= value <= 2 for value in values)
        assert list(values) == sorted(values)


@pytest.mark.parametrize("odd", [0.5, 1e30, -1e30, math.nan, math.inf])
def test_one_record_more_moves_each_sum_by_its_sensitivity_at_most(odd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sums, genuine = [], releasing._sum

    def kept(*given: object) -> object:
        total = genuine(*given)  # type: ignore[arg-type]
        sums.append((unseal(total).clone(), total.sensitivity))
        return total

    monkeypatch.setattr(releasing, "_sum", kept)
    data = people(40)
    assert isinstance(data.train, TensorRecords)
    inputs = torch.cat([data.train.inputs, torch.full((1, 2), odd)])
    more = TensorRecords(inputs, torch.cat([data.train.targets, torch.tensor([7])]))
    for train in (data.train, more):
        held = DataSet(name="people", train=train, records=40, classes=3)
        ad.release_counts(held, privacy=GENEROUS)
        ad.release_quantiles(held, privacy=GENEROUS)
    for at, bound in ((0, 1.0), (1, math.sqrt(2))):
        (before, declared), (after, _) = sums[at], sums[at + 2]
        assert declared == bound
        assert float((after - before).norm()) <= bound * (1 + 1e-9)


def test_what_is_released_is_charged_first_and_kept_with_its_statement(tmp_path: Path) -> None:
    out = tmp_path / "counts"
    found = ad.release_counts(people(), privacy=ad.Budget(epsilon=0.5), out=out)
    record = read_ledger(out / "ledger.log")
    assert record.epsilon() == found.privacy.epsilon <= 0.5
    told = json.loads((out / "released.json").read_text())
    assert told["values"] == list(found.values)
    assert told["class_weights"] == list(found.class_weights)
    assert (out / "statement.txt").read_text().startswith("PRIVATE: epsilon = 0.")
    with pytest.raises(InputError, match="already holds"):
        ad.release_counts(people(), privacy=ad.Budget(epsilon=0.5), out=out)


def test_a_shared_ledger_adds_up_releases_and_refuses_what_is_not_left(tmp_path: Path) -> None:
    shared = tmp_path / "shared.log"
    create_shared(shared, ad.Budget(epsilon=2.0), dataset="people", records=4000)
    before = read_shared(shared).total().epsilon
    ad.release_counts(people(), privacy=ad.Budget(epsilon=0.5), ledger=shared)
    assert read_shared(shared).total().epsilon > before
    with pytest.raises(BudgetError, match="shared ledger"):
        ad.release_quantiles(people(), privacy=ad.Budget(epsilon=2.0), ledger=shared)
    assert read_shared(shared).total().runs == 1
    with pytest.raises(InputError, match="reproducible noise"):
        ad.release_counts(people(), privacy=ad.Budget(epsilon=0.1), ledger=shared, randomness=ReproducibleRandomness(1))


def test_a_later_run_of_the_process_says_that_records_were_released_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from trials import small_digits, small_net

    data = small_digits()
    with earlier_runs.isolated_history():
        ad.release_counts(data, privacy=ad.Budget(epsilon=1.0))
        run = ad.train(small_net(), data, method=ad.DPSGD(), noise_multiplier=2.0, batch_size=40, steps=2, quiet=True)
    assert any("an earlier run of this process" in told for told in run.privacy.not_covered)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 1.0, "high": 0.0}, "low=1.0, high=0.0"),
        ({"high": math.inf}, "high=inf"),
        ({"bins": 1}, "bins=1 of 2 columns"),
        ({"shares": (0.5, 1.0)}, "shares="),
    ],
)
def test_senseless_bounds_are_refused_before_anything_is_charged(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        ad.release_quantiles(people(40), privacy=GENEROUS, out=tmp_path / "out", **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="classes=None"):
        ad.release_counts((torch.zeros(4, 2), torch.zeros(4).long()), records=4, privacy=GENEROUS)
    assert not (tmp_path / "out").exists()
