"""Shipped forms become the kept form exactly; hostile ones are refused without being run or unpacked."""

from __future__ import annotations

import gzip
import os
import pickle
from typing import Any

import numpy as np
import pytest
from tiny_published import (
    ROWS,
    TEST,
    TRAIN,
    csv_files,
    digits_files,
    photo_arrays,
    photo_files,
    python2_batch,
    sheet_files,
)

from adadpigu.data.conversions import batch_to_cifar, csv_to_idx, gunzip, sheet_to_cifar
from adadpigu.data.formats import SourceError
from adadpigu.data.plain_pickle import read_batch, walk


def test_gunzip_gives_back_what_was_compressed_and_refuses_the_rest() -> None:
    payload = bytes(range(256)) * 50
    packed = gzip.compress(payload)
    assert gunzip(packed) == payload
    assert gunzip(packed, limit=len(payload)) == payload
    for broken, why in ((packed[:-9], "ends early"), (payload, "no gzip"), (b"", "ends early")):
        with pytest.raises(SourceError, match=why):
            gunzip(broken)
    with pytest.raises(SourceError, match="more than 12799 bytes"):
        gunzip(packed, limit=len(payload) - 1)


def test_tables_become_the_same_idx_files() -> None:
    for csv, names in (("mnist_train.csv", TRAIN), ("mnist_test.csv", TEST)):
        assert csv_to_idx(csv_files()[csv]) == tuple(digits_files()[name] for name in names)


@pytest.mark.parametrize("text", [b"", b"label\n", b"label,a\n1,2\n", b"a\nx,y\n", b"a\n1,300\n", b"a\n\xff\n"])
def test_a_table_of_another_form_is_refused(text: bytes) -> None:
    with pytest.raises(SourceError):
        csv_to_idx(text)


def test_sheets_become_the_same_batches() -> None:
    files = sheet_files()
    for position, name in enumerate(photo_arrays()):
        labels, batch = ("test_lables.json", 0) if name == "test_batch" else ("train_lables.json", position)
        made = sheet_to_cifar(files[f"{name}.png"], files[labels], batch=batch, records=ROWS)
        assert made == photo_files()[f"{name}.bin"]


@pytest.mark.parametrize("labels", [b"[1, 2]", b"{}", b"not json", b'["a", "b", "c", "d"]', b"[1, 2, 3, 256]"])
def test_a_sheet_with_other_labels_is_refused(labels: bytes) -> None:
    with pytest.raises(SourceError):
        sheet_to_cifar(sheet_files()["test_batch.png"], labels, batch=0, records=ROWS)


def test_a_broken_sheet_is_refused() -> None:
    for png in (b"", b"GIF89a", sheet_files()["test_batch.png"][:200]):
        with pytest.raises(SourceError, match="PNG"):
            sheet_to_cifar(png, sheet_files()["test_lables.json"], batch=0, records=ROWS)


def test_a_python_batch_reads_as_pickle_reads_it() -> None:
    """The oracle unpickles a file that the test itself has assembled."""
    images, labels = photo_arrays()["data_batch_1"]
    payload = python2_batch(images, labels.tolist())
    oracle = pickle.loads(payload, encoding="bytes")
    found, found_labels = read_batch(payload)
    assert np.array_equal(oracle[b"data"], images.reshape(ROWS, -1))
    assert np.array_equal(found, oracle[b"data"])
    assert found_labels == oracle[b"labels"]
    assert batch_to_cifar(payload) == photo_files()["data_batch_1.bin"]


@pytest.mark.parametrize("value", [{b"a": [1, 2, (3, True, None)]}, [], {}, (b"x", -5, 70000), {b"k": {b"n": []}}])
def test_plain_values_are_walked_as_pickle_loads_them(value: Any) -> None:
    assert walk(pickle.dumps(value, 3)) == value


class _Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_does_nothing(protocol: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="no official batch does"):
        walk(pickle.dumps(_Harm(), protocol))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x80\x02", b".", b"}b.", b"t.", b"(s.", b"h\x05.", b"garbage", pickle.dumps(3), pickle.dumps({b"data": 1})],
)
def test_a_broken_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(SourceError):
        read_batch(payload)


def test_an_array_that_is_not_as_long_as_it_says_is_refused() -> None:
    images, labels = photo_arrays()["data_batch_1"]
    whole = python2_batch(images, labels.tolist())
    assert whole.count(b"M\x04\x00") == 1
    with pytest.raises(SourceError, match="not as long"):
        read_batch(whole.replace(b"M\x04\x00", b"M\x05\x00"))
    with pytest.raises(SourceError, match="unknown form"):
        read_batch(whole.replace(b"U\x02u1", b"U\x02i1"))
    with pytest.raises(SourceError, match="images and 3 labels"):
        batch_to_cifar(python2_batch(images, labels.tolist()[:3]))
