"""The ledger of a run folder that may be a stranger's: a file within it, not too long, of lines that a run writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adadpigu.accounting.journal import head_path
from adadpigu.accounting.ledger_reading import NAME, LedgerRecord
from adadpigu.errors import InputError, LedgerError
from adadpigu.report.loading import file_of

MOST_LEDGER = 1 << 27
"""bytes of a ledger that is read"""
ODD = (RecursionError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError)
"""what lines that no run has written can raise"""


def ledger_of(folder: Path, read: Callable[[Path], LedgerRecord]) -> LedgerRecord:
    """What `read` makes of it; a `LedgerError`, of a ledger that is damaged or empty, is the caller's to word."""
    refusal, path = f"run={str(folder)!r}: {NAME}", file_of(folder, NAME)
    if head_path(path).exists():
        file_of(folder, head_path(path).name)
    size = path.stat().st_size
    if size > MOST_LEDGER:
        raise InputError(f"{refusal} has {size} bytes; allowed: up to {MOST_LEDGER}")
    try:
        return read(path)
    except (LedgerError, InputError):
        raise
    except ODD as error:
        raise InputError(f"{refusal} holds lines that no run has written: {type(error).__name__}") from None
