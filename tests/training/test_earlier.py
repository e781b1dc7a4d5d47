"""Several models of the same records: the statement says what they amount to, as far as this process can know."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.accounting.shared import create_shared
from adadpigu.audit.subject import subject_of
from adadpigu.audit.subject import trained as audited
from adadpigu.config import RunConfig
from adadpigu.training.earlier import EarlierRuns, StartedRun, earlier_runs

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


def test_a_second_run_on_the_same_data_set_says_what_both_amount_to() -> None:
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


def test_folds_of_unequal_size_are_counted_together() -> None:
    """The fifth model of a cross-validation has four before it, whatever the sizes of their parts are."""
    data, spent = records(1, 62), []
    for size in (49, 49, 50, 50, 50):
        run = trained([part[:size] for part in data], records=size)
        spent.append(run.privacy.epsilon_pld)
    (line,) = told(run)
    assert line.startswith("4 earlier runs of this process declared data of the same name (own data, 49 to 50 records)")
    assert float(line.split("epsilon = ")[1].split()[0]) == pytest.approx(sum(spent), rel=1e-3)
    assert "records that are in all of them" in line


def test_an_earlier_run_that_exposed_values_leaves_no_finite_total() -> None:
    trained(records(1), diagnostics=True)
    assert "epsilon = inf" in told(trained(records(1)))[0]


def test_an_earlier_run_of_single_records_bounds_nothing_for_an_owner() -> None:
    """An owner may have any number of them. A run of owners covers a later one, of owners or of records."""
    owners = {"owners": [*range(30)] * 2, "owner_cap": 2}
    for first, second, total in (({}, owners, math.inf), (owners, owners, 2.0), (owners, {}, 2.0)):
        earlier_runs.clear()
        epsilon = trained(records(1), **first).privacy.epsilon_pld
        (line,) = told(trained(records(1), **second))
        amount = float(line.split("epsilon = ")[1].split()[0].replace("infinite", "inf"))
        assert amount == pytest.approx(total * epsilon, rel=1e-3)
        assert ("which bounds nothing for an owner" in line) == math.isinf(total)


@pytest.mark.parametrize("real", [True, False])
def test_an_audit_on_the_users_own_records_is_one_earlier_run_of_them(real: bool, tmp_path: Path) -> None:
    """It shows what no noise covers, however many models it trains; one on stand-ins has seen nobody."""
    inputs, targets = records(1)
    table = "".join(f"{float(row[0])},{int(label)}\n" for row, label in zip(inputs, targets, strict=True))
    (tmp_path / "clinic.csv").write_text("age,ill\n" + table)
    facts = 'records = 60\nlabel = "ill"\nclasses = ["0", "1"]\n[columns.age]\nrange = [0, 1]\n'
    (tmp_path / "clinic.toml").write_text(facts)
    config = RunConfig(dataset=str(tmp_path / "clinic.csv"), model="linear", method="dpsgd", batch_size=20, steps=2)
    subject = subject_of(config, real=real, sample_rate=0.5)
    for _ in range(2):
        audited(subject.prepare(), randomness=None)
    found = told(ad.train(nn.Linear(1, 2), ad.load_dataset(config.dataset), batch_size=20, steps=2, method="dpsgd"))
    assert [line.split(" of this process")[0] for line in found] == ["an earlier run"] * real
    assert all("epsilon = infinite" in line for line in found)


def test_the_statement_is_the_same_whatever_the_records_are() -> None:
    """Public facts alone decide: with the same ones, and not one record in common, every line is the same."""
    statements = []
    for second in (1, 2):
        earlier_runs.clear()
        trained(records(1))
        statements.append(trained(records(second)).privacy.not_covered)
    assert statements[0] == statements[1]
    assert any("of this process" in line for line in statements[0])


def test_runs_of_a_shared_ledger_are_left_to_its_total(tmp_path: Path) -> None:
    data = records(3)
    path = tmp_path / "shared.log"
    create_shared(path, ad.Budget(epsilon=8), dataset="own data", records=60)
    for _ in range(2):
        run = trained(data, ledger=path, privacy=ad.Budget(epsilon=2))
        assert told(run) == []
    assert run.privacy.shared is not None
    assert "2 earlier runs" in told(trained(data))[0]  # but this one is not on it


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


def test_passes_of_one_preparation_and_a_resumed_run_are_not_earlier_runs() -> None:
    runs, mine = EarlierRuns(), object()

    def add(run: str, preparation: object = None, dataset: str = "clinic") -> str:
        facts: dict[str, Any] = {"records": 80, "epsilon": 1.0, "delta": 1e-6, "ledger": None}
        return str(runs.add(StartedRun(run=run, preparation=preparation or object(), dataset=dataset, **facts)))

    assert [add("a", mine), add("b", mine)] == ["None", "None"]
    assert "2 earlier runs of this process declared data of the same name (clinic, 80 records)" in add("c")
    assert add("d", dataset="another") == "None"
