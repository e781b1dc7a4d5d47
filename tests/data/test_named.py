"""Published data sets as the trainer takes them, and the split of the training records for tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_published import (
    TEST,
    TRAIN,
    digits_arrays,
    digits_files,
    photo_arrays,
    photo_files,
    put,
    tiny_digits,
    tiny_photos,
)

from adadpigu.data import DataSet, TensorRecords, all_datasets, load_dataset, training_split
from adadpigu.data.datasets import IndexedRecords
from adadpigu.data.published import CIFAR10, FASHION_MNIST, MNIST, PUBLISHED
from adadpigu.errors import InputError

pytest_plugins = ["closed_machine"]
pytestmark = pytest.mark.usefixtures("cache", "programs")


@pytest.fixture
def tiny(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts tiny data sets in the place of two real ones, whole in the cache."""
    monkeypatch.setitem(PUBLISHED, "fashion-mnist", tiny_digits())
    monkeypatch.setitem(PUBLISHED, "cifar10", tiny_photos())
    put(cache / "data" / "tiny", digits_files())
    put(cache / "data" / "photos", photo_files())


def _records(records: Any) -> tuple[np.ndarray, np.ndarray]:
    assert records.inputs.dtype == torch.float32
    assert records.targets.dtype == torch.int64
    return records.inputs.numpy(), records.targets.numpy()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", ["fashion-mnist", "fashion"])
def test_digits_are_pixels_over_255_in_the_official_order_and_split(name: str) -> None:
    data, arrays = load_dataset(name), digits_arrays()
    for part, (images, labels) in ((data.train, TRAIN), (data.test, TEST)):
        inputs, targets = _records(part)
        assert np.array_equal(inputs, arrays[images][:, None].astype(np.float32) / np.float32(255))
        assert np.array_equal(targets, arrays[labels])
    assert (data.records, data.classes, data.shape) == (6, 10, (1, 28, 28))
    assert data.public == ("pixel range 0 to 255", "10 classes", "6 records")
    assert isinstance(data.train, TensorRecords)
    assert data.train.published


@pytest.mark.usefixtures("tiny")
def test_photos_are_pixels_over_255_in_the_official_order_and_split() -> None:
    data = load_dataset("cifar10")
    *train, test = photo_arrays().values()
    for part, batches in ((data.train, train), (data.test, [test])):
        inputs, targets = _records(part)
        assert np.array_equal(inputs, np.concatenate([b[0] for b in batches]).astype(np.float32) / np.float32(255))
        assert np.array_equal(targets, np.concatenate([b[1] for b in batches]))
    assert (data.records, data.classes, data.shape) == (20, 10, (3, 32, 32))


def test_a_data_set_that_cannot_be_had_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PUBLISHED, "mnist", tiny_digits(name="mnist"))
    with pytest.raises(InputError, match="`adadpigu data get mnist --from FOLDER`"):
        load_dataset("mnist")
    out, err = capsys.readouterr()
    assert out == ""
    assert "mnist: trying the official download from 127.0.0.1:1" in err


def test_declared_facts_that_contradict_are_refused_before_anything_is_fetched(cache: Path) -> None:
    with pytest.raises(InputError, match="records=5 contradicts the 60000 that 'mnist' declares"):
        load_dataset("mnist", records=5)
    with pytest.raises(InputError, match="classes=5 contradicts the 10 that 'fashion' declares"):
        load_dataset("fashion", classes=5)
    assert not cache.exists()


def test_the_named_data_sets_are_described_consistently() -> None:
    """Sizes follow from the formats: 4 + 4·rank bytes before idx data, 1 + 3,072 bytes a CIFAR-10 record."""
    assert all_datasets() == ("digits", "mnist", "fashion-mnist", "cifar10")
    for published in (MNIST, FASHION_MNIST):
        assert [p.name for p in published.pieces] == [*published.train, *published.test]
        assert [p.size for p in published.pieces] == [16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000]
    assert [p.size for p in CIFAR10.pieces] == [10_000 * 3073] * 6
    for published in (MNIST, FASHION_MNIST, CIFAR10):
        hashes = {piece.sha256 for piece in published.pieces}
        assert len(hashes) == len(published.pieces)
        assert all(len(bytes.fromhex(found)) == 32 for found in hashes)
        given = {name for recipe in published.recipes for name in recipe.gives}
        assert given == {piece.name for piece in published.pieces} == {*published.train, *published.test}
    assert not {p.sha256 for p in MNIST.pieces} & {p.sha256 for p in FASHION_MNIST.pieces}


