"""Test records that are training records are found by their values, where values can tell."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import adadpigu as ad
from adadpigu.data.checking import Digests, digests, refuse_copies, warn_of_copies
from adadpigu.data.datasets import DataSet, TensorRecords

COPIES = "these are the training records"


def of(rows: torch.Tensor) -> Digests:
    return digests(TensorRecords(rows, rows))


def table(count: int, cells: int, seed: int) -> torch.Tensor:
    """Rows of a table with so many different ones, all as likely."""
    return torch.randint(cells, (count, 1), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cells", [4, 300, 1000, 3000, 10**9])
def test_fresh_rows_of_the_same_table_are_never_refused(cells: int) -> None:
    """False alarms: at most 1e-6 for each of 100 test sets, by Chernoff's bound."""
    for seed in range(20):
        trained = of(table(1000, cells, 2 * seed))
        for size in (1, 7, 50, 200, 1000):
            fresh = of(table(size, cells, 2 * seed + 1))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                refuse_copies(trained, fresh, size, "test")


@pytest.mark.parametrize("cells", [1000, 3000, 10**9])
def test_half_of_the_training_rows_among_test_rows_are_refused(cells: int) -> None:
    """Also where rows of the table repeat: 37 % of the training rows occur once for 1000 cells."""
    rows, fresh = table(1000, cells, 0), table(1000, cells, 1)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(2))
    mixed = torch.cat([rows[order][:500], fresh[:500]])
    with pytest.raises(ad.InputError, match=COPIES):
        refuse_copies(of(rows), of(mixed), 1000, "test")


def test_of_few_categories_the_same_rows_in_the_same_order_are_refused_and_others_are_told() -> None:
    rows = table(400, 4, 0)
    with pytest.raises(ad.InputError, match=COPIES):
        refuse_copies(of(rows), of(rows.clone()), len(rows), "test")
    for other in (table(400, 4, 1), rows[torch.randperm(400)], rows[:3], torch.zeros_like(rows)):
        with pytest.warns(UserWarning, match="of few categories"):
            refuse_copies(of(rows), of(other), len(other), "test")


@pytest.mark.parametrize("cells", [8, 16, 64])
def test_of_few_categories_all_rows_shuffled_are_refused_and_fresh_ones_never(cells: int) -> None:
    """False alarms: each category exactly as often has probability 6e-8 for 8 of them, less for more; 20 test sets."""
    rows = table(200, cells, 0)
    with pytest.raises(ad.InputError, match=COPIES):
        refuse_copies(of(rows), of(rows[torch.randperm(200)]), 200, "test")
    for seed in range(1, 21):
        with pytest.warns(UserWarning, match="of few categories"):
            refuse_copies(of(rows), of(table(200, cells, seed)), 200, "test")


@pytest.mark.parametrize("blanks", [1, 2, 100])
def test_a_test_set_of_one_row_that_training_repeats_is_told_and_not_refused(blanks: int) -> None:
    """Blank images of one class: equal to training rows, and still other records."""
    rows = torch.cat([torch.arange(1, 1000 - blanks).unsqueeze(1), torch.zeros(blanks, 1, dtype=torch.int64)])
    with pytest.warns(UserWarning, match="have the values of training records"):
        refuse_copies(of(rows), of(torch.zeros(50, 1, dtype=torch.int64)), 50, "test")


def test_records_of_another_kind_than_those_trained_on_are_no_copies() -> None:
    refuse_copies(np.arange(5), np.zeros(0, np.int64), 0, "test")
    refuse_copies(np.arange(5), np.zeros(0, np.int64), 3, "test")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_records_of_any_float_are_compared(dtype: torch.dtype) -> None:
    rows = torch.arange(8).reshape(4, 2).to(dtype)
    assert len(set(of(rows).tolist())) == 4
    assert of(rows[:0]).tolist() == []
    with pytest.raises(ad.InputError, match=COPIES):
        refuse_copies(of(rows), of(rows.flip(0)), 4, "test")


INPUTS, TARGETS = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
WHOLE = TensorDataset(INPUTS, TARGETS)


@pytest.mark.parametrize("repeated", [ConcatDataset([WHOLE, WHOLE]), Subset(WHOLE, [*range(40), 5, 5])])
def test_a_record_that_stands_there_twice_is_refused_by_train(repeated: Any) -> None:
    """An oversampled class: each of its items would be clipped by itself, so one person's record counts twice."""
    with pytest.raises(ad.InputError, match=r"are the same record.*each record once.*class weights"):
        ad.train(torch.nn.Linear(3, 2), repeated, records=40, batch_size=10, steps=2)


@pytest.mark.parametrize("test", [Subset(WHOLE, [7]), (INPUTS[20:], TARGETS[20:]), WHOLE])
def test_a_part_of_the_training_records_is_no_test_set(test: Any) -> None:
    with pytest.raises(ad.InputError, match="test: there are training records among its records"):
        ad.train(torch.nn.Linear(3, 2), WHOLE, records=40, test=test, batch_size=10, steps=2)


REALS = torch.rand(100, 8, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randint(256, (100, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (REALS.repeat(8, 1), True),
        (IMAGES.repeat(50, 1), True),
        ((REALS[:, :4] * 4).int().repeat(8, 2), False),
        (torch.eye(30).repeat(20, 1), False),
        (torch.zeros(200, 8), False),
        (REALS[:, :7].repeat(8, 1), False),
    ],
)
def test_heavier_oversampling_is_warned_of_too_and_few_categories_are_not(rows: Tensor, told: bool) -> None:
    """Every row 8 or 50 times; few categories in numbers, in one-hot columns, blank rows, and rows of few numbers.

    Which 64 images are looked at is chance. None of their 64 columns has 58 values among them with p < 1e-12.
    """
    records = TensorRecords(rows, torch.zeros(len(rows)))
    data = DataSet(name="mine", train=records, records=len(rows))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_copies(digests(records), data)
    assert ["exact copies" in str(each.message) for each in caught] == [True] * told


@pytest.mark.slow
def test_copies_by_value_are_warned_of_where_other_rows_are_distinct_and_never_refused(tmp_path: Path) -> None:
    """Oversampled rows; the rows of a table of few categories and distinct rows are taken in silence."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(40, 8, generator=generator)
    labels = torch.arange(80) % 2
    few = torch.randint(2, (80, 4), generator=generator).float().repeat(1, 2)

    def warned(inputs: Tensor, out: Path | None = None) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = ad.train(
                nn.Linear(8, 2), (inputs, labels), records=80, batch_size=16, steps=1, method="dpsgd", out=out
            )
        assert "A record there k times counts k times" in " ".join(run.privacy.statement().split())
        return [str(each.message) for each in caught if "exact copies" in str(each.message)]

    (line,) = warned(torch.cat([rows, rows]), tmp_path / "run")
    assert "weigh rare classes" in line
    assert not any("exact copies" in path.read_text(errors="ignore") for path in (tmp_path / "run").glob("*.*"))
    assert warned(few) == warned(torch.rand(80, 8, generator=generator)) == []
