"""The user's own records, whatever they are kept in: `.npz`, CSV, Parquet, or a folder of images by class.

The records are private. What is public about them is declared in a description, never read off them, and is told to
the statement as declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from torch import Tensor

from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.description import (
    ArrayFacts,
    Description,
    ImageFacts,
    TableFacts,
    description_path,
    read_description,
)
from adadpigu.data.folder import class_folders, image_files, read_folder, read_images
from adadpigu.data.npz import npz_dataset, read_arrays, scaled
from adadpigu.data.tabular import read_features, read_table
from adadpigu.errors import InputError

TABLES = (".csv", ".parquet")
KINDS = "FILE.csv, FILE.parquet, FILE.npz, or a folder with a sub-folder of images for each class"

_SUBJECTS = {TableFacts: "a table", ImageFacts: "images", ArrayFacts: "arrays"}


@dataclass(frozen=True)
class Inputs:
    """Records without labels, and what to call each of them."""

    values: Tensor
    names: tuple[str, ...]
    """file names of images, else positions"""


def is_own(name: str) -> bool:
    """Whether a data set's name is a path: of a file of a known kind, or of a folder.

    >>> is_own("people.csv"), is_own("scans/train"), is_own("digits-of-nobody")
    (True, True, False)
    """
    return name.lower().endswith((".npz", *TABLES)) or "/" in name or "\\" in name or Path(name).is_dir()


def own_dataset(
    path: Path, *, description: Path | None = None, records: int | None = None, classes: int | None = None
) -> DataSet:
    """A data set of the user's own, with its public facts declared: by a description, or for `.npz` by two numbers."""
    if path.suffix.lower() == ".npz" and description is None:
        return npz_dataset(path, records=records, classes=classes)
    declared = find_description(path, description)
    assert declared is not None
    for key, given, known in (("records", records, declared.records), ("classes", classes, len(declared.classes))):
        if given not in (None, known):
            raise InputError(f"{key}={given} contradicts the {known} that {str(declared.path)!r} declares")
    facts = _fitting(path, declared)
    if isinstance(facts, ArrayFacts):
        return npz_dataset(path, records=declared.records, classes=len(declared.classes), facts=facts)
    return DataSet(
        name=path.resolve().stem if isinstance(facts, TableFacts) else path.resolve().name,
        train=_labelled(path, facts, declared),
        test=None if declared.test is None else _labelled(declared.test, facts, declared),
        records=declared.records,
        classes=len(declared.classes),
        shape=facts.shape,
        public=declared.public,
    )


def find_description(path: Path, given: Path | None = None) -> Description | None:
    """The description given, or else the one beside the data; None for `.npz`, which needs none.

    Where there is none, the error says how to write one.
    """
    if given is not None:
        return read_description(given)
    if path.suffix.lower() in (".npz", ".npy"):
        return None
    if not path.exists():
        raise InputError(f"dataset={str(path)!r} does not exist; allowed: {KINDS}")
    if path.suffix.lower() not in TABLES and not path.is_dir():
        raise InputError(f"dataset={str(path)!r} is of no known kind; allowed: {KINDS}")
    expected = description_path(path)
    if expected.is_file():
        return read_description(expected)
    if path.is_dir():
        class_folders(path)
    raise InputError(
        f"dataset={str(path)!r} needs a description of what is public about it, and there is no {str(expected)!r}: "
        f"write one with `adadpigu data template {quote(str(path))} > {quote(str(expected))}` and fill it in, "
        "or name one with --describe"
    )


def read_inputs(path: Path, description: Description | None = None) -> Inputs:
    """Records to predict for, encoded as the training records were; a label column is not looked at.

    Without a description, or with one of arrays: `.npy`, or `.npz` with an array `x`.
    """
    facts = ArrayFacts() if description is None else description.facts
    if isinstance(facts, TableFacts):
        _check_kind(path, facts, "table")
        values = read_features(path, facts)
        return Inputs(values, _positions(values))
    if isinstance(facts, ImageFacts):
        files = image_files(path) if path.is_dir() else [path]
        if not files:
            raise InputError(f"folder={str(path)!r} has no image; allowed: at least 1")
        names = tuple(file.relative_to(path).as_posix() if path.is_dir() else file.name for file in files)
        return Inputs(read_images(files, facts), names)
    if path.is_dir() or path.suffix.lower() in TABLES:
        raise InputError(f"file={str(path)!r} does not fit the run's data; allowed: .npy, or .npz with an array x")
    arrays = read_arrays(path)
    if "x" not in arrays:
        raise InputError(f"file={str(path)!r} holds {', '.join(sorted(arrays))}; allowed: an array x")
    values = scaled(arrays["x"], facts)
    return Inputs(values, _positions(values))


def _labelled(path: Path, facts: TableFacts | ImageFacts, declared: Description) -> TensorRecords:
    _check_kind(path, facts, "dataset" if path != declared.test else "test")
    if isinstance(facts, TableFacts):
        return read_table(path, facts, declared.classes)
    beside = [declared.path, *([] if declared.test in (None, path) else [declared.test])]
    return read_folder(path, facts, declared.classes, beside=[place for place in beside if place is not None])


def _fitting(path: Path, declared: Description) -> TableFacts | ImageFacts | ArrayFacts:
    """The facts of a description, if they are of the kind that the path is of."""
    wanted = ArrayFacts if path.suffix.lower() == ".npz" else ImageFacts if path.is_dir() else TableFacts
    if not isinstance(declared.facts, wanted):
        raise InputError(
            f"{declared.path} describes {_SUBJECTS[type(declared.facts)]}, but dataset={str(path)!r} is for "
            f"{_SUBJECTS[wanted]}; allowed: label and columns for a table, size and channels for images"
        )
    return declared.facts


def _check_kind(path: Path, facts: TableFacts | ImageFacts, role: str) -> None:
    if not path.exists():
        raise InputError(f"{role}={str(path)!r} does not exist")
    if isinstance(facts, TableFacts) and (path.suffix.lower() not in TABLES or path.is_dir()):
        raise InputError(f"{role}={str(path)!r} is not a table; allowed: FILE.csv or FILE.parquet")
    if isinstance(facts, ImageFacts) and not path.is_dir():
        raise InputError(f"{role}={str(path)!r} is not a folder; allowed: a sub-folder of images for each class")


def _positions(values: Tensor) -> tuple[str, ...]:
    return tuple(str(position) for position in range(len(values)))
