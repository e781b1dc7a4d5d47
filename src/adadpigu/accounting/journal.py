"""An append-only file of JSON records, chained by hashes, each of them on disk before `append` returns.

    length  CRC-32  SHA-256(digest before ‖ body)  body                            one line a record, in `ledger.log`
    count   digest  CRC-32                                                         in `ledger.head`, written after it

The head makes a file visible that was cut at the end of a record: records are never fewer than it counts, and at most
one more. It has two places that take turns, so that a write which fails half-way leaves the other one. Bytes after as
many records as the head counts are a record whose writer died (`Chain.torn`). Anything else that is not as it was
written is damage, and nobody may write on. The two files alone cannot show that both were rewritten together, replaced
by an older copy, or continued apart from another copy.
"""

import contextlib
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adadpigu.durable import sync_folder
from adadpigu.errors import LedgerError, LedgerInUseError

START = "0" * 64  # the digest before the first record
_PLACES = (0, 512)


@dataclass(frozen=True, kw_only=True)
class Chain:
    bodies: tuple[dict[str, Any], ...]
    digests: tuple[str, ...]
    end: int  # bytes of the whole records
    torn: int  # bytes after them, of a record that was never finished
    damage: str  # why the journal cannot be trusted; empty where it can

    @property
    def digest(self) -> str:
        """Of the last record."""
        return self.digests[-1] if self.digests else START


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def head_path(path: Path) -> Path:
    """Where the head of a journal stands: beside it, `ledger.head` for `ledger.log`."""
    return path.with_name(f"{path.name.removesuffix('.log')}.head")


def read_journal(path: Path) -> Chain:
    """All that can be read of a journal, and what is wrong with it; refuses a file that is not there."""
    try:
        head_bytes = _bytes_or_none(head_path(path))  # first: a writer that is at work brings the journal forward first
        data = path.read_bytes()
        later_bytes = _bytes_or_none(head_path(path))  # as far as such a writer may have come since
    except OSError as error:
        raise LedgerError(f"ledger={str(path)!r} cannot be read: {error.strerror}") from None
    bodies: list[dict[str, Any]] = []
    digests: list[str] = []
    end = 0
    while (found := _decode(data, end, digests[-1] if digests else START)) is not None:
        end, digest, body = found
        bodies.append(body)
        digests.append(digest)
    torn = len(data) - end
    damage = _damage(digests, torn, head_bytes, later_bytes)
    return Chain(bodies=tuple(bodies), digests=tuple(digests), end=end, torn=torn, damage=damage)


def _bytes_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _damage(digests: list[str], torn: int, head_bytes: bytes | None, later_bytes: bytes | None) -> str:
    """What is wrong with records, by the heads that were read before and after them."""
    if head_bytes is None:
        return "its head is missing"
    whole, places = len(digests), _whole_places(head_bytes)
    if not places:
        begun = not whole and not torn and len(head_bytes) < len(_place(0, START))
        return "" if begun else "its head is damaged"  # begun: by a process that ended while it made the two files
    count, digest = max(places)
    most = 1 + max(count, *(later for later, _ in _whole_places(later_bytes)), 0)
    if whole < count:
        kind = "damaged" if torn else "missing: the file was cut"
        return f"record {whole} of {count} is {kind}"
    if digest != (digests[count - 1] if count else START):
        return f"its head belongs to another record {count - 1}"
    if len(places) == 1 and whole == count > 0:  # a place is half written only after its record, which is then one more
        return "its head is damaged"
    if whole > most or (torn and whole == most):
        return f"it has more records than its head counts ({count})"
    return ""


def strict_json(value: Any) -> Any:
    """As strict JSON has it: tuples become lists, and numbers that are not finite null, wherever they stand."""
    if isinstance(value, Mapping):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _encode(digest: str, body: Mapping[str, object]) -> tuple[bytes, str]:
    text = json.dumps(body, allow_nan=False, separators=(",", ":"), ensure_ascii=True).encode()
    new = hashlib.sha256(digest.encode() + text).hexdigest()
    return b"%08x %08x %s %s\n" % (len(text), zlib.crc32(text), new.encode(), text), new


