"""A data set whose items mix records is refused where its reading can be watched, and told where it cannot."""

from __future__ import annotations

import functools
import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import adadpigu as ad
from adadpigu.data.mixing import OWN_GENERATOR, _may_hold_records, refuse_mixed_items

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


class Scaled(Own):
    """Takes the mean of all."""

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] - self.inputs.mean(0), self.labels[index]


class Converted(Own):
    """Honest, and takes the whole array to read one entry."""

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(np.asarray(self.inputs)[index]), torch.as_tensor(self.labels)[index]


class Selected(Own):
    def __getitem__(self, index: int) -> Any:
        other = self.inputs.index_select(0, torch.tensor([index - 1]))[0]
        return self.inputs[index] + other, self.labels[index]


class ByClass(Own):
    def __getitem__(self, index: int) -> Any:
        label = int(self.labels[index])
        return self.inputs[index] + self.others[label][0], label

    def __init__(self, inputs: Any, labels: Any) -> None:
        super().__init__(inputs, labels)
        self.others = {label: inputs[labels == label] for label in (0, 1)}


class Duck:
    """As `Own`, without a base."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.labels[index]


class MixingDuck(Duck):
    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] - self.inputs.mean(0), self.labels[index]


class Slotted:
    __slots__ = ("inputs",)

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] - self.inputs.mean(0), 0


class Rows(list[Any]):
    """A list that reads a file, say."""


class Summed(Own):
    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] - sum(self.inputs), self.labels[index]


class Taken(Own):
    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.inputs[index] + np.take(self.inputs, index - 1, 0)), int(self.labels[index])


class Paired(Own):
    """The partner is in a tuple, or in another array."""

    def __init__(self, inputs: Any, labels: Any, both: Any) -> None:
        super().__init__(inputs, labels)
        self.both = both

    def __getitem__(self, index: int) -> Any:
        other = self.both if len(self.both) > 1 else self.both[0]
        return self.inputs[index] + other[index - 1], self.labels[index]


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
        Scaled(INPUTS, LABELS),
        Scaled(*NUMPY),
        MixingDuck(INPUTS, LABELS),
        Subset(MixingDuck(INPUTS, LABELS), range(30)),  # type: ignore[arg-type]
        Wrapping(MixingDuck(INPUTS, LABELS)),
        Wrapping(Duck(INPUTS, LABELS), 1),
        Summed([*INPUTS], LABELS),
        Taken(*NUMPY),
    ],
)
def test_items_that_mix_records_are_refused_by_train(dataset: Any) -> None:
    with pytest.raises(ad.InputError, match=r"own data: item \d+ of .* several entries of its '.*', so one record"):
        ad.train(torch.nn.Linear(3, 2), dataset, records=30, batch_size=10, steps=2)


@pytest.mark.parametrize(
    "dataset",
    [
        WHOLE,
        Own(INPUTS, LABELS),
        Own(*NUMPY),
        Own([*INPUTS], LABELS),
        Wrapping(WHOLE),
        Wrapping(Own(INPUTS, LABELS)),
        Wrapping(Duck(INPUTS, LABELS)),
        Duck(*NUMPY),
        Duck([*INPUTS], LABELS),
        Converted(*NUMPY),
        Converted([*NUMPY[0]], NUMPY[1]),
    ],
)
def test_items_of_one_record_each_are_taken_in_silence(dataset: Any) -> None:
    """Augmented ones as well, and those that are found by another list of places."""
    before = {key: id(value) for key, value in vars(dataset).items()}
    assert refuse_mixed_items(dataset, "mine") == ()
    assert refuse_mixed_items(Subset(dataset, [3, 4]), "mine") == ()
    assert {key: id(value) for key, value in vars(dataset).items()} == before


@pytest.mark.slow
def test_where_nothing_can_be_seen_the_statement_says_what_items_must_be() -> None:
    run = ad.train(torch.nn.Linear(3, 2), Elsewhere(), records=30, batch_size=10, steps=2)
    assert "items of your Elsewhere" in " ".join(run.privacy.statement().split())
    one = ad.train(torch.nn.Linear(3, 2), Own(np.float32(NUMPY[0]), LABELS), records=30, batch_size=10, steps=2)
    assert "items of your" not in one.privacy.statement()


@pytest.mark.parametrize(
    "dataset",
    [
        Selected(INPUTS, LABELS),
        ByClass(INPUTS, LABELS),
        Paired(INPUTS, LABELS, (INPUTS,)),
        Paired(INPUTS, LABELS, INPUTS + 1),
        Slotted(INPUTS),
        type("Mixed", (TensorDataset,), {"__getitem__": lambda self, k: (self.tensors[0].mean(0), LABELS[k])})(INPUTS),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_what_cannot_be_followed_is_told_and_not_refused(dataset: Any) -> None:
    (line,) = refuse_mixed_items(dataset, "mine")
    assert "each must be made of one; that was not checked" in line


@pytest.mark.parametrize("kind", [list, tuple, Rows, deque])
def test_the_entries_of_a_container_are_records_and_nothing_is_told(kind: type) -> None:
    assert refuse_mixed_items(kind([WHOLE[place] for place in range(30)]), "mine") == ()


class MixWith:
    """As `MixUp(reference_data=…)`: some training records, held by the transform."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, value: Any) -> Any:
        return value + torch.as_tensor(tree_leaves(self.held[0])[0])

    def get(self, value: Any) -> Any:
        return self(value)


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: Any) -> Any:
        return functools.reduce(lambda made, transform: transform(made), self.transforms, value)


