"""Records are told apart by where they lie: a part of the training set is found however it is wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split

import adadpigu as ad
from adadpigu.data.checking import refuse_repeated, refuse_shared_records

ROWS = torch.arange(20.0).reshape(10, 2)
WHOLE = TensorDataset(ROWS, torch.arange(10))
LISTED: Any = [{"input_ids": [number]} for number in range(10)]
LABELS, ARRAY = torch.arange(10), np.arange(30.0).reshape(10, 3)
TRAIN, REST = random_split(WHOLE, [7, 3], generator=torch.Generator().manual_seed(0))


class Numbered(Dataset[int]):
    """A data set of the user's own."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Doubled(Dataset[Any]):
    """Another data set, record by record."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index], self.inner[index]


class Held(Dataset[Any]):
    """Arrays of its own."""

    def __init__(self, *arrays: Any) -> None:
        self.name = "held"
        for number, array in enumerate(arrays):
            setattr(self, f"part{number}", array)

    def __len__(self) -> int:
        return len(self.part0)

    def __getitem__(self, index: int) -> Any:
        return self.part0[index]

    part0: Any


class Stream(IterableDataset[int]):
    """No positions."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


NUMBERED, STREAM = Numbered(), Stream()


@pytest.mark.parametrize(
    ("train", "other"),
    [
        (WHOLE, WHOLE),
        (WHOLE, Subset(WHOLE, [3])),
        (TRAIN, WHOLE),
        (TRAIN, Subset(TRAIN, [0, 1])),
        (TRAIN, Subset(WHOLE, [TRAIN.indices[-1] - 10])),
        (TRAIN, ConcatDataset([REST, Subset(TRAIN, [2])])),
        (ConcatDataset([REST, TRAIN]), Subset(WHOLE, [4])),
        (WHOLE, TensorDataset(ROWS[8:], torch.zeros(2))),
        (WHOLE, TensorDataset(ROWS.view(10, 1, 2)[::5])),
        (NUMBERED, Subset(NUMBERED, [9])),
        (Doubled(NUMBERED), NUMBERED),
        (Doubled(TRAIN), Doubled(Subset(TRAIN, [1]))),
        (LISTED, LISTED[4:5]),
        (LISTED, [*({"input_ids": [number]} for number in range(3)), LISTED[0]]),
        (STREAM, STREAM),
        (Held(ROWS, LABELS), Held(ROWS, LABELS)),
        (Held(ROWS, LABELS), Held(ROWS[4:5], LABELS[4:5].clone())),
        (WHOLE, Held(ROWS)),
        (Held(ROWS), Subset(WHOLE, [9])),
        (Held(ARRAY), Held(ARRAY[::3])),
        (Held(ARRAY), TensorDataset(torch.from_numpy(ARRAY))),
    ],
)
def test_a_part_of_the_training_records_is_refused(train: Any, other: Any) -> None:
    with pytest.raises(ad.InputError, match=r"val: there are training records among its records.*random split"):
        refuse_shared_records(train, other, "val")


@pytest.mark.parametrize(
    ("train", "other"),
    [
        (TRAIN, REST),
        (REST, TRAIN),
        (Doubled(TRAIN), Doubled(REST)),
        (TRAIN, ConcatDataset([REST, TensorDataset(ROWS.clone())])),
        (TRAIN, Subset(WHOLE, [REST.indices[0] - 10])),
        (Subset(NUMBERED, range(5)), Subset(NUMBERED, range(5, 10))),
        (NUMBERED, Numbered()),
        (LISTED[:5], LISTED[5:]),
        (STREAM, Stream()),
        (WHOLE, None),
        (WHOLE, []),
        (Held(ROWS[:7]), Held(ROWS[7:])),
        (Held(ROWS), Held(ROWS.clone())),
        (Held(ARRAY[:5]), Held(ARRAY[5:])),
        (Held(ROWS[:7], torch.ones(3)), Held(ROWS[7:], ROWS)),
    ],
)
def test_other_records_are_allowed(train: Any, other: Any) -> None:
    refuse_shared_records(train, other, "val")


def test_rows_of_a_tensor_that_is_one_row_again_and_again_are_told_by_their_set() -> None:
    """An expanded tensor has all its rows in one place of memory."""
    train, other = (TensorDataset(torch.zeros(1, 2).expand(4, 2)) for _ in range(2))
    refuse_shared_records(train, other, "val")
    with pytest.raises(ad.InputError, match="val: "):
        refuse_shared_records(train, Subset(train, [1]), "val")


