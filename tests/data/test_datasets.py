"""Data from Python objects: test records are used or refused, never dropped, and records keep what is known of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
