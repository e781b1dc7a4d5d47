"""A loader is taken if it decides nothing but the batch size; what else it decides is refused by name, or told."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

import adadpigu as ad
from adadpigu.integrations.loaders import CollatedRecords, validate_loader
from adadpigu.integrations.opacus import PrivacyEngine

DATA = TensorDataset(torch.zeros(6, 2))


class Endless(IterableDataset[Any]):
    """No length, no positions."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class OwnLoader(DataLoader[Any]):
    """Chooses by itself."""

    def __iter__(self) -> Any:
        return iter(())


class OwnSequence(SequentialSampler):
    """May go another way than the class it derives from."""


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: [DATA], "mine: a list makes its own batches; allowed: a DataLoader"),
        (lambda: OwnLoader(DATA), "mine: a OwnLoader makes its own batches"),
        (lambda: DataLoader(Endless()), "mine: Endless has no length or no positions.*map-style Dataset"),
        (lambda: DataLoader(TensorDataset(torch.zeros(0, 2))), "mine: there is no record; allowed: at least 1"),
        (lambda: DataLoader(DATA, batch_size=None), "mine: a batch_sampler of your own.*allowed: batch_size"),
        (lambda: DataLoader(DATA, batch_sampler=[[0], [1]]), "mine: a batch_sampler of your own"),
        (
            lambda: DataLoader(DATA, batch_sampler=type("Own", (BatchSampler,), {})(range(6), 2, False)),
            "mine: a batch_sampler of your own",
        ),
        (lambda: DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 6, 6)), "sampler=WeightedRandomSampler choos"),
        (lambda: DataLoader(DATA, sampler=SubsetRandomSampler(range(3))), "sampler=SubsetRandomSampler chooses"),
        (lambda: DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "sampler=RandomSampler chooses"),
        (lambda: DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=3)), "sampler=RandomSampler chooses"),
        (lambda: DataLoader(DATA, sampler=OwnSequence(DATA)), "sampler=OwnSequence chooses records"),
    ],
)
def test_what_decides_who_comes_together_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ad.InputError, match=told):
        validate_loader(make(), "mine")


def test_what_has_no_effect_is_warned_of() -> None:
    loader = DataLoader(DATA, batch_size=2, shuffle=True, drop_last=True, num_workers=1)
    with pytest.warns(UserWarning, match="mine: shuffle=True and drop_last=True and num_workers=1 has no effect"):
        assert validate_loader(loader, "mine") is loader


def test_a_plain_loader_is_taken_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validate_loader(DataLoader(DATA, batch_size=2), "mine")


def padding(items: list[dict[str, Any]]) -> dict[str, Any]:
    ids = pad_sequence([item["ids"] for item in items], batch_first=True, padding_value=9)
    return {"ids": ids, "name": [item["name"] for item in items]}


WORDS = [{"ids": torch.arange(1 + place), "name": "somebody"} for place in range(3)]
"""records of several lengths"""


def padding_to_five(items: list[dict[str, Any]]) -> Any:
    return padding([*items, {"ids": torch.zeros(5, dtype=torch.long), "name": ""}])["ids"][:-1]


def test_a_collate_fn_that_pads_to_a_fixed_length_needs_no_other_record_and_declares_nothing() -> None:
    records = CollatedRecords(WORDS, padding_to_five, pairs=False, pad=True)
    assert torch.equal(records.take(torch.tensor([0, 2]))[0], torch.tensor([[0, 9, 9, 9, 9], [0, 1, 2, 9, 9]]))
    assert records.declared == ()


def test_records_of_several_lengths_are_refused_with_the_remedy_and_without_their_lengths() -> None:
    with pytest.raises(ad.InputError, match="pad each record to a public length in the Dataset or in collate_fn") as no:
        CollatedRecords(WORDS, padding, pairs=False)
    assert not any(digit in str(no.value) for digit in "0123456789")


def test_records_of_several_lengths_are_padded_to_the_longest_of_all_where_that_is_asked_for() -> None:
    """As the collate_fn pads them, whoever is drawn with them; texts are left out."""
    records = CollatedRecords(WORDS, padding, pairs=False, pad=True)
    expected = torch.tensor([[0, 9, 9], [0, 1, 2]])
    assert torch.equal(records.take(torch.tensor([0, 2]))[0]["ids"], expected)
    assert records.take(torch.arange(0))[0]["ids"].shape == (0, 3)
    assert records.declared == ("the longest record has length 3: all are padded to it",)


class Reading(NamedTuple):
    x: Any
    y: Any
    weight: Any


def test_named_records_keep_their_names() -> None:
    records = CollatedRecords([Reading(torch.ones(2), 1, 0.5)] * 3, default_collate, pairs=False)
    batch = records.take(torch.arange(2))[0]
    assert (batch.x.shape, batch.y.tolist(), batch.weight.tolist()) == ((2, 2), [1, 1], [0.5, 0.5])


