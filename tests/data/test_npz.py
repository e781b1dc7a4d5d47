"""Arrays of the user's own: every number type is read as it was meant, and every bad file is refused in one line."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adadpigu.data.own import npz_dataset, read_arrays, read_inputs
from adadpigu.errors import InputError

LABELS = np.array([0, 1, 0])


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        npz_dataset(path, records=60, classes=2)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("order", ["<", ">", "="])
@pytest.mark.parametrize("kind", ["i2", "u1", "i8", "f4", "f8", "u4"])
def test_numbers_are_read_in_either_byte_order(tmp_path: Path, order: str, kind: str) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.array([[1], [2], [3]], dtype=order + kind), y=LABELS.astype(">i4"))
    data = npz_dataset(path, records=60, classes=2)
    inputs, targets = data.train.take(torch.arange(3))
    assert inputs.tolist() == [[1], [2], [3]]
    assert targets.tolist() == [0, 1, 0]


def test_a_damaged_stream_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((50, 4)), y=np.zeros(50, int))
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        begin = archive.infolist()[0].header_offset + 60
    path.write_bytes(whole[:begin] + bytes(40) + whole[begin + 40 :])
    assert "cannot be read: it is damaged, or not .npy or .npz" in refusal(path)


def test_python_objects_are_refused_for_what_they_are(tmp_path: Path) -> None:
    for name, save in (("own.npz", lambda p, a: np.savez(p, x=a, y=LABELS)), ("own.npy", np.save)):
        path = tmp_path / name
        save(path, np.array([{}, [], None], dtype=object))
        assert "Python objects are never loaded" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"\x80\x04N."])
def test_a_file_that_is_neither_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(content)
    assert "cannot be read: it is damaged, or not .npy or .npz" in refusal(path)


def test_a_file_cut_short_is_damaged_and_one_that_is_not_there_is_not(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.zeros((50, 4)), y=np.zeros(50, int))
    path.write_bytes(path.read_bytes()[:300])
    assert "it is damaged" in refusal(path)
    path.unlink()
    assert refusal(path).endswith("No such file or directory")


def test_a_member_that_is_no_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.zeros((3, 1)), y=LABELS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "hello")
    assert "'notes.txt' is no array of numbers" in refusal(path)


@pytest.mark.parametrize("name", ["x", "x_test"])
def test_an_array_of_one_number_is_no_records(tmp_path: Path, name: str) -> None:
    path = tmp_path / "own.npz"
    arrays: dict[str, Any] = {"x": np.zeros((3, 1)), "y": LABELS, "x_test": np.zeros((3, 1)), "y_test": LABELS}
    np.savez(path, **(arrays | {name: np.array(3.0)}))
    assert f"{name!r} is no array of numbers, with one row a record" in refusal(path)


def test_what_is_predicted_for_needs_records_too(tmp_path: Path) -> None:
    path = tmp_path / "new.npy"
    np.save(path, np.array(1.0))
    with pytest.raises(InputError, match="'x' is no array of numbers, with one row a record"):
        read_inputs(path)


@pytest.mark.parametrize(("name", "words"), [("", "y is torch.int64 [0]"), ("_test", "y_test is torch.int64 [0]")])
def test_a_part_without_records_is_refused(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / "own.npz"
    arrays: dict[str, Any] = {"x": np.zeros((3, 1)), "y": LABELS, "x_test": np.ones((3, 1)), "y_test": LABELS}
    np.savez(path, **(arrays | {f"x{name}": np.zeros((0, 1)), f"y{name}": LABELS[:0]}))
    assert f"{path}: {words}; allowed: a whole number a record" == refusal(path)


def test_a_plain_array_file_is_x(tmp_path: Path) -> None:
    path = tmp_path / "new.npy"
    file = io.BytesIO()
    np.save(file, np.array([[1.5]]))
    path.write_bytes(file.getvalue())
    assert {name: value.tolist() for name, value in read_arrays(path).items()} == {"x": [[1.5]]}
