"""Which runs of this process used the same records: several models of one data set, whose ε and δ add up.

A voting classifier, one model a class, bagging, cross-validation, a second `train`: each statement is true of its model
alone. Records are compared by digests of their inputs, under a key of this process, that are never written: of each
data set the smallest are kept. Equal values are no proof that records are the same, so what is said has an "if".
Where items change from one look to the next, records are compared by where they lie. Runs of other processes, and those
before a restart, cannot be seen; every statement says so.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adadpigu.accounting.wording import number
from adadpigu.data.checking import Digests
from adadpigu.data.overlap import share_records

EARLIER = "of this process on records with the same values"
_KEPT = 16_384
"""digests of a data set that are kept, the smallest ones: a sample by chance that is the same for equal records"""
_SHARE = 0.01
"""of the smaller of two data sets that must be alike: single rows, such as blank images, are alike by chance"""


@dataclass(frozen=True, eq=False)
class Used:
    """The records of one preparation, as far as they are remembered. Sensitive, in memory alone."""

    smallest: Digests
    origin: weakref.ref[object] | None = None
    """the data set, where digests cannot tell"""

    @classmethod
    def of(cls, digests: Digests, origin: object | None = None) -> Used:
        """`origin`: the data set, where its items change from one look to the next."""
        held = None if origin is None or not hasattr(type(origin), "__weakref__") else weakref.ref(origin)
        return cls(np.unique(digests)[:_KEPT], held)

    def alike(self, other: Used) -> bool:
        """Whether some of the records have the values of some of the others, or lie in the same place."""
        end = min(each.smallest[-1] if len(each.smallest) == _KEPT else np.inf for each in (self, other))
        one, two = (each.smallest[each.smallest <= end] for each in (self, other))
        both = len(np.intersect1d(one, two, assume_unique=True))
        if both and both >= _SHARE * min(len(one), len(two)):
            return True
        mine, theirs = (None if each.origin is None else each.origin() for each in (self, other))
        return mine is not None and theirs is not None and share_records(mine, theirs)


@dataclass(frozen=True, kw_only=True)
class _Run:
    used: Used
    epsilon: float
    delta: float
    ledger: Path | None


@dataclass
class EarlierRuns:
    """The runs of this process so far, by what their ledgers call them; those with equal digests together."""

    _runs: dict[bytes, dict[str, _Run]] = field(default_factory=dict)

    def add(self, run: str, used: Used, *, epsilon: float, delta: float, ledger: Path | None) -> str | None:
        """Notes a run, and says what it and the earlier ones on the same records amount to; None where it is alone.

        The total is by simple addition of ε and δ, valid although a later run is chosen because of an earlier one.
        Those on the same shared ledger are left out: its total is tighter, and stands in the statement.
        """
        mine = _Run(used=used, epsilon=epsilon, delta=delta, ledger=None if ledger is None else ledger.resolve())
        found: list[_Run] = []
        for group in self._runs.values():
            if next(iter(group.values())).used.alike(used):
                found += [
                    other
                    for name, other in group.items()
                    if name != run and other.used is not used and (other.ledger is None or other.ledger != mine.ledger)
                ]
        self._runs.setdefault(used.smallest.tobytes(), {})[run] = mine
        if not found:
            return None
        total, deltas = (math.fsum(getattr(one, part) for one in (*found, mine)) for part in ("epsilon", "delta"))
        many = f"{len(found)} earlier runs" if len(found) > 1 else "an earlier run"
        return (
            f"{many} {EARLIER}: if they are the same records, all of them "
            f"together have epsilon = {number(total)} at delta = {deltas:.3g}, by simple addition"
        )

    def clear(self) -> None:
        """Forgets all of them."""
        self._runs.clear()


earlier_runs = EarlierRuns()
