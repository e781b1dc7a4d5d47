"""The two file formats the published image sets come in, idx and CIFAR binary, as numpy arrays and back.

A few lines of arithmetic each, so that no image library is needed to read what has been verified. Nothing here knows
about privacy: the arrays are records, and become sensitive as soon as they are somebody's data set.
"""

from __future__ import annotations

import math
import struct
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from adadpigu.errors import AdaDPIGUError

Pixels: TypeAlias = NDArray[np.uint8]

CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + 3 * 32 * 32
_UNSIGNED_BYTE = 0x08


class SourceError(AdaDPIGUError):
    """Bytes, or a place to get them from, that cannot be used; another source may be."""


def read_idx(payload: bytes) -> Pixels:
    """The array of an idx file of unsigned bytes: two zero bytes, type, rank, sizes as big-endian uint32, the data.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)
    """
    if len(payload) < 4 or payload[:2] != b"\0\0" or payload[2] != _UNSIGNED_BYTE:
        raise SourceError("it is not an idx file of unsigned bytes")
    rank = payload[3]
    start = 4 + 4 * rank
    if not 1 <= rank <= 4 or len(payload) < start:
        raise SourceError("its idx header is cut, or of another rank than 1 to 4")
    shape = struct.unpack(f">{rank}I", payload[4:start])
    if 0 in shape:
        raise SourceError("it holds no record")
    wanted = math.prod(shape)
    if len(payload) - start != wanted:
        raise SourceError(f"it holds {len(payload) - start} bytes where its idx header promises {wanted}")
    return np.frombuffer(payload, np.uint8, offset=start).reshape(shape)


def write_idx(array: Pixels) -> bytes:
    """The idx file of an array; `read_idx` reads it back."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, _UNSIGNED_BYTE, array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, np.uint8).tobytes()


def read_cifar(payload: bytes) -> tuple[Pixels, Pixels]:
    """Images [n, 3, 32, 32] and labels [n] of a CIFAR-10 binary batch: a label byte and 3,072 pixel bytes a record."""
    if len(payload) % _CIFAR_RECORD:
        raise SourceError(f"its {len(payload)} bytes are no whole number of {_CIFAR_RECORD}-byte records")
    rows = np.frombuffer(payload, np.uint8).reshape(-1, _CIFAR_RECORD)
    return rows[:, 1:].reshape(-1, *CIFAR_SHAPE), rows[:, 0]


def write_cifar(images: Pixels, labels: Pixels) -> bytes:
    """The CIFAR-10 binary batch of images [n, 3, 32, 32], in any shape of as many pixels, and labels [n]."""
    pixels = images.reshape(len(labels), -1)
    if pixels.shape[1] != _CIFAR_RECORD - 1:
        raise SourceError(f"its images have {pixels.shape[1]} values; allowed: {_CIFAR_RECORD - 1}")
    return np.concatenate([labels.astype(np.uint8)[:, None], pixels.astype(np.uint8)], axis=1).tobytes()
