"""The user's own records: `.npz`, CSV, Parquet, or a folder of images by class. Private.

What is public about them is declared in a description, never read off them. Each image is scaled by public constants,
x ↦ (x/255 − mean)/std; none is resized or converted. A refusal names the file, to the person who holds the data.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.data import description as describing
from adadpigu.data.datasets import DataSet, TensorRecords, check_agrees
from adadpigu.data.description import ArrayFacts, Description, ImageFacts, TableFacts, listed, reading
from adadpigu.data.tabular import read_features, read_owners, read_table, scale
from adadpigu.errors import InputError, require

TABLES = (".csv", ".parquet")
KINDS = "FILE.csv, FILE.parquet, FILE.npz, or a folder with a sub-folder of images for each class"
_SUBJECTS = {TableFacts: "a table", ImageFacts: "images", ArrayFacts: "arrays"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""what is decoded; other formats of Pillow's start programs or are rare"""

_MODES = {1: "L", 3: "RGB"}


def class_folders(folder: Path) -> list[str]:
    """The names of a folder's sub-folders, sorted; no image is looked at."""
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    require(len(names) > 1, f"folder={str(folder)!r} has sub-folders {names}; allowed: 2 or more, one a class")
    return names


def read_folder(folder: Path, facts: ImageFacts, names: Sequence[str], *, beside: Sequence[Path] = ()) -> TensorRecords:
    """The records of a folder; `beside` are entries that hold no training records: a description, test images."""
    found = {entry.name for entry in _entries(folder) if entry.resolve() not in {path.resolve() for path in beside}}
    lost, odd = sorted({*names} - found), sorted(found - {*names, *facts.ignore})
    require(not lost, f"folder={str(folder)!r} has no sub-folder {listed([*map(repr, lost)])} for a class")
    fault = f"folder={str(folder)!r}: {listed([*map(repr, odd)])} belongs to no class"
    require(not odd, f"{fault}; allowed: {listed(names)}, or the name under ignore")
    files = [(label, file) for label, name in enumerate(names) for file in _entries(folder / name)]
    labels = [label for label, _ in files]
    present = sorted({names[label] for label in labels})
    require(len(present) > 1, f"folder={str(folder)!r} has images of {present}; allowed: of 2 or more classes")
    return TensorRecords(read_images([file for _, file in files], facts), torch.tensor(labels), name=folder.name)


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and in its sub-folders, sorted: a folder without labels."""
    return [file for entry in _entries(folder) for file in (_entries(entry) if entry.is_dir() else [entry])]


def read_images(files: Sequence[Path], facts: ImageFacts) -> Tensor:
    """The images of some files, [n, channels, height, width], scaled."""
    pixels = np.empty((len(files), facts.height, facts.width, facts.channels), dtype=np.float32)
    for place, file in enumerate(files):
        pixels[place] = _pixels(file, facts)
    pixels /= np.float32(255)
    if facts.mean:
        pixels -= np.asarray(facts.mean, dtype=np.float32)
        pixels /= np.asarray(facts.std, dtype=np.float32)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def _pixels(file: Path, facts: ImageFacts) -> NDArray[np.uint8]:
    """The pixels of one image, [height, width, channels]; its size is checked before it is decoded."""
    from PIL import Image

    wanted = (facts.height, facts.width, _MODES[facts.channels], 1)
    with reading(file, "image", f"one of {', '.join(FORMATS)}"), Image.open(file, formats=FORMATS) as image:
        found = (image.height, image.width, image.mode, getattr(image, "n_frames", 1))
        fault = f"image={str(file)!r} has (height, width, mode, frames) = {found}"
        require(found == wanted, f"{fault}; allowed: {wanted}, as declared (resize or convert it beforehand)")
        return np.asarray(image, dtype=np.uint8).reshape(facts.height, facts.width, facts.channels)


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, sorted, without hidden files and the description."""
    with reading(folder, "folder", "a folder"):
        found = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [entry for entry in found if not entry.name.startswith(".") and entry.name != describing.DESCRIPTION]


class Inputs(NamedTuple):
    """Records without labels, and what to call each of them."""

    values: Tensor
    names: tuple[str, ...]  # file names of images, else positions


def is_own(name: str) -> bool:
    """Whether a data set's name is a path: of a file of a known kind, or of a folder."""
    return name.lower().endswith((".npz", *TABLES)) or "/" in name or "\\" in name or Path(name).is_dir()


def own_dataset(
    path: Path, *, description: Path | None = None, records: int | None = None, classes: int | None = None
) -> DataSet:
    """A data set of the user's own, with its public facts declared: by a description, or for `.npz` by two numbers."""
    declared = find_description(path, description)
    if declared is None:
        return npz_dataset(path, records=records, classes=classes)
    check_agrees(str(declared.path), records=(records, declared.records), classes=(classes, len(declared.classes)))
    facts = declared.facts
    if isinstance(facts, ArrayFacts):
        _check_kind(path, declared, "dataset")
        made = npz_dataset(path, records=declared.records, classes=len(declared.classes), facts=facts)
        return replace(made, description=declared.path)
    return DataSet(
        name=path.resolve().stem if isinstance(facts, TableFacts) else path.resolve().name,
        train=_labelled(path, facts, declared),
        test=None if declared.test is None else _labelled(declared.test, facts, declared),
        records=declared.records,
        classes=len(declared.classes),
        shape=facts.shape,
        public=declared.public,
        owners=read_owners(path, facts, declared.test) if isinstance(facts, TableFacts) else None,
        files=(path,) if declared.test is None else (path, declared.test),
        description=declared.path,
    )


