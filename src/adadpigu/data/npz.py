"""The user's own records in an `.npz` file: arrays `x`, `y` and optionally `x_test`, `y_test`. No pickle is loaded.

What is public about them (record count, number of classes) is declared by the user, never read off the records.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.description import ArrayFacts
from adadpigu.errors import InputError


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of an `.npz` (by name) or `.npy` (as 'x') file; float64 becomes float32."""
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        reason = getattr(error, "strerror", None) or "it is neither"
        raise InputError(f"file={str(path)!r} cannot be read as .npy or .npz: {reason}") from None
    tensors: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise InputError(f"{path}: array {name!r} has type {array.dtype}; allowed: numbers")
        wanted = np.float32 if array.dtype.kind == "f" else np.int64 if name.startswith("y") else array.dtype
        tensors[name] = torch.from_numpy(np.ascontiguousarray(array.astype(wanted)))
    return tensors


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
    if not len(arrays["x"]):
        raise InputError(f"{path}: there is no record; allowed: at least 1")
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
