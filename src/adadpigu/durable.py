"""Files that are there whole or not at all, also after a power cut. What they hold is the caller's to release."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from adadpigu.errors import InputError, require


@contextlib.contextmanager
def writing(path: Path, *, what: str = "out", remedy: str = "") -> Iterator[None]:
    """Turns an OSError of writing (a full disk, a read-only folder) into one line, which ends with `remedy`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{what}={str(path)!r} cannot be written: {reason}{remedy}") from None


def check_place(path: Path, problems: Mapping[str, bool]) -> None:
    """Refuses a place to write to by the first problem that is true of it."""
    for problem, there in problems.items():
        require(not there, f"out={str(path)!r} {problem}")


def lowest_parent(path: Path) -> Path:
    """The nearest folder above a path that exists."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def sync_folder(path: Path) -> None:
    """Puts a folder's list of names on disk, where the system can open a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_text(path: Path, what: str) -> str:
    """The text of a file; `what` names it in the error."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{what} cannot be read: {reason}") from None


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a whole file or none of it."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` once it is on disk; after an error nothing is left of it.

    A link of that name is replaced, not followed.
    """
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
