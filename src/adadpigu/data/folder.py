"""A folder of images, one sub-folder a class, as tensors. The images are private; size, channels and classes are not.

Each image is read by itself and scaled by public constants only: x ↦ (x/255 − mean)/std. Nothing is resized or
converted in silence. A refusal names the file: it goes to whoever holds the data, before anything is trained, and is
outside the guarantee.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.data.datasets import TensorRecords
from adadpigu.data.description import DESCRIPTION, ImageFacts, listed
from adadpigu.errors import InputError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""what is decoded; other formats of Pillow's start programs or are rare"""

_MODES = {1: "L", 3: "RGB"}


def class_folders(folder: Path) -> list[str]:
    """The names of a folder's sub-folders, sorted; no image is looked at."""
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    if len(names) < 2:
        has = f"one class, {names[0]!r}" if names else "no sub-folder"
        raise InputError(f"folder={str(folder)!r} has {has}; allowed: 2 or more sub-folders, one a class")
    return names


def read_folder(
    folder: Path, facts: ImageFacts, classes: Sequence[str], *, beside: Sequence[Path] = ()
) -> TensorRecords:
    """The records of a folder: images [n, channels, height, width] and the positions of their classes.

    `beside` are files and folders inside that hold no training records: a description, test images.
    """
    files: list[Path] = []
    labels: list[int] = []
    _check_folder(folder, facts, classes, {path.resolve() for path in beside})
    for label, name in enumerate(classes):
        found = _files(folder / name)
        files += found
        labels += [label] * len(found)
    if len(set(labels)) < 2:
        has = f"images of one class only, {classes[labels[0]]!r}" if labels else "no image"
        raise InputError(f"folder={str(folder)!r} has {has}; allowed: images of 2 or more of {listed(classes)}")
    return TensorRecords(read_images(files, facts), torch.tensor(labels), name=folder.name)


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and in its sub-folders, sorted: a folder without labels."""
    files: list[Path] = []
    for entry in _entries(folder):
        files += _files(entry) if entry.is_dir() else [entry]
    return files


def read_images(files: Sequence[Path], facts: ImageFacts) -> Tensor:
    """The images of some files, [n, channels, height, width], scaled."""
    from PIL import Image

    pixels = np.empty((len(files), facts.height, facts.width, facts.channels), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # no image of the declared size is one
        for place, file in enumerate(files):
            pixels[place] = _pixels(file, facts)
    pixels /= np.float32(255)
    if facts.mean is not None and facts.std is not None:
        pixels -= np.asarray(facts.mean, dtype=np.float32)
        pixels /= np.asarray(facts.std, dtype=np.float32)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def _pixels(file: Path, facts: ImageFacts) -> NDArray[np.uint8]:
    """The pixels of one image, [height, width, channels]; its size is checked before it is decoded."""
    from PIL import Image, UnidentifiedImageError

    mode = _MODES[facts.channels]
    try:
        with Image.open(file, formats=FORMATS) as image:
            if (image.height, image.width) != (facts.height, facts.width):
                raise InputError(
                    f"image {str(file)!r} is {image.height} × {image.width}; allowed: {facts.height} × {facts.width} "
                    "(height × width), as declared (resize it beforehand)"
                )
            frames = getattr(image, "n_frames", 1)
            if image.mode != mode or frames != 1:
                has = f"has mode {image.mode}" if image.mode != mode else f"has {frames} frames"
                raise InputError(
                    f"image {str(file)!r} {has}; allowed: {mode}, one frame, as declared (convert it beforehand)"
                )
            return np.asarray(image, dtype=np.uint8).reshape(facts.height, facts.width, facts.channels)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(f"file {str(file)!r} is not an image; allowed: {', '.join(FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(
            f"image {str(file)!r} is far too large; allowed: {facts.height} × {facts.width} as declared"
        ) from None
    except Exception as error:  # a decoder raises OSError, SyntaxError, struct.error, zlib.error, … on damaged bytes
        reason = getattr(error, "strerror", None) or "it is truncated or damaged"
        raise InputError(f"image {str(file)!r} cannot be read: {reason}") from None


def _check_folder(folder: Path, facts: ImageFacts, classes: Sequence[str], beside: set[Path]) -> None:
    """Refuses a declared class without a sub-folder, and anything else that nobody declared."""
    for name in classes:
        if name in (".", "..") or "/" in name or "\\" in name:
            raise InputError(f"class {name!r} is no name of a sub-folder; allowed: names without a path separator")
    for entry in _entries(folder):
        if entry.name in (*classes, *facts.ignore) or entry.resolve() in beside:
            continue
        kind = "sub-folder" if entry.is_dir() else "file"
        raise InputError(
            f"{kind} {str(entry)!r} belongs to no class; allowed: {listed(classes)}, or its name under ignore"
        )
    for name in classes:
        if not (folder / name).is_dir():
            raise InputError(f"folder={str(folder)!r} has no sub-folder {name!r} for that class")


def _files(folder: Path) -> list[Path]:
    files = _entries(folder)
    for entry in files:
        if not entry.is_file():
            raise InputError(f"{str(entry)!r} is not an image; allowed: image files only in the folder of a class")
    return files


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, sorted, without hidden files and the description."""
    try:
        found = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"folder={str(folder)!r} cannot be read: {error.strerror}") from None
    return [entry for entry in found if not entry.name.startswith(".") and entry.name != DESCRIPTION]
