"""Data from Python objects: test records are used or refused, never dropped, and records keep what is known of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import adadpigu
from adadpigu.data import DataSet, TensorRecords
from adadpigu.data.datasets import Source, declare
from adadpigu.errors import InputError


def pairs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.rand(count, 4), torch.arange(count) % 2


def known(test: TensorRecords | None = None) -> DataSet:
    return DataSet(name="known", train=TensorRecords(*pairs(40)), records=40, classes=2, test=test)


class Nothing(Dataset[Any]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


def test_test_records_beside_a_data_set_without_any_are_measured_on() -> None:
    run = adadpigu.train(
        torch.nn.Linear(4, 2), known(), test=pairs(10, seed=1), method="sgd", steps=1, batch_size=8, device="cpu"
    )
    assert run.accuracy is not None
    inputs, targets = pairs(10, seed=1)
    right = (run.model(inputs).argmax(dim=1) == targets).float().mean()
    assert run.accuracy == pytest.approx(right.item())


def test_test_records_beside_a_data_set_that_has_its_own_are_refused() -> None:
    data = known(TensorRecords(*pairs(10, seed=1)))
    assert declare(data) is data
    with pytest.raises(InputError, match="test: 'known' has test records of its own"):
        declare(data, test=pairs(10, seed=2))
    other = declare(replace(data, test=None), test=pairs(12, seed=2))
    assert other.test is not None
    assert (len(other.test), other.records, other.name) == (12, 40, "known")


@pytest.mark.parametrize("test", [Nothing(), pairs(0), TensorDataset(*pairs(0))])
def test_no_test_record_is_refused_whoever_brings_it(test: Source) -> None:
    for source, records in ((pairs(40), 40), (known(), None)):
        with pytest.raises(InputError, match="there is no test record; allowed: at least 1, or test=None"):
            declare(source, records=records, test=test)


def test_a_data_set_that_brings_no_test_record_is_refused() -> None:
    with pytest.raises(InputError, match="known: there is no test record"):
        declare(known(TensorRecords(*pairs(0))))


@pytest.mark.parametrize("published", [False, True])
def test_records_on_another_device_are_as_published_as_before_and_keep_their_name(published: bool) -> None:
    moved = TensorRecords(*pairs(3), name="three", published=published).to(torch.device("cpu"))
    assert (moved.published, moved.name) == (published, "three")


@pytest.mark.parametrize("columns", ["float64", "Int64", "bool and float"])
def test_a_data_frame_and_a_series_are_records(columns: str) -> None:
    """As `train_test_split` leaves them: the index is not the position."""
    kinds = {"a": "float64", "b": "bool"} if columns == "bool and float" else columns
    table = pandas.DataFrame({"a": [1, 2, 3], "b": [0, 1, 1]}, index=[7, 2, 5]).astype(kinds)
    train = declare((table, pandas.Series([0, 1, 0], index=[7, 2, 5])), records=3).train
    inputs, targets = train.take(torch.tensor([2, 0]))
    assert inputs.tolist() == [[3, 1], [1, 0]]
    assert inputs.dtype == (torch.int64 if columns == "Int64" else torch.float32)
    assert targets.tolist() == [0, 0]


def test_lists_of_numbers_are_records_and_lists_of_tensors_are_parts() -> None:
    train = declare(([[1, 2.5], [3, 4]], [0, 1]), records=2).train
    inputs, targets = train.take(torch.arange(2))
    assert torch.equal(inputs, torch.tensor([[1, 2.5], [3, 4]]))
    assert torch.equal(targets, torch.tensor([0, 1]))
    parts = declare(([torch.zeros(3, 2), torch.zeros(3)], torch.zeros(3)), records=3).train
    assert [part.shape for part in parts.take(torch.arange(3))[0]] == [(3, 2), (3,)]


@pytest.mark.parametrize(
    "inputs", [pandas.DataFrame({"a": ["x", "y"]}), [[1, 2], [3]]], ids=["text", "rows of several lengths"]
)
def test_what_is_no_array_of_numbers_is_refused_in_one_line(inputs: Any) -> None:
    with pytest.raises(InputError, match=r"^own data: inputs are no numbers, or rows of several lengths; allowed: "):
        declare((inputs, [0, 1]), records=2)


@pytest.mark.parametrize(
    ("item", "part"),
    [
        (lambda n: (torch.zeros(n), 0), r"item\[0\]"),
        (lambda n: {"ids": [0] * n, "label": 0}, r"item\['ids'\]"),
        (lambda n: {"label": 0, f"extra {n}": 0}, r"item\['extra 3'\]"),
        (lambda n: (torch.zeros(2), [[0, 1], [0] * n]), "an item"),
    ],
)
def test_records_of_several_lengths_are_refused_by_the_part_and_not_by_their_lengths(item: Any, part: str) -> None:
    with pytest.raises(InputError, match=f"^own data: {part} has several lengths or shapes; allowed: one") as raised:
        declare([item(3), item(5)], records=2).train.take(torch.arange(2))
    assert "pad each to a public length in the Dataset" in str(raised.value)
    assert "5" not in str(raised.value)
