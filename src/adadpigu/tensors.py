"""Tensors in files: safetensors, read as if from a stranger, written whole or not at all.

A file is eight bytes (the header's length), a JSON header (name, type, shape and place of each tensor), and bytes.
Every claim of the header is checked against the file before the library maps it: nothing is allocated on its word.
It stands outside the privacy line: what is stored is the caller's decision.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from torch import Tensor

from adadpigu.durable import sync_folder
from adadpigu.errors import InputError, first_line

MOST_HEADER = 1 << 24
"""bytes of a header: about a hundred thousand tensors"""
MOST_DIMENSIONS = 64
"""of a tensor; torch's own limit for most operations"""

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""what a header may call a type: whole bytes each, and known to torch"""

_PREFIX = 8
_METADATA = "__metadata__"
_LARGEST = 2**63 - 1


def digest(named: Iterable[tuple[str, Tensor]], start: str = "") -> str:
    """A SHA-256 over tensors with their names, types and shapes, in the order given, after the text `start`."""
    made = hashlib.sha256(start.encode())
    for name, value in named:
        made.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        made.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


@dataclass(frozen=True)
class Entry:
    """What a header says of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """What a file holds, found to agree with its size."""

    tensors: Mapping[str, Entry]
    metadata: Mapping[str, str]


class _FormatError(Exception):
    """Why a file is refused; becomes an `InputError` that names it."""


def read_header(path: Path, what: str) -> Header:
    """What a file holds, by its header alone. `what` is the key by which messages call the file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _FormatError("it is no regular file; allowed: FILE.safetensors")
        with path.open("rb") as file:
            return _header(file)
    except _FormatError as refused:
        _refuse(path, what, str(refused))
    except OSError as error:
        _refuse(path, what, error.strerror or type(error).__name__)


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    """All tensors of a file, mapped into memory (writing to them leaves the file alone); refused where odd in any way.

    `what` is the key by which messages call the file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    header = read_header(path, what)
    try:
        found: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        _refuse(path, what, first_line(error))
    if {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in found.items()} != header.tensors:
        _refuse(path, what, "it changed while it was read")
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file that is there whole or not at all, also after a power cut; readable by its owner alone."""
    from safetensors.torch import save

    content = save(dict(tensors), None if metadata is None else dict(metadata))
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{str(path)!r} cannot be written: {reason.lower()}") from error


def _refuse(path: Path, what: str, reason: str) -> NoReturn:
    raise InputError(f"{what}={str(path)!r} cannot be read as safetensors: {reason}") from None


def _header(file: BinaryIO) -> Header:
    size = os.fstat(file.fileno()).st_size
    start = file.read(_PREFIX)
    if len(start) < _PREFIX:
        raise _FormatError(f"it has {size} bytes; allowed: at least {_PREFIX}, a header and what that names")
    length = int.from_bytes(start, "little")
    most = min(MOST_HEADER, size - _PREFIX)
    if length > most:
        raise _FormatError(f"its header claims {length} bytes in a file of {size}; allowed here: up to {most}")
    table = _parsed(file.read(length))
    metadata = table.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _FormatError(f"its {_METADATA} is odd; allowed: a table of strings")
    placed = {name: _placed(name, told) for name, told in table.items()}
    _check_places(placed, size - _PREFIX - length)
    return Header({name: entry for name, (entry, _) in placed.items()}, metadata)


def _parsed(text: bytes) -> dict[str, object]:
    if not text.startswith(b"{"):
        raise _FormatError("it has no header; allowed: a JSON object first")
    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it nests too deep" if isinstance(error, RecursionError) else first_line(error)
        raise _FormatError(f"its header is no JSON ({reason})") from None
    assert isinstance(table, dict)  # it starts with a brace
    return table


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _FormatError(f"its header has {_shown(twice)} twice; allowed: each name once")
    return table


def _no_constant(text: str) -> NoReturn:
    raise _FormatError(f"its header holds {text}; allowed: whole numbers")


def _placed(name: str, told: object) -> tuple[Entry, tuple[int, int]]:
    """A tensor's type and shape, and where its bytes begin and end."""
    _check_name(name)
    if not isinstance(told, dict) or told.keys() != {"dtype", "shape", "data_offsets"}:
        raise _FormatError(f"{_shown(name)} is not described by exactly dtype, shape and data_offsets")
    dtype, shape, place = told["dtype"], told["shape"], told["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _FormatError(f"{_shown(name)} has dtype {_shown(dtype)}; allowed: {', '.join(DTYPES)}")
    if not _are_whole(shape) or len(shape) > MOST_DIMENSIONS:
        raise _FormatError(f"{_shown(name)} has shape {_shown(shape)}; allowed: up to {MOST_DIMENSIONS} whole numbers")
    if not _are_whole(place) or len(place) != 2:
        raise _FormatError(f"{_shown(name)} has data_offsets {_shown(place)}; allowed: two whole numbers")
    width = DTYPES[dtype].itemsize
    if place[1] - place[0] != math.prod(shape) * width or math.prod(max(1, n) for n in shape) * width > _LARGEST:
        raise _FormatError(
            f"{_shown(name)} of {dtype} and shape {_shown(shape)} does not fit data_offsets {_shown(place)}"
        )
    return Entry(DTYPES[dtype], tuple(shape)), (place[0], place[1])


def _check_name(name: str) -> None:
    """A name may one day become a path or a line of a terminal: it must be harmless as either."""
    parts = re.split(r"[/\\]", name)
    if not name or not name.isprintable() or ".." in parts or parts[0] == "" or re.match(r"[A-Za-z]:", name):
        raise _FormatError(f"it names a tensor {_shown(name)}; allowed: printable names that lead to no other folder")


def _check_places(placed: Mapping[str, tuple[Entry, tuple[int, int]]], size: int) -> None:
    """Tensors must lie one after the other from the first byte to the last."""
    end = 0
    for name, (_, place) in sorted(placed.items(), key=lambda item: item[1][1]):
        if place[0] != end:
            odd = "overlaps another" if place[0] < end else f"leaves {place[0] - end} bytes unused before it"
            raise _FormatError(f"{_shown(name)} {odd}; allowed: one after the other")
        end = place[1]
    if end != size:
        raise _FormatError(f"its tensors take {end} bytes and {size} are there; allowed: as many")


def _are_whole(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or a list in a list in a list …
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"
