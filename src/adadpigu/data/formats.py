"""File formats of published image sets: idx, CIFAR binary, gzip, CSV, PNG sheets, python batches; tar, zip, Debian.

A conversion checks nothing: any error means that the bytes are no such file, and the pinned hash of the result decides.
Members of archives are read into memory by their base name; no path of an archive is used.
"""

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adadpigu.errors import AdaDPIGUError, first_line

Pixels: TypeAlias = NDArray[np.uint8]

_CIFAR_SHAPE = (3, 32, 32)
_UNSIGNED_BYTE = 0x08
_AR_MAGIC = b"!<arch>\n"


class SourceError(AdaDPIGUError):
    """Bytes, or a place to get them from, that cannot be used; another source may be."""


def read_idx(payload: bytes) -> Pixels:
    """The array of an idx file of unsigned bytes: two zero bytes, type, rank, sizes as big-endian uint32, the data."""
    rank = payload[3]
    return np.frombuffer(payload, np.uint8, offset=4 + 4 * rank).reshape(struct.unpack_from(f">{rank}I", payload, 4))


def write_idx(array: Pixels) -> bytes:
    """The idx file of an array; `read_idx` reads it back."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, _UNSIGNED_BYTE, array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, np.uint8).tobytes()


def read_cifar(payload: bytes) -> tuple[Pixels, Pixels]:
    """Images [n, 3, 32, 32] and labels [n] of a CIFAR-10 binary batch: a label byte and 3,072 pixel bytes a record."""
    rows = np.frombuffer(payload, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].reshape(-1, *_CIFAR_SHAPE), rows[:, 0]


def write_cifar(pixels: Pixels, labels: Any) -> bytes:
    """The CIFAR-10 binary batch of images, in any shape of 3,072 pixels a record, and labels."""
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels.reshape(-1, 3072)], axis=1).tobytes()


def csv_to_idx(text: bytes, *, side: int = 28) -> tuple[bytes, bytes]:
    """Images and labels as idx files, from lines `label,pixel,…` under one line of headings."""
    table = np.loadtxt(io.BytesIO(text), dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2, encoding="ascii")
    return write_idx(table[:, 1:].reshape(-1, side, side)), write_idx(table[:, 0])


def sheet_to_cifar(png: bytes, labels: bytes, *, batch: int, records: int = 10_000) -> bytes:
    """A CIFAR-10 binary batch from a PNG, one row of 1,024 pixels an image, and a JSON list with the labels of all
    batches, of which this is the `batch`-th (counted from 0)."""
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=["PNG"]) as sheet:
        rows = np.asarray(sheet).reshape(records, 1024, 3)
    return write_cifar(rows.transpose(0, 2, 1), json.loads(labels)[batch * records : (batch + 1) * records])


def batch_to_cifar(payload: bytes) -> bytes:
    """A CIFAR-10 binary batch from an official python batch, a pickle of which nothing is called."""
    batch = _BatchUnpickler(io.BytesIO(payload), encoding="bytes").load()
    _, shape, _, _, data = batch[b"data"].state
    return write_cifar(np.frombuffer(data, np.uint8).reshape(shape), batch[b"labels"])


class _Described:
    """Stands for an array, or its type, of a python batch: keeps what the file says of it."""

    state: Any

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


class _BatchUnpickler(pickle.Unpickler):
    """Builds plain values only: each name that the file asks for becomes a description, and none is imported."""

    def find_class(self, module: str, name: str) -> type[_Described]:
        return _Described


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The wanted members by base name; of two with one name, the first."""
    found: dict[str, bytes] = {}
    try:
        with path.open("rb") as file:
            for member, opened in _zip(file) if zipfile.is_zipfile(file) else _tar(_data_of_deb(file)):
                name = PurePosixPath(member).name
                if name in wanted and name not in found:
                    with opened() as content:
                        found[name] = content.read()
    except Exception as error:  # TarError, BadZipFile, LZMAError, zlib.error, EOFError, a password, the disk, …
        raise SourceError(f"{path.name} is damaged, or no .tar, .zip, .whl or .deb ({first_line(error)})") from None
    return found


def _zip(file: BinaryIO) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            yield member.filename, partial(archive.open, member)


def _tar(file: BinaryIO) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.isreg():
                yield member.name, partial(archive.extractfile, member)  # type: ignore[misc]


def _data_of_deb(file: BinaryIO) -> BinaryIO:
    """The `data.tar` of a Debian package, an `ar` archive of 60-byte headers and padded members; else the file."""
    file.seek(0)
    if file.read(len(_AR_MAGIC)) == _AR_MAGIC:
        while header := file.read(60):
            size = int(header[48:58])
            if header.startswith(b"data.tar"):
                return io.BytesIO(file.read(size))
            file.seek(size + size % 2, io.SEEK_CUR)
    file.seek(0)
    return file
