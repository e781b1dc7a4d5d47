"""From the forms in which the published bytes are shipped to the one form that is verified and kept.

gzip, CSV (a label and 784 pixels a line), PNG sheets (a row an image) and python batches; each function takes the
shipped bytes and returns idx or CIFAR binary bytes. None is trusted: the result's hash decides, not the conversion.
"""

from __future__ import annotations

import io
import json
import warnings
import zlib

import numpy as np

from adadpigu.data.formats import Pixels, SourceError, write_cifar, write_idx
from adadpigu.data.plain_pickle import read_batch

LIMIT = 1 << 28
"""the most bytes that a compressed file may become: 256 MiB, twice the longest form"""

_PIXELS = 32 * 32
_LABELS_LIMIT = 1 << 20
"""the most bytes of a list of labels; that of 50,000 has 100,001"""


def gunzip(payload: bytes, *, limit: int = LIMIT) -> bytes:
    """The decompressed bytes; a file that would become longer than `limit` is refused before it does."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(payload, limit + 1)
    except zlib.error:
        raise SourceError("it is no gzip file") from None
    if len(unpacked) > limit:
        raise SourceError(f"it unpacks to more than {limit} bytes")
    if not unpacker.eof:
        raise SourceError("its gzip stream ends early")
    return unpacked


def csv_to_idx(text: bytes, *, side: int = 28) -> tuple[bytes, bytes]:
    """Images and labels as idx files, from lines `label,pixel,…` under one line of headings."""
    if not text.partition(b"\n")[2].strip():
        raise SourceError("it holds no record")
    try:
        table = np.loadtxt(io.BytesIO(text), dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2, encoding="ascii")
    except (ValueError, UnicodeError, OverflowError):
        raise SourceError("it is no table of whole numbers from 0 to 255") from None
    if table.shape[1] != 1 + side * side:
        raise SourceError(f"its lines have {table.shape[1]} values; allowed: {1 + side * side}")
    return write_idx(table[:, 1:].reshape(-1, side, side)), write_idx(table[:, 0])


def sheet_to_cifar(png: bytes, labels: bytes, *, batch: int, records: int = 10_000) -> bytes:
    """A CIFAR-10 binary batch from a PNG, one row of 1,024 pixels an image, and a JSON list with the labels of all
    batches, of which this is the `batch`-th (counted from 0)."""
    rows = _sheet_rows(png, records)
    known = _known_labels(labels)
    here = known[batch * records : (batch + 1) * records]
    if len(here) != len(rows) or not all(isinstance(label, int) and 0 <= label < 256 for label in here):
        raise SourceError(f"it has {len(rows)} images and {len(here)} labels; allowed: {records} each")
    return write_cifar(rows.transpose(0, 2, 1), np.array(here, np.uint8))


def _sheet_rows(png: bytes, records: int) -> Pixels:
    """The pixels of a sheet, [records, 1024, 3]; its size and mode are looked at before it is decoded."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # its size is looked at below
            sheet = Image.open(io.BytesIO(png), formats=["PNG"])
        with sheet:
            if sheet.size != (_PIXELS, records) or sheet.mode != "RGB":
                raise SourceError(
                    f"it is {sheet.width} × {sheet.height} pixels of mode {sheet.mode}; allowed: {_PIXELS} × {records} "
                    "of mode RGB"
                )
            return np.asarray(sheet)
    except SourceError:
        raise
    except Exception:  # a decoder raises OSError, SyntaxError, ValueError, struct.error, zlib.error, … on damaged bytes
        raise SourceError("it is no readable PNG") from None


def _known_labels(text: bytes) -> list[object]:
    if len(text) > _LABELS_LIMIT:
        raise SourceError(f"its list of labels has {len(text)} bytes; allowed: {_LABELS_LIMIT}")
    try:
        known = json.loads(text)
    except (ValueError, RecursionError):
        raise SourceError("its list of labels is no JSON; allowed: a list of whole numbers") from None
    if not isinstance(known, list):
        raise SourceError(f"its labels are of type {type(known).__name__}; allowed: a list of whole numbers")
    return known


def batch_to_cifar(payload: bytes) -> bytes:
    """A CIFAR-10 binary batch from an official python batch, which is read without unpickling it."""
    pixels, labels = read_batch(payload)
    if len(pixels) != len(labels):
        raise SourceError(f"it has {len(pixels)} images and {len(labels)} labels; allowed: as many")
    return write_cifar(pixels, np.array(labels, np.uint8))