class Transformed(Own):
    def __init__(self, transform: Any) -> None:
        super().__init__(INPUTS, LABELS)
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.inputs[index]), self.labels[index]


class Global(Own):
    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] + INPUTS[index - 1], self.labels[index]


class Held(Dataset[Any]):
    """Items are read from what no index reaches."""

    def __init__(self, store: MixWith) -> None:
        self.store, self.labels = store, torch.rand(30)

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return self.store.held[index] + self.store.held[index - 1], self.labels[index]


class Buffered(torch.nn.Module):
    """A transform that is a module, with records in a buffer."""

    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("held", held)

    def forward(self, value: Any) -> Any:
        return value + self.get_buffer("held")[0]


def closure(held: torch.Tensor) -> Any:
    return lambda value: value + held[0]


def added(value: Any, held: Any) -> Any:
    return value + held[0]


@pytest.mark.parametrize(
    "dataset",
    [
        Transformed(MixWith(INPUTS[:10])),
        Transformed(MixWith([*INPUTS])),
        Transformed(MixWith([{"image": row} for row in NUMPY[0]])),
        Transformed(Compose(functools.partial(MixWith(INPUTS)))),
        Transformed(MixWith(TensorDataset(INPUTS[:2]))),
        Transformed(MixWith(INPUTS[:10]).get),
        Transformed(Compose(Compose(MixWith(INPUTS[:10])))),
        Transformed(closure(INPUTS)),
        Transformed(lambda value: value + INPUTS[0]),
        Transformed(lambda value, held=INPUTS: value + held[0]),
        Transformed(lambda value: value + sum(row for row in INPUTS)),
        Transformed(functools.partial(added, held=INPUTS)),
        Transformed(torch.nn.Sequential(Buffered(INPUTS))),
        Global(INPUTS, LABELS),
        Held(MixWith(INPUTS)),
    ],
)
def test_records_that_a_transform_may_hold_are_told(dataset: Any) -> None:
    """One record that was not drawn moved a sum by 25 C."""
    (line,) = refuse_mixed_items(dataset, "mine")
    assert "each must be made of one; that was not checked" in line


class Normalize(torch.nn.Module):
    """As torchvision has it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.std, self.mode = [0.5] * 3, torch.ones(3), np.dtype("float32")

    def forward(self, value: Any) -> Any:
        return (value - torch.tensor(self.mean)) / self.std


MEAN = torch.zeros(3)


@pytest.mark.parametrize(
    "transform",
    [
        Normalize(),
        Compose(Normalize(), Compose(Normalize()), torch.nn.Identity()),
        torch.nn.BatchNorm1d(30).eval(),
        lambda value: (value - MEAN) * np.pi,
        functools.partial(torch.mul, other=torch.ones(3)),
        closure(MEAN),
        torch.nn.Linear(3, 7),
        torch.asarray,
    ],
)
def test_ordinary_transforms_are_taken_in_silence(transform: Any) -> None:
    assert not _may_hold_records(transform)


def test_constants_and_names_are_no_records() -> None:
    dataset = Own(INPUTS, LABELS)
    dataset.mean, dataset.names, dataset.numbers = torch.zeros(3), ["a", "b"], {"a": 0}  # type: ignore[attr-defined]
    assert refuse_mixed_items(dataset, "mine") == ()


class Shapes(Own):
    """Looks at the shape of another record."""

    def __getitem__(self, index: int) -> Any:
        assert self.inputs[0].shape == self.inputs[index].shape
        return self.inputs[index], self.labels[index]


class Blocks(Own):
    """Reads a block of neighbours, as from a disk, and takes one of them."""

    def __getitem__(self, index: int) -> Any:
        start = index // 8 * 8
        return self.inputs[start : start + 8][index - start], self.labels[index]


@pytest.mark.parametrize("kind", [Shapes, Blocks])
@pytest.mark.parametrize("array", [torch.Tensor, np.asarray])
def test_entries_that_do_not_change_an_item_are_no_mixture(kind: type[Own], array: Any) -> None:
    assert refuse_mixed_items(kind(array(INPUTS.numpy()), LABELS), "mine") == ()


class Chancy(Own):
    """Augments by a generator of its own, which no seed repeats."""

    chance = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] + float(self.chance.random()), self.labels[index]


class Cached(Own):
    """Keeps the items that were made."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        super().__init__(inputs, labels)
        self.made: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.made.setdefault(index, (self.inputs[index], self.labels[index]))


def test_items_that_cannot_be_compared_are_told_and_a_cache_keeps_its_items() -> None:
    own, mixed = refuse_mixed_items(Chancy(INPUTS, LABELS), "mine")
    assert own == OWN_GENERATOR
    assert "that was not checked" in mixed
    cached = Cached(INPUTS, LABELS)
    refuse_mixed_items(cached, "mine")
    assert cached.made
    assert all(torch.equal(made, INPUTS[index]) for index, (made, _) in cached.made.items())
