"""Features of a whole data set, computed once and kept on disk. As sensitive as the records they come from.

A file is named by a SHA-256 over the inputs and the transform's signature, and holds one of its own content, so that a
damaged file is found and made again. The caller decides what is kept: published data only.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from adadpigu.data.cache import atomic_write, locked
from adadpigu.errors import InputError
from adadpigu.tensors import digest, raw_bytes, read_file

Progress = Callable[[int, int], None]  # told how many records are done, and of how many

_NAME = "features"


class CacheWarning(UserWarning):
    """Features had to be computed again, or could not be kept."""


def cached(
    inputs: Tensor,
    transform: nn.Module,
    *,
    folder: Path,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The features [n, ...] of inputs [n, ...], from the folder or computed and put there; float32, not on a GPU.

    `transform` is fixed, treats each record on its own and has a `signature` that changes when its values do.
    """
    compute = partial(computed, inputs, transform, device=device, progress=progress)
    path = folder / f"{digest([(_NAME, inputs)], str(transform.signature))}.safetensors"
    found = _load(path, _warn)
    if found is not None:
        return found
    try:
        with locked(path.with_suffix(".lock")):
            found = _load(path, lambda _: None)  # another process may have made it while this one waited
            if found is None:
                found = compute()
                _store(path, found)
    except InputError as error:  # the folder cannot be written
        _warn(f"features are computed but not kept: {error}")
    return compute() if found is None else found


def at_once(device: torch.device) -> int:
    """How many records are transformed together."""
    return 4096 if device.type == "cuda" else 500


def computed(
    inputs: Tensor,
    transform: nn.Module,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    kept_on: torch.device | None = None,
) -> Tensor:
    """The features of inputs, in chunks on a device, as float32 in main memory or `kept_on` another device."""
    device = device or torch.device("cpu")
    transform.to(device)
    chunk = at_once(device)
    with torch.no_grad():
        empty = transform(inputs[:0].to(device))
        made = torch.empty(len(inputs), *empty.shape[1:], dtype=torch.float32, device=kept_on)
        for start in range(0, len(inputs), chunk):
            part = inputs[start : start + chunk]
            made[start : start + chunk] = transform(part.to(device))
            if progress is not None:
                progress(start + len(part), len(inputs))
    return made


def _load(path: Path, warn: Callable[[str], None]) -> Tensor | None:
    """The features in a file, mapped into memory; None where the file is absent or damaged."""
    try:
        if not path.exists():
            return None
        tensors, told = read_file(path, "features")
        found = tensors[_NAME]
        if told.get("key") == path.stem and told.get("sha256") == digest([(_NAME, found)]):
            return found
        reason = "its content is not what was written"
    except (OSError, InputError, KeyError) as error:
        reason = " ".join(str(error).split())
    warn(f"features in {str(path)!r} are damaged and computed again: {reason}")
    return None


def _store(path: Path, features: Tensor) -> None:
    """Writes a safetensors file by hand, so that no second copy of the features is held."""
    header = {
        "__metadata__": {"key": path.stem, "sha256": digest([(_NAME, features)])},
        _NAME: {"dtype": "F32", "shape": list(features.shape), "data_offsets": [0, features.nbytes]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(raw_bytes(features))

    atomic_write(path, write)


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=3)
