"""Which runs of this process declared the same data set: several models of one, whose ε and δ add up.

Each statement is true of its own model alone: bagging, cross-validation, one model a class, a second `train`. Runs are
compared by a public fact, the data set's name (folds have several record counts); so what is said has an "if". Runs of
other processes, and those before a restart, cannot be seen.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adadpigu.accounting.wording import rounded_up


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """Public facts of a run."""

    run: str  # what its ledger calls it
    preparation: object  # passes over one preparation are one run
    dataset: str
    records: int
    epsilon: float
    delta: float
    of_owners: bool = False  # whether an owner is the unit of privacy, not a record
    ledger: Path | None  # the one that it shares with others, whose total stands in the statement and is tighter

    def adds_to(self, later: "StartedRun") -> bool:
        """Whether a later run declared data of the same name, and has no account yet that includes this one."""
        counted = self.run == later.run or self.preparation is later.preparation
        return self.dataset == later.dataset and not counted and (self.ledger is None or self.ledger != later.ledger)


class EarlierRuns(dict[str, StartedRun]):
    """The runs of this process so far, by what their ledgers call them."""

    def add(self, run: StartedRun) -> str | None:
        """Notes a run, and says what it and earlier ones on the same data set amount to; None where it is alone.

        ε and δ add up, also where a later run is chosen because of an earlier one.
        """
        found = [other for other in self.values() if other.adds_to(run)]
        self[run.run] = run
        if not found:
            return None
        narrower = run.of_owners and not all(other.of_owners for other in found)
        epsilon, delta = (math.fsum(getattr(one, part) for one in (*found, run)) for part in ("epsilon", "delta"))
        epsilon = math.inf if narrower else epsilon
        of_records = " (an earlier one protects single records, which bounds nothing for an owner)" if narrower else ""
        sizes = " to ".join(dict.fromkeys(f"{end(one.records for one in (*found, run)):,}" for end in (min, max)))
        many = f"{len(found)} earlier runs" if len(found) > 1 else "an earlier run"
        return (
            f"{many} of this process declared data of the same name ({run.dataset}, {sizes} records): records that are "
            f"in all of them have together epsilon = {rounded_up(epsilon)} at delta = {delta:.3g}, by simple "
            f"addition{of_records}"
        )

    def add_audit(self, dataset: str, records: int) -> None:
        """Notes an audit that trains on the user's own records: it shows what no noise covers."""
        run = f"audit {len(self)}"
        self[run] = StartedRun(
            run=run, preparation=run, dataset=dataset, records=records, epsilon=math.inf, delta=0.0, ledger=None
        )

    @contextlib.contextmanager
    def isolated_history(self) -> Iterator[None]:
        """Within it no run was before: an audit's neighbours, trained one after the other, say the same."""
        before = dict(self)
        self.clear()
        try:
            yield
        finally:
            self.clear()
            self.update(before)


earlier_runs = EarlierRuns()
