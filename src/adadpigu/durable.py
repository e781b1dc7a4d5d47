"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Puts a file's content, or a folder's list of names, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """`sync`, where the system can open a folder."""
    with contextlib.suppress(OSError):
        sync(path)


def write_text(path: Path, text: str) -> None:
    """Writes a whole file or none of it."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a whole file or none of it; a link of that name is replaced, not followed."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    part.write_bytes(content)
    sync(part)
    part.replace(path)
    sync_folder(path.parent)
