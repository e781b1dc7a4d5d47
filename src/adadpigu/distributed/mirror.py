"""The ledger as every process but the first one has it: a copy in memory, which goes the same way and pays for nothing.

The first process's ledger alone is on disk, and a draw is looked at only once it is charged there. A mirror takes the
same charges out of the same plan, so that all processes come to the same decisions about the next step.
"""

from __future__ import annotations

from adadpigu.accounting.ledger import Ledger
from adadpigu.accounting.ledger_reading import LedgerRecord


class MirrorLedger(Ledger):
    """Begins with what stands on the first process's ledger."""

    def __init__(self, record: LedgerRecord) -> None:
        self._begin(record, None)