@pytest.mark.parametrize(
    ("dataset", "one", "two"),
    [
        (Subset(WHOLE, [0, 7, 3, 7]), 1, 3),
        (Subset(WHOLE, [2, -8]), 0, 1),
        (ConcatDataset([REST, REST]), 0, 3),
        (ConcatDataset([NUMBERED, Subset(NUMBERED, [4])]), 4, 10),
        (ConcatDataset([WHOLE, TensorDataset(ROWS[9:])]), 9, 10),
        (Subset(Subset(WHOLE, [5, 6, 5]), [0, 2]), 0, 1),
        (Doubled(Subset(NUMBERED, [1, 1])), 0, 1),
        (ConcatDataset([Held(ROWS), Held(ROWS)]), 0, 10),
        ([*LISTED, LISTED[2]], 2, 10),
    ],
)
def test_a_record_that_is_there_twice_is_named(dataset: Any, one: int, two: int) -> None:
    with pytest.raises(ad.InputError, match=f"mine: its items {one} and {two} are the same record.*each record once"):
        refuse_repeated(dataset, "mine")


@pytest.mark.parametrize(
    "dataset",
    [
        WHOLE,
        TRAIN,
        ConcatDataset([TRAIN, REST]),
        NUMBERED,
        LISTED,
        [1, 1, 2],
        ["a", "a"],
        STREAM,
        Held(ROWS, ROWS),
        Held(ROWS[:-1], ROWS[1:]),
        TensorDataset(torch.zeros(1, 2).expand(4, 2)),
    ],
)
def test_records_that_are_there_once_are_taken(dataset: Any) -> None:
    """Also equal ones, and those whose input is another one's target."""
    refuse_repeated(dataset, "mine")


class Listing(Dataset[Any]):
    """Files by a list of them, as of a folder of images."""

    def __init__(self, samples: Any, transform: Any = None, root: str = "", **more: Any) -> None:
        self.labels, self.samples = [0] * len(samples), samples
        self.transform, self.root = transform, root
        vars(self).update(more)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index], self.labels[index]


class Other(Listing):
    """The same files, read by another class."""


FILES = [(f"{number}.png", number % 2) for number in range(10)]


def test_the_same_files_in_two_folder_data_sets_are_the_same_records(tmp_path: Path) -> None:
    """An augmented one to train on and a plain one to test on; on disk, by any class and any list."""
    augmented, plain = Listing(FILES, abs), Listing([*FILES])
    refuse_shared_records(Subset(augmented, range(5)), Subset(plain, range(5, 10)), "val")
    pairs: list[Any] = [(augmented, Subset(plain, [9])), (Subset(augmented, range(6)), Subset(plain, range(5, 10)))]
    for number in range(10):
        (tmp_path / f"{number}.png").touch()
    names, root = [name for name, _ in FILES], str(tmp_path)
    pairs.append((Listing(names, root=root, augment=True), Other(np.array(names[:3]), root=f"{root}/", augment=False)))
    pairs.append((Listing([str(tmp_path / name) for name in names]), Other([tmp_path / name for name in names])))
    for train, other in pairs:
        with pytest.raises(ad.InputError, match="val: there are training records"):
            refuse_shared_records(train, other, "val")
    with pytest.raises(ad.InputError, match="its items 0 and 10 are the same record"):
        refuse_repeated(ConcatDataset([augmented, plain]), "mine")


@pytest.mark.parametrize(
    ("train", "other"),
    [
        (Listing(FILES, root="a"), Listing(FILES, root="b")),
        (Listing(FILES), Other(FILES)),
        (Listing(FILES, archive={"0.png": ROWS}), Listing(FILES, archive={"0.png": ROWS + 1})),
        (
            Listing(FILES, archive=dict(zip("abcdefghij", ROWS, strict=True))),
            Listing(FILES, archive=dict.fromkeys("abcdefghij")),
        ),
        (Listing(FILES, images=[*ROWS]), Listing(FILES, images=[*ROWS + 1])),
        (Listing(FILES, images=ARRAY), Listing(FILES, images=ARRAY + 1)),
        (Listing(FILES, root="data/train"), Listing(FILES, root="data/valid")),
        (Listing(FILES, train=True), Listing(FILES, train=False)),
        (Subset(WORDS := Listing(["good", "bad"] * 5), [0, 2]), Subset(WORDS, [4, 5])),
        (Listing(["fine by me " * 400, "bad"]), Listing(["fine by me " * 400, "good"])),
        (Subset(CROPS := Listing(FILES[:5] * 2), range(5)), Subset(CROPS, range(5, 10))),
    ],
)
def test_equal_names_of_other_files_and_equal_texts_are_other_records(train: Any, other: Any) -> None:
    """Names below another root or in another archive, texts and labels, and several records of a file."""
    refuse_shared_records(train, other, "val")
    refuse_repeated(train, "mine")