def _numbered(records: int, length: int | None = None) -> DataSet:
    """Records whose input is their own position."""
    positions = torch.arange(records if length is None else length)
    facts = ("10 classes", f"{records:,} records")
    train = TensorRecords(positions.float()[:, None], positions % 10)
    return DataSet(name="numbered", train=train, records=records, classes=10, shape=(1,), public=facts)


@given(records=st.integers(2, 60), held_out=st.integers(1, 59), seed=st.integers(0, 2**32 - 1))
def test_a_split_parts_the_training_records_without_loss(records: int, held_out: int, seed: int) -> None:
    if held_out >= records:
        with pytest.raises(InputError, match=f"held_out={held_out}"):
            training_split(_numbered(records), held_out, seed)
        return
    split = training_split(_numbered(records), held_out, seed)
    assert isinstance(split.train, TensorRecords)
    assert isinstance(split.test, TensorRecords)
    assert split.records == records - held_out
    together = torch.cat([split.train.inputs, split.test.inputs]).flatten()
    assert together.sort().values.tolist() == list(range(records))
    for part in (split.train, split.test):
        assert torch.equal(part.inputs.flatten().long() % 10, part.targets)


def _held(data: DataSet, held_out: int, seed: int = 0) -> set[float]:
    test = training_split(data, held_out, seed).test
    assert isinstance(test, TensorRecords)
    return set(test.inputs.flatten().tolist())


def test_about_as_many_as_asked_for_are_held_out() -> None:
    """5,000 of 60,000 by independent lots: within 410 of it, 6 standard deviations."""
    assert abs(len(_held(_numbered(60_000), 5_000)) - 5_000) < 410


def test_one_record_more_or_less_moves_no_other_record_across_the_split() -> None:
    whole = _numbered(300)
    held = _held(whole, 60)
    assert held == _held(whole, 60) != _held(whole, 60, seed=1)
    assert isinstance(whole.train, TensorRecords)
    for removed in (0, 150, 299):
        kept = torch.arange(300) != removed
        fewer = replace(whole, train=TensorRecords(whole.train.inputs[kept], whole.train.targets[kept]))
        assert _held(fewer, 60) == held - {float(removed)}


def test_a_split_declares_its_own_record_count_and_stays_as_published_as_it_was() -> None:
    split = training_split(_numbered(1_100), 100, seed=3)
    assert split.public == ("10 classes", "1,000 records (about 100 more held out by their hash, seed 3)")
    assert (split.classes, split.shape, split.name) == (10, (1,), "numbered-split")
    assert isinstance(split.train, TensorRecords)
    assert not split.train.published
    known = TensorRecords(torch.rand(50, 1), torch.zeros(50).long(), published=True)
    again = training_split(replace(_numbered(50), train=known), 10).train
    assert isinstance(again, TensorRecords)
    assert again.published


def test_a_split_of_what_cannot_be_split_is_refused() -> None:
    class Pairs(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1), 0

    with pytest.raises(InputError, match="IndexedRecords cannot be split; allowed: two tensors"):
        training_split(DataSet(name="pairs", train=IndexedRecords(Pairs()), records=3), 1)
    for held_out in (0, -1, 10, 11):
        with pytest.raises(InputError, match=f"held_out={held_out} of 'numbered'; allowed: 1 to 9"):
            training_split(_numbered(10), held_out)
    with pytest.raises(InputError, match="seed=-1"):
        training_split(_numbered(10), 1, seed=-1)