def _decode(data: bytes, start: int, digest: str) -> tuple[int, str, dict[str, Any]] | None:
    """The record at `start`: where it ends, its digest and body; None unless it is exactly as `_encode` writes it."""
    line_end = data.find(b"\n", start)
    line = data[start : line_end + 1] if line_end >= 0 else b""
    text = line[83:-1]
    new = hashlib.sha256(digest.encode() + text).hexdigest()
    if line[:83] != b"%08x %08x %s " % (len(text), zlib.crc32(text), new.encode()):
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):  # a stranger's, with a digest that fits
        return None
    return (line_end + 1, new, body) if isinstance(body, dict) else None


def _place(count: int, digest: str) -> bytes:
    text = b"%012d %s" % (count, digest.encode())
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _whole_places(data: bytes | None) -> list[tuple[int, str]]:
    found = []
    for start in _PLACES:
        place = (data or b"")[start : start + len(_place(0, START))]
        with contextlib.suppress(ValueError):
            count, digest = int(place[:12]), place[13:77].decode("ascii")
            if place == _place(count, digest):
                found.append((count, digest))
    return found


class Journal:
    """The one writer of a journal; a second one is refused at once, here or in another process."""

    def __init__(self, path: Path, *, new: bool) -> None:
        """`new`: no file may stand there. Else it is read, and refused where it is damaged."""
        self.path = path
        self._owner = os.getpid()
        self._file = self._head = -1
        with self._closed_by_errors():
            if new and path.exists():
                raise FileExistsError
            flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (os.O_CREAT | os.O_EXCL if new else 0)
            self._head = os.open(head_path(path), flags, 0o600)
            self._file = os.open(path, flags, 0o600)
            _lock(self._file)
            if new:
                self._write_head(0, START)
                sync_folder(path.parent)
            self.chain = read_journal(path)
            if self.chain.damage:
                raise LedgerError(f"ledger={str(path)!r} is damaged: {self.chain.damage}; it is not written on")
        self.count, self.digest, self._end = len(self.chain.bodies), self.chain.digest, self.chain.end
        """records so far, the digest of the last one, and where it ends"""
        self._mended = new

    def append(self, body: Mapping[str, object]) -> None:
        """Writes a record and returns when it is on disk, its head too. After an error nothing can be appended."""
        if self._file < 0:
            raise LedgerError(f"ledger={str(self.path)!r} is closed")
        if os.getpid() != self._owner:
            raise LedgerError(f"ledger={str(self.path)!r} belongs to another process: a fork may not write to it")
        record, digest = _encode(self.digest, body)
        with self._closed_by_errors():
            if not self._mended:  # what a writer before this one left unfinished
                os.ftruncate(self._file, self._end)
                self._write_head(self.count, self.digest)
                self._mended = True
            self._write_record(record)
            self._write_head(self.count + 1, digest)
        self.count, self.digest, self._end = self.count + 1, digest, self._end + len(record)

    @contextlib.contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """After any error nothing more is written; one of the system's is told with the name of the file."""
        try:
            yield
        except BaseException as error:
            self.close()
            where = f"ledger={str(self.path)!r}"
            if isinstance(error, FileExistsError):
                raise LedgerError(f"{where} stands there already; each run has its own") from None
            if isinstance(error, BlockingIOError):
                raise LedgerInUseError(f"{where} is in use by another process; allowed: one writer") from None
            if isinstance(error, OSError):
                raise LedgerError(f"{where} cannot be written: {error.strerror}") from None
            raise

    def _write_record(self, record: bytes) -> None:
        try:
            _write_all(self._file, record, self._end)
            _sync(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # nothing was drawn for it, and half of it would have to be charged
                os.ftruncate(self._file, self._end)
            raise

    def _write_head(self, count: int, digest: str) -> None:
        _write_all(self._head, _place(count, digest), _PLACES[count % 2])
        _sync(self._head)

    def close(self) -> None:
        """Lets another writer in."""
        for descriptor in (self._file, self._head):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._file = self._head = -1


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _sync(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _lock(descriptor: int) -> None:
    """Raises `BlockingIOError` where another writer has it; the system gives it up with the process."""
    try:
        import fcntl
    except ImportError:
        raise LedgerError("this system cannot lock files: a second writer would not be noticed") from None
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
