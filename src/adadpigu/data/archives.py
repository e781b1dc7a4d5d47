"""Reads named members out of tar, zip (wheel) and Debian archives, into memory and never onto the disk.

Only regular files whose base name is asked for are read, up to a size. No path of an archive is ever used as a path
here, so one that points outside, a link or a device can do nothing.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from adadpigu.data.conversions import LIMIT
from adadpigu.data.formats import SourceError

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_ZIP = (".zip", ".whl")
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60


def read_members(path: Path, wanted: Collection[str], *, limit: int = LIMIT) -> dict[str, bytes]:
    """The wanted members by base name; of two with one name, the first."""
    name = path.name.lower()
    try:
        with path.open("rb") as file:
            if name.endswith(_TAR):
                return _tar(file, wanted, limit)
            if name.endswith(_ZIP):
                return _zip(file, wanted, limit)
            if name.endswith(".deb"):
                return _tar(_data_of_deb(file), wanted, limit)
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise SourceError(f"{path.name} is damaged ({str(error) or type(error).__name__})") from None
    except (OSError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"{path.name} cannot be read ({error})") from None
    raise SourceError(f"{path.name} is no archive of a known kind: {', '.join((*_TAR, *_ZIP, '.deb'))}")


def _tar(file: BinaryIO, wanted: Collection[str], limit: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if member.isreg() and name in wanted and name not in found:
                _refuse_long(name, member.size, limit)
                content = archive.extractfile(member)
                assert content is not None
                found[name] = content.read()
    return found


def _zip(file: BinaryIO, wanted: Collection[str], limit: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename).name
            if not member.is_dir() and name in wanted and name not in found:
                _refuse_long(name, member.file_size, limit)
                found[name] = archive.read(member)
    return found


def _data_of_deb(file: BinaryIO) -> BinaryIO:
    """The `data.tar` of a Debian package, which is an `ar` archive: 60-byte headers, members padded to even length."""
    if file.read(len(_AR_MAGIC)) != _AR_MAGIC:
        raise tarfile.ReadError("not an ar archive")
    while len(header := file.read(_AR_HEADER)) == _AR_HEADER:
        name, digits = header[:16].decode("latin-1").strip().rstrip("/"), header[48:58].strip()
        if not digits.isdigit():
            break
        size = int(digits)
        if name.startswith("data.tar"):
            _refuse_long(name, size, LIMIT)
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)
    raise tarfile.ReadError("it has no data.tar")


def _refuse_long(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise SourceError(f"{name} is {size} bytes long; allowed: {limit}")
