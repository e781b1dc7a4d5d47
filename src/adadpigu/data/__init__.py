"""Data sets: private records with a public description. The records are sensitive; name, shape, classes and N are not.

N, the *declared* record count, is part of the description. `len()` of the records differs between neighbours, so
nothing public is ever computed from it; it tells the sampler how many coins to toss.
"""

from __future__ import annotations

from pathlib import Path

from adadpigu.data.datasets import DataSet, IndexedRecords, TensorRecords, declare
from adadpigu.data.digits import digits
from adadpigu.data.npz import npz_dataset
from adadpigu.errors import InputError, unknown

__all__ = ["DataSet", "IndexedRecords", "TensorRecords", "all_datasets", "declare", "load_dataset"]

_LOADERS = {"digits": digits}


def all_datasets() -> tuple[str, ...]:
    """Names of the data sets that need no file of the user's."""
    return tuple(_LOADERS)


def load_dataset(name: str, *, records: int | None = None, classes: int | None = None) -> DataSet:
    """A data set by name, or from an `.npz` file of the user's with its public facts declared.

    >>> load_dataset("digits").records
    1437
    """
    if name.endswith(".npz"):
        return npz_dataset(Path(name), records=records, classes=classes)
    if name not in _LOADERS:
        raise unknown("dataset", name, [*_LOADERS, "FILE.npz"])
    data = _LOADERS[name]()
    for key, given, declared in (("records", records, data.records), ("classes", classes, data.classes)):
        if given not in (None, declared):
            raise InputError(f"{key}={given} contradicts the {declared} that {name!r} declares")
    return data
