"""Where downloads and computed features are kept. Several processes may share the folder.

A file is written beside its place and moved into it, so that a reader finds all of it or nothing. A lock makes the
second of two processes wait for the first. Records read from here are as sensitive as from anywhere else.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from adadpigu.durable import replacing, writing
from adadpigu.errors import InputError

storing = partial(writing, what="cache", remedy="; set ADADPIGU_DATA to a folder elsewhere")


def cache_folder() -> Path:
    """`ADADPIGU_DATA` if set, else `$XDG_CACHE_HOME/adadpigu`, else `~/.cache/adadpigu`; it need not exist yet."""
    own = os.environ.get("ADADPIGU_DATA")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():  # the specification: a relative path is to be ignored
        return Path(xdg) / "adadpigu"
    try:
        return Path.home() / ".cache" / "adadpigu"
    except RuntimeError:
        raise InputError("there is no home folder for the cache: set ADADPIGU_DATA to a folder") from None


def atomic_write(path: Path, writer: Callable[[BinaryIO], object]) -> None:
    """Lets `writer` fill a temporary file beside `path`, then moves it there; after an error nothing is left."""
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            writer(file)


@contextlib.contextmanager
def locked(path: Path, *, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Holds the lock file `path`; where another process holds it, calls `waiting` once and then waits for its turn.

    The lock ends with the process. The empty file stays: else two processes could hold two files of one name.
    """
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # no such locks here: two processes may both fetch, and the last one's whole file stays
        yield
        return
    with storing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a network file system without locks
                raise
        yield
    finally:
        os.close(handle)
