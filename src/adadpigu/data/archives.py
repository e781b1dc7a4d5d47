"""Reads named members out of tar, zip (wheel) and Debian archives, into memory and never onto the disk.

Only regular files whose base name is asked for are read, up to a size. No path of an archive is ever used as a path
here, so one that points outside, a link or a device can do nothing. What an archive says of its own sizes is not
believed: no more is unpacked than was allowed beforehand.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from adadpigu.data.conversions import LIMIT
from adadpigu.data.formats import SourceError

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_ZIP = (".zip", ".whl")
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60
_GZIP_MAGIC, _XZ_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\0"
_MEMBERS = 10_000
"""the most members of a tar archive; the official ones have a few dozen"""
_DESCRIBED = 1 << 16
"""the most bytes of a tar archive that say what one member is: long names, attributes"""


def read_members(
    path: Path, wanted: Collection[str], *, limit: int = LIMIT, total: int = 2 * LIMIT
) -> dict[str, bytes]:
    """The wanted members by base name, each up to `limit` bytes, all up to `total`; of two with one name, the first."""
    name = path.name.lower()
    try:
        with path.open("rb") as file:
            if name.endswith(_TAR):
                return _tar(file, wanted, limit, total)
            if name.endswith(_ZIP):
                return _zip(file, wanted, limit, total)
            if name.endswith(".deb"):
                return _tar(_data_of_deb(file), wanted, limit, total)
    except SourceError as error:
        raise SourceError(f"{path.name}: {error}") from None
    except gzip.BadGzipFile as error:
        raise SourceError(f"{path.name} is damaged ({error})") from None
    except (OSError, NotImplementedError, RuntimeError) as error:  # the disk; zip kinds unknown here; a password
        raise SourceError(f"{path.name} cannot be read ({error})") from None
    except Exception as error:  # TarError, BadZipFile, LZMAError, zlib.error, EOFError, struct.error, ValueError, …
        raise SourceError(f"{path.name} is damaged ({str(error) or type(error).__name__})") from None
    raise SourceError(f"{path.name} is no archive of a known kind: {', '.join((*_TAR, *_ZIP, '.deb'))}")


def _tar(file: BinaryIO, wanted: Collection[str], limit: int, total: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    stream = _Metered(_unpacked(file), total)
    stream.allow(_DESCRIBED)
    with tarfile.TarFile(fileobj=stream) as archive:
        for _ in range(_MEMBERS):
            stream.allow(_DESCRIBED)
            member = archive.next()
            if member is None:
                return found
            name = PurePosixPath(member.name).name
            if member.isreg() and not member.issparse() and name in wanted and name not in found:
                _refuse_long(name, member.size, limit)
                stream.allow(member.size)
                stream.seek(member.offset_data)
                found[name] = stream.read(member.size)
                if len(found[name]) != member.size:
                    raise tarfile.ReadError(f"{name} ends early")
    raise SourceError(f"it has more members than allowed: {_MEMBERS}")


def _unpacked(file: BinaryIO) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    start = file.read(len(_XZ_MAGIC))
    file.seek(0)
    if start.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=file)
    return lzma.LZMAFile(file) if start == _XZ_MAGIC else file


class _Metered(io.BufferedIOBase):
    """A stream that is read forwards only, up to a total, and of which no more is given at a time than was allowed.

    `tarfile` reads as long a name, or as many attributes, as a header says; here it meets the end of what is allowed.
    """

    def __init__(self, file: BinaryIO | gzip.GzipFile | lzma.LZMAFile, total: int) -> None:
        self._file = file
        self._total = total
        self._allowed = 0

    def allow(self, count: int) -> None:
        """Lets `count` more bytes be read, whatever was left."""
        self._allowed = count

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= self._allowed:
            raise SourceError(f"a header in it is longer than allowed: {_DESCRIBED} bytes")
        self._refuse_beyond(self._file.tell() + size)
        self._allowed -= size
        return self._file.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        if whence != io.SEEK_SET or position < self._file.tell():
            raise SourceError("its members lie over one another")
        self._refuse_beyond(position)
        return self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()

    def _refuse_beyond(self, position: int) -> None:
        if position > self._total:
            raise SourceError(f"it unpacks to more than allowed: {self._total} bytes")


def _zip(file: BinaryIO, wanted: Collection[str], limit: int, total: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename).name
            if not member.is_dir() and name in wanted and name not in found:
                _refuse_long(name, member.file_size, min(limit, total))
                total -= member.file_size
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise SourceError(f"{name} is compressed by method {member.compress_type}; allowed: deflate")
                with archive.open(member) as content:  # not archive.read, which unpacks whatever there is
                    found[name] = content.read(member.file_size + 1)
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
    if not 0 <= size <= limit:
        raise SourceError(f"{name} is {size} bytes long; allowed: {limit}")
