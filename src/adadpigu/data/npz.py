"""The user's own records in an `.npz` file: arrays `x`, `y` and optionally `x_test`, `y_test`. No pickle is loaded.

What is public about them (record count, number of classes) is declared by the user, never read off the records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.description import ArrayFacts
from adadpigu.errors import InputError

_MAGICS = (b"PK", b"\x93NUMPY")


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of an `.npz` (by name) or `.npy` (as 'x') file; float64 becomes float32."""
    tensors: dict[str, Tensor] = {}
    for name, array in _loaded(path).items():
        if not isinstance(array, np.ndarray):
            raise InputError(f"{path}: {name!r} is no array; allowed: arrays of numbers")
        if array.dtype.kind not in "fiub":
            raise InputError(f"{path}: array {name!r} has type {array.dtype}; allowed: numbers")
        if name in ("x", "x_test") and array.ndim == 0:
            raise InputError(f"{path}: array {name!r} has no records dimension; allowed: [records, ...]")
        native = array.dtype.newbyteorder("=")  # the only order that torch takes
        wanted = np.float32 if array.dtype.kind == "f" else np.int64 if name.startswith("y") else native
        tensors[name] = torch.from_numpy(np.ascontiguousarray(array.astype(wanted)))
    return tensors


def _loaded(path: Path) -> dict[str, object]:
    """What a file holds, by name. A file that cannot be read becomes an error of one line that names it."""
    refusal = f"file={str(path)!r} cannot be read as .npy or .npz"
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if not start.startswith(_MAGICS):
            raise InputError(f"{refusal}: it is neither")
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"x": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except InputError:
        raise
    except Exception as error:  # OSError, BadZipFile, zlib.error, EOFError, ValueError, a password, no memory for it, …
        raise InputError(f"{refusal}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    words = " ".join(str(error).split())
    if "Object arrays cannot be loaded" in words:
        return "it holds Python objects, which are never loaded"
    return f"it is damaged ({words or type(error).__name__})"


def npz_dataset(path: Path, *, records: int | None, classes: int | None, facts: ArrayFacts | None = None) -> DataSet:
    """A data set from a file, with its public facts declared."""
    facts = facts or ArrayFacts()
    if records is None:
        raise InputError(
            f"dataset={str(path)!r} is own data: declare its public record count with --records N (it sets the "
            "sampling rate; the number of records in the file is private, so it is never read for that)"
        )
    if classes is None:
        raise InputError(f"dataset={str(path)!r} is own data: declare its public number of classes with --classes K")
    arrays = read_arrays(path)
    missing = {"x", "y"} - arrays.keys()
    if missing or ("x_test" in arrays) != ("y_test" in arrays):
        raise InputError(f"{path} holds {', '.join(sorted(arrays))}; allowed: x and y, and x_test with y_test")
    for name, what in (("x", "record"), ("x_test", "test record")):
        if name in arrays and not len(arrays[name]):
            raise InputError(f"{path}: there is no {what}; allowed: at least 1")
    for name in ("y", "y_test"):
        if name in arrays and (arrays[name].is_floating_point() or arrays[name].ndim != 1):
            raise InputError(f"{path}: {name} must hold one whole-number label a record")
    test = None
    if "x_test" in arrays:
        test = TensorRecords(scaled(arrays["x_test"], facts), arrays["y_test"], name="test")
    return DataSet(
        name=path.stem,
        train=TensorRecords(scaled(arrays["x"], facts), arrays["y"], name=path.name),
        test=test,
        records=records,
        classes=classes,
        shape=tuple(arrays["x"].shape[1:]),
        public=(f"{records:,} records (declared)", f"{classes} classes (declared)", *facts.public()),
    )


def scaled(values: Tensor, facts: ArrayFacts) -> Tensor:
    """Values from their declared range to [−1, 1], clamped; as given where none is declared. Each by itself.

    >>> scaled(torch.tensor([0, 255, 300]), ArrayFacts(low=0, high=255))
    tensor([-1.,  1.,  1.])
    """
    if facts.low is None or facts.high is None:
        return values.float()
    centre, half = facts.low / 2 + facts.high / 2, facts.high / 2 - facts.low / 2
    return ((values.double().clamp(facts.low, facts.high) - centre) / half).clamp(-1, 1).float()
