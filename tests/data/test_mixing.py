"""A data set whose items mix records is refused where its reading can be watched, and told where it cannot."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import adadpigu as ad
from adadpigu.data.mixing import refuse_mixed_items

INPUTS, LABELS = torch.rand(30, 3, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 2
WHOLE = TensorDataset(INPUTS, LABELS)


class Own(Dataset[Any]):
    """Records in arrays, each by itself, augmented by noise."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels, self.order = inputs, labels, torch.randperm(len(inputs))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        place = self.order[index]
        return torch.as_tensor(self.inputs[int(place)]) + torch.rand(3), self.labels[place]


class Mixup(Own):
    """Each item is a mixture of two, as mixup makes them."""

    def __getitem__(self, index: int) -> Any:
        share, other = random.random(), random.randrange(len(self) - 1)
        other += other >= index
        mixed = share * torch.as_tensor(self.inputs[index]) + (1 - share) * torch.as_tensor(self.inputs[other])
        return mixed, self.labels[index]


class Window(Own):
    """Each item is a record and the one before."""

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.inputs[max(0, index - 1) : index + 1]).sum(0), self.labels[index]


class Wrapping(Dataset[Any]):
    """Another data set, record by record, or each with the next."""

    def __init__(self, inner: Any, ahead: int = 0) -> None:
        self.inner, self.ahead = inner, ahead

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        (inputs, label), (other, _) = self.inner[index], self.inner[(index + self.ahead) % len(self)]
        return (inputs + other) / 2, label


class Elsewhere(Dataset[Any]):
    """Reads what nobody can watch."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index], LABELS[index]


NUMPY = INPUTS.numpy(), LABELS.numpy()


@pytest.mark.parametrize(
    "dataset",
    [
        Mixup(INPUTS, LABELS),
        Mixup(*NUMPY),
        Mixup([*INPUTS], LABELS),
        Window(INPUTS, LABELS),
        Window(*NUMPY),
        Wrapping(WHOLE, 1),
        Wrapping(Mixup(INPUTS, LABELS)),
        Subset(Mixup(INPUTS, LABELS), range(5, 10)),
        ConcatDataset([WHOLE, Mixup(INPUTS + 1, LABELS)]),
    ],
)
def test_items_that_mix_records_are_refused_by_train(dataset: Any) -> None:
    with pytest.raises(ad.InputError, match=r"own data: item \d+ of .* reads entries \d+, \d+ of its '.*'.*one record"):
        ad.train(torch.nn.Linear(3, 2), dataset, records=30, batch_size=10, steps=2)


@pytest.mark.parametrize(
    "dataset",
    [WHOLE, Own(INPUTS, LABELS), Own(*NUMPY), Own([*INPUTS], LABELS), Wrapping(WHOLE), Wrapping(Own(INPUTS, LABELS))],
)
def test_items_of_one_record_each_are_taken_in_silence(dataset: Any) -> None:
    """Augmented ones as well, and those that are found by another list of places."""
    before = {key: id(value) for key, value in vars(dataset).items()}
    assert refuse_mixed_items(dataset, "mine") == ()
    assert refuse_mixed_items(Subset(dataset, [3, 4]), "mine") == ()
    assert {key: id(value) for key, value in vars(dataset).items()} == before


def test_where_nothing_can_be_seen_the_statement_says_what_items_must_be() -> None:
    run = ad.train(torch.nn.Linear(3, 2), Elsewhere(), records=30, batch_size=10, steps=2)
    assert "items of your Elsewhere" in " ".join(run.privacy.statement().split())
    one = ad.train(torch.nn.Linear(3, 2), Own(np.float32(NUMPY[0]), LABELS), records=30, batch_size=10, steps=2)
    assert "items of your" not in one.privacy.statement()
