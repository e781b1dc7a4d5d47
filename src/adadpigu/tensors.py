"""Tensors in files: safetensors, read as if from a stranger, written whole or not at all.

The library checks every claim of a file's header against the file before it maps it, and allocates nothing on its
word. It stands outside the privacy line: what is stored is the caller's decision.
"""

import hashlib
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from adadpigu.durable import replacing, writing
from adadpigu.errors import InputError, first_line, require


def digest(named: Iterable[tuple[str, Tensor]], start: str = "") -> str:
    """A SHA-256 over tensors with their names, types and shapes, in the order given, after the text `start`."""
    made = hashlib.sha256(start.encode())
    for name, value in named:
        made.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        made.update(raw_bytes(value))
    return made.hexdigest()


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it is contiguous in main memory."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    """All tensors of a file, mapped into memory: writing to them leaves the file alone. `what` names it in errors."""
    return read_file(path, what)[0]


def read_file(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, and its metadata; whatever is wrong with it becomes one line that names it."""
    from safetensors import SafetensorError, safe_open

    try:
        # to open a pipe would wait for ever
        require(stat.S_ISREG(path.stat().st_mode), "it is no regular file; allowed: FILE.safetensors")
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            packed = next((n for n, v in tensors.items() if list(v.shape) != file.get_slice(n).get_shape()), None)
            require(packed is None, f"tensor {str(packed)[:80]!r} packs two numbers into a byte; allowed: whole bytes")
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        raise InputError(f"{what}={str(path)!r} cannot be read as safetensors: {reason}") from None
    odd = next((name for name in tensors if not name.isprintable()), None)
    require(odd is None, f"{what}={str(path)!r} names a tensor {str(odd)[:80]!r}; allowed: printable names")
    return tensors, metadata


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file that is there whole or not at all, also after a power cut; readable by its owner alone."""
    from safetensors.torch import save

    content = save(dict(tensors), None if metadata is None else dict(metadata))
    with writing(path), replacing(path, mode=0o600) as file:
        file.write(content)
