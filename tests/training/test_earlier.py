"""Several models of the same records: the statement says what they amount to, as far as this process can know."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import adadpigu as ad
from adadpigu.accounting.shared import create_shared
from adadpigu.training.earlier import EarlierRuns, Used

SIGMA = 2.0


def records(seed: int, count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, generator=generator), torch.randint(2, (count,), generator=generator)


def trained(data: Any, **further: Any) -> ad.Run:
    options: dict[str, Any] = {"records": 60, "batch_size": 20, "steps": 2, "method": "dpsgd"} | further
    if "ledger" not in further:
        options["noise_multiplier"] = SIGMA
    return ad.train(nn.Linear(3, 2), data, **options)


def told(run: ad.Run) -> list[str]:
    return [line for line in run.privacy.not_covered if "of this process" in line]


def used(*rows: int) -> Used:
    return Used.of(np.array([hash(row.to_bytes(8)) for row in rows], np.int64))


def test_a_second_run_on_the_same_records_says_what_both_amount_to() -> None:
    inputs, targets = records(1)
    first = trained((inputs, targets))
    assert told(first) == []
    second = trained((inputs.clone(), 1 - targets), delta=1e-6)  # one model a class: other labels
    total = first.privacy.epsilon_pld + second.privacy.epsilon_pld
    (line,) = told(second)
    assert "an earlier run of this process" in line
    assert float(line.split("epsilon = ")[1].split()[0]) == pytest.approx(total, rel=1e-3)
    assert "delta = 1.1e-05" in line
    assert "2 earlier runs of this process" in told(trained((inputs[:40], targets[:40])))[0]  # a fold
    assert told(trained(records(2))) == []


def test_runs_of_a_shared_ledger_are_left_to_its_total(tmp_path: Path) -> None:
    data = records(3)
    path = tmp_path / "shared.log"
    create_shared(path, ad.Budget(epsilon=8), dataset="own data", records=60)
    for _ in range(2):
        run = trained(data, ledger=path, privacy=ad.Budget(epsilon=2))
        assert told(run) == []
    assert run.privacy.shared is not None
    assert "2 earlier runs" in told(trained(data))[0]  # but this one is not on it


class Noisy(Dataset[Any]):
    """Augmented anew at every look."""

    def __init__(self, seed: int) -> None:
        self.inputs, self.targets = records(seed)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] + torch.rand(3), self.targets[index]


def test_records_that_change_at_every_look_are_known_by_where_they_lie() -> None:
    data = Noisy(4)
    assert told(trained(data)) == []
    assert len(told(trained(data))) == 1
    assert told(trained(Noisy(5))) == []


def test_every_statement_says_that_other_models_add_up_and_what_was_computed_before() -> None:
    text = " ".join(trained(records(6)).privacy.statement().split())
    assert "other models trained on these records" in text
    assert "class weights, scalers, vocabularies" in text


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), reduction="sum"), "weight of CrossEntropyLoss"),
        (partial(F.cross_entropy, weight=torch.tensor([1.0, 3.0]), reduction="none"), "weight of cross_entropy"),
        (nn.CrossEntropyLoss(), None),
    ],
)
def test_class_weights_are_named_and_run(loss: Any, name: str | None) -> None:
    found = [line for line in trained(records(7), loss=loss).privacy.not_covered if "weight of" in line]
    assert [str(name) in line for line in found] == ([] if name is None else [True])


def test_shares_of_classes_as_targets_are_told() -> None:
    inputs, targets = records(8)
    run = trained((inputs, F.one_hot(targets, 2).float()))
    assert any("shares of classes" in line for line in run.privacy.not_covered)


def test_samples_of_large_data_sets_are_enough_to_know_them_again() -> None:
    """Half of the records in common, and none; of 40,000 each, 16,384 are kept."""
    runs = EarlierRuns()
    facts: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "ledger": None}
    assert runs.add("one", used(*range(40_000)), **facts) is None
    assert "epsilon = 2 " in str(runs.add("two", used(*range(20_000, 60_000)), **facts))
    assert runs.add("three", used(*range(60_000, 100_000)), **facts) is None
    assert "3 earlier runs" not in str(runs.add("one", used(*range(40_000)), **facts))  # resumed: not itself
    assert runs.add("blank", used(*range(200_000, 200_999), 0), **facts) is None  # one row in a thousand


def test_passes_of_one_preparation_are_not_earlier_runs() -> None:
    runs, mine = EarlierRuns(), used(1, 2, 3)
    facts: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "ledger": None}
    assert [runs.add(name, mine, **facts) for name in "ab"] == [None, None]
    assert "2 earlier runs" in str(runs.add("c", used(3, 4), **facts))