def find_description(path: Path, given: Path | None = None) -> Description | None:
    """The description given, or else the one beside the data; None for `.npz`, which needs none."""
    if given is not None:
        return describing.read_description(given)
    if _kind(path, "dataset") is ArrayFacts:
        return None
    expected = describing.description_path(path)
    if expected.is_file():
        return describing.read_description(expected)
    if path.is_dir():
        class_folders(path)
    told = f"dataset={str(path)!r} needs a description of what is public about it, and there is no {str(expected)!r}"
    command = f"adadpigu data template {quote(str(path))} > {quote(str(expected))}"
    raise InputError(f"{told}: write one with `{command}` and fill it in, or name one with --describe")


def read_inputs(path: Path, description: Description | None = None) -> Inputs:
    """Records to predict for, encoded as the training records were; a label column is not looked at.

    Without a description, or with one of arrays: `.npy`, or `.npz` with an array `x`.
    """
    facts = ArrayFacts() if description is None else description.facts
    if isinstance(facts, ImageFacts):
        files = image_files(path) if path.is_dir() else [path]
        require(files, f"folder={str(path)!r} has no image; allowed: at least 1")
        names = tuple(file.relative_to(path).as_posix() if path.is_dir() else file.name for file in files)
        return Inputs(read_images(files, facts), names)
    _check_kind(path, description, "file")
    if isinstance(facts, TableFacts):
        values = read_features(path, facts)
    else:
        arrays = read_arrays(path)
        require("x" in arrays, f"file={str(path)!r} holds {', '.join(sorted(arrays))}; allowed: an array x")
        values = scaled(arrays["x"], facts)
    return Inputs(values, tuple(map(str, range(len(values)))))


def _labelled(path: Path, facts: TableFacts | ImageFacts, declared: Description) -> TensorRecords:
    _check_kind(path, declared, "dataset" if path != declared.test else "test")
    if isinstance(facts, TableFacts):
        return read_table(path, facts, declared.classes)
    beside = [place for place in (declared.path, declared.test) if place not in (None, path)]
    return read_folder(path, facts, declared.classes, beside=beside)


def _kind(path: Path, role: str) -> type[TableFacts | ImageFacts | ArrayFacts]:
    """What a path can hold, by its name; the facts of a description must be of that kind."""
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        return ArrayFacts
    fault = "is of no known kind" if path.exists() else "does not exist"
    require(path.is_dir() or (suffix in TABLES and path.exists()), f"{role}={str(path)!r} {fault}; allowed: {KINDS}")
    return ImageFacts if path.is_dir() else TableFacts


def _check_kind(path: Path, declared: Description | None, role: str) -> None:
    found, facts = _kind(path, role), ArrayFacts if declared is None else type(declared.facts)
    described = "there is no description" if declared is None else f"{declared.path} describes {_SUBJECTS[facts]}"
    require(found is facts, f"{role}={str(path)!r} is for {_SUBJECTS[found]}, but {described}; allowed: {KINDS}")


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of an `.npz` (by name) or `.npy` (as 'x') file; float64 becomes float32."""
    with reading(path, kind=".npy or .npz of numbers (Python objects are never loaded)"):
        loaded = np.load(path, allow_pickle=False)
        arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    tensors: dict[str, Tensor] = {}
    for name, array in arrays.items():
        fits = isinstance(array, np.ndarray) and array.dtype.kind in "fiub" and array.ndim
        require(fits, f"{path}: {name!r} is no array of numbers, with one row a record; allowed: such arrays alone")
        native = array.dtype.newbyteorder("=")  # the only order that torch takes
        wanted = np.float32 if array.dtype.kind == "f" else np.int64 if name.startswith("y") else native
        tensors[name] = torch.from_numpy(np.ascontiguousarray(array.astype(wanted)))
    return tensors


def npz_dataset(path: Path, *, records: int | None, classes: int | None, facts: ArrayFacts | None = None) -> DataSet:
    """A data set from a file, with its public facts declared."""
    facts = facts or ArrayFacts()
    if records is None or classes is None:
        rate = "it sets the sampling rate; the number of records in the file is private, so it is never read for that"
        counts = f"its public record count with --records N ({rate}) and its public number of classes with --classes K"
        raise InputError(f"dataset={str(path)!r} is own data: declare {counts}")
    arrays = read_arrays(path)
    fits = {"x", "y"} <= arrays.keys() and ("x_test" in arrays) == ("y_test" in arrays)
    require(fits, f"{path} holds {', '.join(sorted(arrays))}; allowed: x and y, and x_test with y_test")
    parts = {}
    for name in ("", "_test"):
        if f"y{name}" in arrays:
            labels = arrays[f"y{name}"]
            fits = len(labels) > 0 and labels.ndim == 1 and not labels.is_floating_point()
            require(fits, f"{path}: y{name} is {labels.dtype} {list(labels.shape)}; allowed: a whole number a record")
            parts[name] = TensorRecords(scaled(arrays[f"x{name}"], facts), labels, name="test" if name else path.name)
    return DataSet(
        name=path.stem,
        train=parts[""],
        test=parts.get("_test"),
        records=records,
        classes=classes,
        shape=tuple(arrays["x"].shape[1:]),
        public=(f"{records:,} records (declared)", f"{classes} classes (declared)", *facts.public()),
        files=(path,),
        encode=partial(scaled, facts=facts),
    )


def scaled(values: Tensor, facts: ArrayFacts) -> Tensor:
    """Values from their declared range to [−1, 1], clamped; as given where none is declared. Each by itself."""
    if facts.range is None:
        return values.float()
    return torch.from_numpy(scale(values.double().numpy(), *facts.range)).float()
