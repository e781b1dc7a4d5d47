"""A ledger written anew with another header or fewer records, whole as its writer would leave it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from adadpigu.accounting.journal import Journal, head_path, read_journal
from adadpigu.accounting.ledger_reading import NAME


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object] = dict, records: int | None = None) -> None:
    """The ledger of a folder, its header changed, and only so many of its records kept."""
    path = folder / NAME
    header, *lines = read_journal(path).bodies
    change(header)
    for old in (path, head_path(path)):
        old.unlink()
    journal = Journal(path, new=True)
    for body in [header, *lines][:records]:
        journal.append(body)
    journal.close()
