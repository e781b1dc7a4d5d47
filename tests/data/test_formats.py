"""The two kept formats, against files assembled from their descriptions."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from tiny_published import idx_file, photo_arrays, photo_files

from adadpigu.data.formats import SourceError, read_cifar, read_idx, write_cifar, write_idx


@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_idx_files_are_read_and_written_as_described(array: np.ndarray) -> None:
    assert np.array_equal(read_idx(idx_file(array)), array)
    assert write_idx(array) == idx_file(array)


@given(st.one_of(st.binary(max_size=40), st.binary(max_size=24).map(lambda tail: b"\0\0\x08" + tail)))
def test_no_bytes_crash_the_idx_reader(payload: bytes) -> None:
    with contextlib.suppress(SourceError):
        assert idx_file(read_idx(payload)) == payload


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "not an idx file"),  # floats
        (b"\0\0\x08\x03\0\0\0\1", "header"),
        (b"\0\0\x08\x00x", "rank"),
        (b"\0\0\x08\xff" + bytes(4 * 255), "rank"),
        (b"\0\0\x08\x04" + bytes(4) + b"\xff" * 12, "no record"),
        (idx_file(np.zeros((2, 3), np.uint8))[:-1], "5 bytes where its idx header promises 6"),
        (idx_file(np.zeros((2, 3), np.uint8)) + b"x", "7 bytes where its idx header promises 6"),
    ],
)
def test_a_file_that_is_not_idx_or_not_whole_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        read_idx(payload)


def test_cifar_batches_are_read_and_written_as_described() -> None:
    for name, (images, labels) in photo_arrays().items():
        found_images, found_labels = read_cifar(photo_files()[f"{name}.bin"])
        assert np.array_equal(found_images, images)
        assert np.array_equal(found_labels, labels)
        assert write_cifar(images, labels.astype(np.uint8)) == photo_files()[f"{name}.bin"]


def test_a_cut_cifar_batch_is_refused() -> None:
    with pytest.raises(SourceError, match="3073-byte records"):
        read_cifar(photo_files()["test_batch.bin"][:-1])
    with pytest.raises(SourceError, match="3072"):
        write_cifar(np.zeros((2, 3, 28, 28), np.uint8), np.zeros(2, np.uint8))
