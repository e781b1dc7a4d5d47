"""Files of tensors: what was written comes back, and whatever else a file holds is refused in one line, unread."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.errors import InputError
from adadpigu.tensors import read_file, read_tensors, write_tensors

EIGHT = bytes(range(8))


def entry(start: int = 0, end: int = 8, **changed: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(end - start) // 4], "data_offsets": [start, end], **changed}


def file_of(header: object, data: bytes = EIGHT) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def twice(first: dict[str, Any], second: dict[str, Any]) -> bytes:
    return b'{"a":' + json.dumps(first).encode() + b',"a":' + json.dumps(second).encode() + b"}"


GOOD = file_of({"a": entry()})
ODD: dict[str, bytes] = {
    "nothing": b"",
    "seven bytes": b"\x02" + bytes(6),
    "no header": bytes(8),
    "a header longer than the file": struct.pack("<Q", len(GOOD)) + GOOD[8:],
    "a header of 2^63": struct.pack("<Q", 2**63) + GOOD[8:],
    "a header of -1": b"\xff" * 8 + GOOD[8:],
    "a header of NaN": struct.pack("<d", float("nan")) + GOOD[8:],
    "a header of many megabytes": file_of(b"{}" + b" " * 101_000_000, b""),
    "bytes missing": GOOD[:-1],
    "bytes too many": GOOD + b"x",
    "no JSON": file_of(b"{'a': 1}"),
    "no UTF-8": file_of(b'{"\xff": 1}'),
    "a list": file_of([]),
    "half a header": file_of(b'{"a": {"dtype": "F32", "sha'),
    "a deep nest": file_of(b'{"a":' + b"[" * 100_000),
    "a number of 5000 digits": file_of(b'{"a":' + b"9" * 5000 + b"}"),
    "one name twice, one after the other": file_of(twice(entry(), entry(8, 16)), EIGHT * 2),
    "overlapping tensors": file_of({"a": entry(), "b": entry(4, 12)}, EIGHT + bytes(4)),
    "one place for two tensors": file_of({"a": entry(), "b": entry()}),
    "a gap": file_of({"a": entry(), "b": entry(12, 16)}, EIGHT * 2),
    "a gap at the start": file_of({"a": entry(4, 8)}),
    "an end before the start": file_of({"a": entry(8, 0, shape=[2])}),
    "an unknown dtype": file_of({"a": entry(dtype="F33")}),
    "half a byte a number": file_of({"a": entry(dtype="F4", shape=[16])}),
    "a dtype that is no text": file_of({"a": entry(dtype=["F32"])}),
    "a shape below 0": file_of({"a": entry(shape=[-2])}),
    "a shape of fractions": file_of({"a": entry(shape=[2.0])}),
    "a shape of truths": file_of({"a": entry(shape=[True, 2])}),
    "a shape of NaN": file_of({"a": entry(shape=[float("nan")])}),
    "a shape that is no list": file_of({"a": entry(shape="2")}),
    "another shape than bytes": file_of({"a": entry(shape=[3])}),
    "terabytes": file_of({"a": entry(shape=[2**20, 2**22])}),
    "a product that overflows to 2": file_of({"a": entry(shape=[2**63, 2, 2])}),
    "three offsets": file_of({"a": entry(data_offsets=[0, 4, 8])}),
    "offsets below 0": file_of({"a": entry(data_offsets=[-8, 0])}),
    "a field less": file_of({"a": {"dtype": "F32", "shape": [2]}}),
    "a tensor that is a number": file_of({"a": 1}),
    "metadata of numbers": file_of({"__metadata__": {"a": 1}, "a": entry()}),
    "metadata that are a list": file_of({"__metadata__": [], "a": entry()}),
}
for name in ("x\n", "x\0", "\x1b[2Jx", "a\u202eb"):
    ODD[f"the name {name!r}"] = file_of({name: entry()})


@pytest.mark.parametrize("case", ODD)
def test_an_odd_file_is_refused_in_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    """Of what is odd about a header the library tells; what tensors may be called is our own rule."""
    words = f"names a tensor {case.removeprefix('the name ')}" if case.startswith("the name ") else "cannot be read"
    path = tmp_path / "x.safetensors"
    path.write_bytes(ODD[case])
    for read in (read_file, read_tensors):
        with pytest.raises(InputError) as caught:
            read(path, "public_model")
        message = str(caught.value)
        assert message.startswith(f"public_model={str(path)!r} {words}")
        assert len(message.splitlines()) == 1
        assert len(message) < 700


def test_the_twin_of_the_odd_files_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    expected = torch.frombuffer(bytearray(EIGHT), dtype=torch.float32)
    assert torch.equal(read_tensors(path, "model")["a"], expected)


def test_every_type_comes_back_bit_by_bit(tmp_path: Path) -> None:
    names = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 bool"
    whole = "int64 int32 int16 int8 uint64 uint32 uint16 uint8"
    bits = torch.arange(48, dtype=torch.uint8).bitwise_and(1)
    tensors = {name: bits.clone().view(getattr(torch, name)).reshape(2, -1) for name in f"{names} {whole}".split()}
    tensors["nothing"] = torch.zeros(0, 3)
    tensors["a number"] = torch.tensor(2.5)
    write_tensors(tmp_path / "x", tensors, {"key": "value"})
    found = read_tensors(tmp_path / "x", "x")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()
    assert read_file(tmp_path / "x", "x")[1] == {"key": "value"}


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused_without_a_crash(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_tensors(path, "model")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, position: int, change: int
) -> None:
    """A flipped letter of the name or byte of the data cannot be seen; the shape and the type then still fit."""
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    content = bytearray(GOOD)
    content[position] ^= change
    path.write_bytes(content)
    found = None
    with contextlib.suppress(InputError):
        found = read_tensors(path, "model")
    assert found is None or [tensor.nbytes for tensor in found.values()] == [8]


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in (
        ("pipe", "no regular file"),
        (".", "no regular file"),
        ("loop", "symbolic links"),
        ("absent", "No such file"),
    ):
        with pytest.raises(InputError, match=words):
            read_tensors(tmp_path / name, "model")


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"a": torch.ones(2)})

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    def fail_to_open(handle: int, mode: str) -> None:
        os.close(handle)
        fail()

    if call == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(os, *(("fsync", fail) if call == "fsync" else ("fdopen", fail_to_open)))
    with pytest.raises(InputError, match=r"model.safetensors' cannot be written: "):
        write_tensors(path, {"a": torch.zeros(2)})
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert read_tensors(path, "model")["a"].tolist() == [1, 1]


def test_a_file_reaches_the_disk_before_its_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, move = os.fsync, Path.replace

    def synced(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def moved(source: Path, target: Path) -> Path:
        assert source.parent == target.parent
        order.append("name")
        return move(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    write_tensors(tmp_path / "x", {"a": torch.ones(2)})
    assert order == ["file", "name", "folder"]