def test_a_record_of_another_shape_than_before_is_refused_without_its_length() -> None:
    """As a random crop makes it: the data set gives another length when it is read again."""
    items = [torch.zeros(2), torch.zeros(2)]
    records = CollatedRecords(items, torch.stack, pairs=False)
    items[1] = torch.zeros(4)
    with pytest.raises(ad.InputError, match="records of several lengths"):
        records.take(torch.arange(2))


class Notes:
    """Records with a text, and a `collate_fn` that fails on some of them once draws begin."""

    def __init__(self, failing: Callable[[str], Any]) -> None:
        self.failing, self.drawing = failing, False

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> tuple[torch.Tensor, str]:
        return torch.full((3,), float(place)), f"patient {place}: positive"

    def collate(self, items: list[tuple[torch.Tensor, str]]) -> Any:
        made = torch.stack([numbers for numbers, _ in items])
        return self.failing(items[0][1]) if self.drawing else (made, torch.zeros(len(items), dtype=torch.long))


def quote(text: str) -> None:
    raise TypeError(f"cannot encode {text!r}")


@pytest.mark.parametrize("failing", [quote, lambda text: (torch.zeros(1, 3), torch.zeros(7))])
def test_what_a_collate_fn_raises_in_a_draw_is_withheld_and_rows_are_not_counted(failing: Any) -> None:
    notes = Notes(failing)
    notes.drawing = True
    with pytest.raises(ad.InputError, match=r"cannot be put into a batch: .*patient 0|has 7 rows"):
        CollatedRecords(notes, notes.collate, pairs=True)
    notes.drawing = False
    data = ad.DataSet(name="notes", train=CollatedRecords(notes, notes.collate, pairs=True), records=8)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with ad.PrivateLoop(model, optimizer, data, batch_size=8, steps=2, noise_multiplier=1.0) as loop:
        notes.drawing, batch = True, next(iter(loop))
        with pytest.raises(ad.AdaDPIGUError) as failure:
            batch.backward()
    assert "patient" not in str(failure.value)
    assert "7 rows" not in str(failure.value)
    assert failure.value.__context__ is None


def test_a_script_for_opacus_withholds_it_too() -> None:
    notes, model = Notes(quote), torch.nn.Linear(3, 2)
    *_, loader = PrivacyEngine(records=8).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters()),
        data_loader=DataLoader(notes, batch_size=8, collate_fn=notes.collate),  # type: ignore[arg-type]
        criterion=torch.nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        total_steps=2,
    )
    notes.drawing = True
    with pytest.raises(ad.ModelError, match="its message is withheld") as failure:
        next(iter(loader))
    assert "patient" not in str(failure.value)


def test_a_collate_fn_that_changes_a_record_by_those_beside_it_is_refused() -> None:
    with pytest.raises(ad.InputError, match="makes another record of a record"):
        CollatedRecords(WORDS, lambda rows: padding(rows[::-1]), pairs=False, pad=True)


def of_lists(items: list[Any], length: int | None = None) -> tuple[Any, Any]:
    """Lists as tensors, padded to a length, or to the longest of the batch."""
    most = length or max(len(ids) for ids, _ in items)
    rows = [[*ids, *[9] * (most - len(ids))] for ids, _ in items]
    return torch.tensor(rows), torch.tensor([label for _, label in items])


@pytest.mark.parametrize("pad", [False, True])
def test_lists_of_several_lengths_are_taken_where_the_collate_fn_pads_to_a_fixed_one(pad: bool) -> None:
    items = [([1] * length, length) for length in (1, 3, 2)]
    records = CollatedRecords(items, lambda rows: of_lists(rows, 4), pairs=True, pad=pad)
    inputs, targets = records.take(torch.tensor([2, 0]))
    assert torch.equal(inputs, torch.tensor([[1, 1, 9, 9], [1, 9, 9, 9]]))
    assert torch.equal(targets, torch.tensor([2, 1]))


@pytest.mark.parametrize(
    "items",
    [
        [([1] * length, length) for length in (1, 3, 2)],
        [("a" * length, length) for length in (3, 1, 2)],
        [(np.ones(length), length) for length in (3, 1, 2)],
    ],
    ids=["lists", "texts", "arrays"],
)
def test_lengths_that_no_blank_record_can_have_are_refused_without_naming_them(items: list[Any]) -> None:
    """A blank record is made of tensors; the longest may stand first, so that another would do by chance."""

    def numbers(rows: list[Any]) -> tuple[Any, Any]:
        return of_lists([([1 for _ in ids], label) for ids, label in rows])

    with pytest.raises(ad.InputError, match="records of several lengths") as refusal:
        CollatedRecords(items, numbers, pairs=True, pad=True)
    assert not any(digit in str(refusal.value) for digit in "0123456789")


def test_the_length_that_is_declared_is_that_of_the_first_tensor() -> None:
    """Also where a number stands before it."""
    items = [(length, torch.ones(length)) for length in (1, 3, 2)]

    def collate(rows: list[Any]) -> tuple[Any, Any]:
        return pad_sequence([x for _, x in rows], batch_first=True), torch.tensor([y for y, _ in rows])

    records = CollatedRecords(items, collate, pairs=True, pad=True)
    assert records.declared == ("the longest record has length 3: all are padded to it",)
