"""Tensors in files: safetensors, read as if from a stranger, written whole or not at all.

The library checks every claim of a file's header against the file before it maps it, and allocates nothing on its
word. It stands outside the privacy line: what is stored is the caller's decision.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adadpigu.durable import replacing, writing
from adadpigu.errors import InputError, first_line, require

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
"""what a header may call a type: those that torch knows"""


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


def read_header(path: Path, what: str) -> Header:
    """What a file holds, by its header alone. `what` is the key by which messages call the file."""
    from safetensors import safe_open

    with _refusing(path, what), safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        tensors = {name: Entry(DTYPES[s.get_dtype()], tuple(s.get_shape())) for name, s in slices.items()}
        metadata = file.metadata() or {}
    odd = next((name for name in tensors if not name.isprintable()), None)
    require(odd is None, f"{what}={str(path)!r} names a tensor {str(odd)[:80]!r}; allowed: printable names")
    return Header(tensors, metadata)


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    """All tensors of a file, mapped into memory (writing to them leaves the file alone); refused where odd in any way.

    `what` is the key by which messages call the file.
    """
    from safetensors.torch import load_file

    read_header(path, what)
    with _refusing(path, what):
        found: dict[str, Tensor] = load_file(path)
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file that is there whole or not at all, also after a power cut; readable by its owner alone."""
    from safetensors.torch import save

    content = save(dict(tensors), None if metadata is None else dict(metadata))
    with writing(path), replacing(path, mode=0o600) as file:
        file.write(content)


@contextlib.contextmanager
def _refusing(path: Path, what: str) -> Iterator[None]:
    """Turns whatever the library finds wrong with a file into one line that names it."""
    from safetensors import SafetensorError

    try:
        regular = stat.S_ISREG(path.stat().st_mode)  # to open a pipe would wait for ever
        require(regular, "it is no regular file; allowed: FILE.safetensors")
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        raise InputError(f"{what}={str(path)!r} cannot be read as safetensors: {reason}") from None
