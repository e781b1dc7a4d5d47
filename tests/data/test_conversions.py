"""Shipped forms become the kept form exactly; hostile ones are refused without being run or unpacked."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from frugal import MIB, frugal
from PIL import Image
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
    tiny_digits,
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


def test_a_gzipped_piece_is_not_unpacked_beyond_its_published_length() -> None:
    bomb = gzip.compress(bytes(64 * MIB))
    length = len(digits_files()[TRAIN[0]])
    with frugal():
        faults = tiny_digits().gather({f"{TRAIN[0]}.gz": lambda: bomb}, {})
    assert faults == [f"{TRAIN[0]}.gz: it unpacks to more than {length} bytes"]


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


def png_of(mode: str, size: tuple[int, int]) -> bytes:
    sheet = io.BytesIO()
    Image.new(mode, size).save(sheet, "PNG")
    return sheet.getvalue()


@pytest.mark.parametrize(
    ("mode", "size"),
    [("L", (1024, ROWS)), ("RGBA", (1024, ROWS)), ("RGB", (1024, ROWS + 1)), ("RGB", (ROWS, 1024))],
)
def test_a_sheet_of_another_size_or_mode_is_refused_by_both(mode: str, size: tuple[int, int]) -> None:
    why = f"it is {size[0]} × {size[1]} pixels of mode {mode}; allowed: 1024 × {ROWS} of mode RGB"
    with pytest.raises(SourceError, match=f"^{why}$"):
        sheet_to_cifar(png_of(mode, size), sheet_files()["test_lables.json"], batch=0, records=ROWS)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("side", [4000, 10_000])
def test_a_large_sheet_is_refused_before_it_is_decoded(side: int) -> None:
    """The larger is one that Pillow warns of."""
    png = png_of("L", (side, side))
    with frugal(), pytest.raises(SourceError, match=f"it is {side} × {side} pixels of mode L; allowed: 1024 × 4 of"):
        sheet_to_cifar(png, b"[]", batch=0, records=ROWS)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (b"[" * 200_000, "no JSON; allowed: a list of whole numbers"),
        (b'{"a":' * 100_000, "no JSON; allowed: a list of whole numbers"),
        (b"[" + b"1," * (1 << 19) + b"1]", "has 1048579 bytes; allowed: 1048576"),
        (b"7", "its labels are of type int; allowed: a list of whole numbers"),
    ],
)
def test_labels_that_nest_without_end_or_are_too_many_are_refused(labels: bytes, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        sheet_to_cifar(sheet_files()["test_batch.png"], labels, batch=0, records=ROWS)


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


def test_a_batch_that_nests_three_million_deep_is_refused_and_does_not_crash() -> None:
    """In a process of its own, which a crash would end."""
    script = """
from adadpigu.data.formats import SourceError
from adadpigu.data.plain_pickle import walk
for wrap in (b"\\x85", b"]\\x85"):
    try:
        walk(b"\\x80\\x02}(K\\x01" + wrap * 3_000_000 + b"K\\x01u.")
    except SourceError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["it has more dicts, lists and tuples than allowed: 64"] * 2


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"}K\x01\x85K\x02s.", "it has a tuple as a key; allowed: strings and whole numbers"),
        (b"}(K\x01K\x02NK\x03u.", "it has a NoneType as a key; allowed: strings and whole numbers"),
        (b"]" + b"Na" * 100_000 + b".", "more instructions than allowed: 200000"),
        (b"K\x01\x85)R.", "calls a plain value"),
        (b"cnumpy\ndtype\nU\x02u1R.", "calls a plain value"),
    ],
)
def test_keys_calls_and_lengths_that_no_official_batch_has_are_refused(payload: bytes, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        walk(payload)


def test_a_batch_as_long_as_the_official_ones_is_read() -> None:
    """10,000 records, and for each of them a file name that is memorised, as pickle does."""
    batch = {b"labels": [i % 10 for i in range(10_000)], b"filenames": [b"%d.png" % i for i in range(10_000)]}
    assert walk(pickle.dumps(batch, 3)) == batch


def _whole(size: int) -> bytes:
    return b"\x8a\x10" + size.to_bytes(16, "little", signed=True)


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ((), b"\0"),
        ((3072,), bytes(3072)),
        ((1, 3072, 1), bytes(3072)),
        ((2**32, 2**32), b""),
        ((2**70, 0), b""),
        ((-1, -3072), bytes(3072)),
    ],
)
def test_an_array_of_another_shape_is_refused(shape: tuple[int, ...], data: bytes) -> None:
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    state = b"(K\x01(" + b"".join(map(_whole, shape)) + b"t" + kind + b"\x89T" + struct.pack("<I", len(data)) + data
    payload = b"\x80\x02}(U\x06labels]K\x01aU\x04data" + made + state + b"tbu."
    with pytest.raises(SourceError, match="its array of pixels"):
        batch_to_cifar(payload)


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
