"""The kept formats, against files assembled from their descriptions; the shipped ones become them exactly."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays
from tiny_published import (
    ROWS,
    TEST,
    TRAIN,
    csv_files,
    digits_files,
    idx_file,
    photo_arrays,
    photo_files,
    python2_batch,
    sheet_files,
    tiny_digits,
    tiny_photos,
)

from adadpigu.data.formats import (
    batch_to_cifar,
    csv_to_idx,
    read_cifar,
    read_idx,
    sheet_to_cifar,
    write_cifar,
    write_idx,
)


@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_idx_files_are_read_and_written_as_described(array: np.ndarray) -> None:
    assert np.array_equal(read_idx(idx_file(array)), array)
    assert write_idx(array) == idx_file(array)


def test_cifar_batches_are_read_and_written_as_described() -> None:
    for name, (images, labels) in photo_arrays().items():
        found_images, found_labels = read_cifar(photo_files()[f"{name}.bin"])
        assert np.array_equal(found_images, images)
        assert np.array_equal(found_labels, labels)
        assert write_cifar(images, labels) == photo_files()[f"{name}.bin"]


def test_tables_become_the_same_idx_files() -> None:
    for csv, names in (("mnist_train.csv", TRAIN), ("mnist_test.csv", TEST)):
        assert csv_to_idx(csv_files()[csv]) == tuple(digits_files()[name] for name in names)


def test_sheets_become_the_same_batches() -> None:
    files = sheet_files()
    for position, name in enumerate(photo_arrays()):
        labels, batch = ("test_lables.json", 0) if name == "test_batch" else ("train_lables.json", position)
        made = sheet_to_cifar(files[f"{name}.png"], files[labels], batch=batch, records=ROWS)
        assert made == photo_files()[f"{name}.bin"]


def test_a_python_batch_reads_as_pickle_reads_it() -> None:
    """The oracle unpickles a file that the test itself has assembled."""
    images, labels = photo_arrays()["data_batch_1"]
    payload = python2_batch(images, labels.tolist())
    oracle = pickle.loads(payload, encoding="bytes")
    assert np.array_equal(oracle[b"data"], images.reshape(ROWS, -1))
    assert batch_to_cifar(payload) == photo_files()["data_batch_1.bin"]


class _Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_does_nothing(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    batch = {b"data": _Harm(), b"labels": [1]}
    faults = tiny_photos().gather({"data_batch_1": lambda: pickle.dumps(batch, protocol)}, {})
    assert len(faults) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        (f"{TRAIN[0]}.gz", b"no gzip"),
        (f"{TRAIN[0]}.gz", gzip.compress(bytes(1 << 20))),
        (f"{TRAIN[0]}.gz", gzip.compress(digits_files()[TRAIN[0]])[:-9]),
        ("mnist_train.csv", b"label,a\n1,2\n"),
        ("mnist_train.csv", b"a\nx,y\n"),
        ("mnist_train.csv", b"a\n\xff\n"),
        (TRAIN[0], b"other bytes"),
    ],
)
def test_bytes_of_another_form_give_no_piece_and_are_named(name: str, payload: bytes) -> None:
    """A stream that was cut but gave all of its bytes is as good as whole: the hash decides."""
    pieces: dict[str, bytes] = {}
    faults = tiny_digits().gather({name: lambda: payload}, pieces)
    assert all(fault.startswith(f"{name}: ") for fault in faults)
    assert bool(faults) != bool(pieces)


@pytest.mark.parametrize("labels", [b"[1, 2]", b"{}", b"not json", b'["a", "b", "c", "d"]', b"[1, 2, 3, 256]"])
def test_broken_photos_give_no_piece_and_are_named(labels: bytes) -> None:
    files = sheet_files()
    for png in (files["test_batch.png"], b"GIF89a", files["test_batch.png"][:200]):
        sheet: Callable[[], bytes] = partial(bytes, png)
        (fault,) = tiny_photos().gather({"test_batch.png": sheet, "test_lables.json": lambda: labels}, {})
        assert fault.startswith("test_batch.png: it cannot be read (")
    for payload in (b"", b"\x80\x02", b"garbage", pickle.dumps(3), pickle.dumps({b"data": 1})):
        (fault,) = tiny_photos().gather({"test_batch": partial(bytes, payload)}, {})
        assert fault.startswith("test_batch: it cannot be read (")
