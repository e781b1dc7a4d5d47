"""Data sets: private records with a public description. The records are sensitive; name, shape, classes and N are not.

N, the *declared* record count, is part of the description. `len()` of the records differs between neighbours, so
nothing public is ever computed from it; it tells the sampler how many coins to toss.
"""

from pathlib import Path

from adadpigu.data.datasets import DataSet, TensorRecords, check_agrees, declare, training_split
from adadpigu.data.fetching import DIGITS, digits, published_dataset
from adadpigu.data.own import is_own, own_dataset
from adadpigu.data.published import ALIASES, PUBLISHED, find_published
from adadpigu.errors import require, unknown

__all__ = [
    "DataSet",
    "TensorRecords",
    "all_datasets",
    "declare",
    "declared_records",
    "is_named",
    "load_dataset",
    "training_split",
]


def all_datasets() -> tuple[str, ...]:
    """Names of the data sets that need no file of the user's."""
    return ("digits", *PUBLISHED)


def is_named(name: str) -> bool:
    """Whether a data set is known by this name: then a folder of that name does not hide it."""
    return name in (*all_datasets(), *ALIASES)


def load_dataset(
    name: str, *, records: int | None = None, classes: int | None = None, describe: Path | None = None
) -> DataSet:
    """A data set by name, or from a file or folder of the user's with its public facts declared.

    A published one that the cache does not hold is fetched first, as `adadpigu data get` does it.

    >>> load_dataset("digits").records
    1437
    """
    if not is_named(name):
        if is_own(name):
            return own_dataset(Path(name), description=describe, records=records, classes=classes)
        raise unknown("dataset", name, [*all_datasets(), "FILE.csv", "FILE.parquet", "FILE.npz", "FOLDER"])
    require(describe is None, f"describe={str(describe)!r}: the facts of {name!r} are known; leave it out")
    published = None if name == "digits" else find_published(name)
    known = 10 if published is None else published.classes
    check_agrees(name, records=(records, declared_records(name)), classes=(classes, known))
    return digits() if published is None else published_dataset(published)


def declared_records(name: str) -> int:
    """N of a data set that is known by this name; nothing is fetched."""
    return DIGITS if name == "digits" else find_published(name).records
