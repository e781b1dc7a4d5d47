"""SHA-256 of what the files of a run say, by which its ledger binds them."""

import hashlib
import json
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose keys stand there once: of two a person may read one and a program the other."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


_READ: dict[str, Callable[[str], object]] = {
    ".toml": tomllib.loads,
    ".json": partial(json.loads, object_pairs_hook=_once),
    ".txt": str.split,
}
_MOST = 1 << 24  # bytes of a text that is read; of anything else its bytes count


def text_digest(name: str, content: bytes) -> str:
    """SHA-256 of what a file says: the values in TOML or JSON, the words of a text, or else the bytes.

    Comments, line ends and the order of keys do not count: who opens a config and saves it again has changed nothing.

    >>> text_digest("a.toml", b"x = 1") == text_digest("a.toml", b"# why\\nx=1\\n") != text_digest("a.toml", b"x = 2")
    True
    """
    try:
        said = _READ[Path(name).suffix](content.decode())
        content = json.dumps(said, sort_keys=True, default=lambda value: [type(value).__name__, str(value)]).encode()
    except (KeyError, ValueError, RecursionError):
        pass
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    if path.suffix in _READ and path.stat().st_size <= _MOST:
        return text_digest(path.name, path.read_bytes())
    return bytes_digest(path)


def bytes_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, by which ledgers named all files before they named what a text says."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def matches_digest(path: Path, wanted: object) -> bool:
    """Whether a file still says what it said when this digest was taken, of its content or of its bytes."""
    return wanted in (bytes_digest(path), file_digest(path))
