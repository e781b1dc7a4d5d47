"""One ledger for several runs on one data set, so that tuning adds up: an RDP filter.

    Σ_runs ρ_run(α) ≤ ρ_max(α),   ρ_max = ε − ln((α−1)/α) + (ln δ + ln α)/(α−1)

Privacy loss distributions are not valid here: later runs depend on what earlier ones released. ε, δ and α are fixed
with the file. A run reserves its whole plan before its first draw and gives back at its end what it never charged.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadpigu.accounting.accountants import WHOLE_ORDERS, rdp_values
from adadpigu.accounting.closed_forms import rdp_to_epsilon_improved
from adadpigu.accounting.events import DpEvent, spending_of
from adadpigu.accounting.journal import Chain, Journal, now, read_journal
from adadpigu.accounting.plan import Budget
from adadpigu.errors import BudgetError, InputError, LedgerError, LedgerInUseError, check

if TYPE_CHECKING:
    from adadpigu.accounting.ledger import Ledger

FORMAT = "adadpigu-shared-ledger-1"
_PATIENCE = 10.0  # seconds that a run waits for another one to have written its line


@dataclass(frozen=True, kw_only=True)
class SharedTotal:
    """What all runs on a shared ledger may have spent together."""

    epsilon: float  # of all runs, at the ledger's order
    budget: float
    delta: float
    order: float
    runs: int


@dataclass(frozen=True, kw_only=True)
class SharedRecord:
    budget: Budget
    order: float
    dataset: str
    records: int
    runs: Mapping[str, Mapping[str, Any]]  # the latest line of each run
    damage: str = ""

    @property
    def rdp(self) -> float:
        return math.fsum(float(line["rdp"]) for line in self.runs.values())

    def total(self) -> SharedTotal:
        """What they amount to; of a damaged ledger, its whole budget at least."""
        budget, order = self.budget, self.order
        spent = max(self.epsilon(self.rdp), budget.epsilon if self.damage else 0.0)
        return SharedTotal(epsilon=spent, budget=budget.epsilon, delta=budget.delta, order=order, runs=len(self.runs))

    def epsilon(self, rdp: float) -> float:
        """ε of so much, at the ledger's order."""
        return rdp_to_epsilon_improved(self.order, rdp, self.budget.delta) if rdp else 0.0


def rdp_limit(budget: Budget, order: float) -> float:
    """ρ_max(α): what may be spent at an order; not above zero where that order cannot give the budget.

    >>> round(rdp_limit(Budget(epsilon=4), 6.0), 4)
    2.2381
    """
    return budget.epsilon - rdp_to_epsilon_improved(order, 0.0, budget.delta)


def best_order(budget: Budget) -> float:
    """The whole order at which a plain Gaussian gets the most out of a budget."""
    return max(WHOLE_ORDERS, key=lambda order: rdp_limit(budget, order) / order)


def create_shared(path: Path, budget: Budget, *, dataset: str, records: int, order: float | None = None) -> None:
    """Makes a shared ledger, with what is fixed for good."""
    order = best_order(budget) if order is None else float(order)
    whole = order.is_integer() and 2 <= order <= WHOLE_ORDERS[-1]
    check("order", f"{order:g}", whole, f"must be a whole number from 2 to {WHOLE_ORDERS[-1]:g}")
    check("records", records, records >= 1, "must be at least 1")
    larger = f"cannot give epsilon={budget.epsilon:g}; allowed: larger, such as {best_order(budget):g}"
    check("order", f"{order:g}", rdp_limit(budget, order) > 0, larger)
    with contextlib.closing(Journal(path, new=True)) as journal:
        fixed = {"budget": vars(budget).copy(), "order": order, "dataset": dataset, "records": records}
        journal.append({"shared": FORMAT, "time": now(), **fixed})


def read_shared(path: Path) -> SharedRecord:
    """What a shared ledger holds, damage included."""
    if not path.is_file():
        fault = f"ledger={str(path)!r} does not exist; its total budget is fixed when it is created"
        raise LedgerError(f"{fault}: `adadpigu ledger create FILE --epsilon E --dataset D --records N`")
    return _record(read_journal(path), path)


def _record(chain: Chain, path: Path) -> SharedRecord:
    header = chain.bodies[0] if chain.bodies else {}
    if header.get("shared") != FORMAT:
        what = chain.damage if not chain.bodies and chain.damage else f"it is not a shared ledger ({FORMAT})"
        raise LedgerError(f"ledger={str(path)!r} cannot be used: {what}")
    torn = "its last record was never finished, so what it reserved is not known" if chain.torn else ""
    try:
        record = SharedRecord(
            budget=Budget(**header["budget"]),
            order=float(header["order"]),
            dataset=str(header["dataset"]),
            records=int(header["records"]),
            runs={str(line["run"]): line for line in chain.bodies[1:]},
            damage=chain.damage or torn,
        )
        for line in record.runs.values():
            count, digest = line["head"]
            fits = float(line["rdp"]) >= 0 and type(count) is int and isinstance(digest, str)
            check("line", sorted(line), fits and {"method", "state", "time"} <= line.keys(), "must be as runs write it")
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LedgerError(f"ledger={str(path)!r} holds lines that no run has written") from None
    return record


class SharedLedger:
    """A run's place on a shared ledger."""

    def __init__(self, path: Path, *, dataset: str, records: int, run: str = "") -> None:
        self._path, self._run = path, run
        record = read_shared(path)
        for key, here, there in (("dataset", dataset, record.dataset), ("records", records, record.records)):
            other = f"ledger {str(path)!r} is for {there!r}; allowed: one ledger a data set"
            check(key, repr(here), here == there, other)

    def reserve(self, event: DpEvent, ledger: "Ledger", method: str) -> None:
        """Reserves what a run's whole plan costs; a run that goes on has to be there, with this ledger."""
        with self._writing() as (journal, record):
            self._refuse_foreign(record, ledger)
            journal.append(self._line(self._cost(record, event), ledger.opened_at, method, "reserved"))

    def total(self) -> SharedTotal:
        return read_shared(self._path).total()

    def _refuse_foreign(self, record: SharedRecord, ledger: "Ledger") -> None:
        """A run's ledger is never behind what the shared one knows of it: a copy or an older one would be."""
        known = record.runs.get(self._run)
        if known is None:
            if ledger.count:
                raise InputError(f"ledger={str(self._path)!r} does not know this run; allowed: the one it began with")
            return
        count, digest = known["head"]
        settled = known["state"] == "settled"
        if not (count == 0 or ledger.holds(count, digest)) or (settled and ledger.opened_at != (count, digest)):
            raise LedgerError(f"ledger={str(self._path)!r}: another copy of this run has gone on meanwhile")

    def _line(self, cost: float, head: tuple[int, str], method: str, state: str) -> dict[str, object]:
        return {"run": self._run, "rdp": cost, "method": method, "state": state, "head": list(head), "time": now()}

    def check(self, event: DpEvent) -> None:
        """Refuses what `reserve` would refuse now; writes nothing."""
        self._cost(read_shared(self._path), event)

    def _cost(self, record: SharedRecord, event: DpEvent) -> float:
        cost = rdp_at(event, record.order)
        others = math.fsum(float(line["rdp"]) for run, line in record.runs.items() if run != self._run)
        if not others + cost <= rdp_limit(record.budget, record.order):
            spent = f"{len(record.runs)} runs have spent {record.epsilon(others):.4g}"
            total = f"with this one it would be {record.epsilon(others + cost):.4g} (at order {record.order:g})"
            fault = f"epsilon={record.budget.epsilon:g} of the shared ledger: {spent}, and {total}"
            raise BudgetError(f"{fault}; allowed: fewer steps or more noise")
        return cost

    def settle(self, ledger: "Ledger", method: str) -> None:
        """Gives back what the plan held and was never charged, by a ledger that is closed."""
        with self._writing() as (journal, record):
            journal.append(self._line(rdp_at(ledger.events(), record.order), ledger.head, method, "settled"))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Journal, SharedRecord]]:
        """The file, once other runs have written their lines, and what it holds; refuses a damaged one."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                journal = Journal(self._path, new=False)
                break
            except LedgerInUseError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
        with contextlib.closing(journal):
            record = _record(journal.chain, self._path)
            if record.damage:
                raise LedgerError(f"ledger={str(self._path)!r} is damaged: {record.damage}; it is not written on")
            yield journal, record


def rdp_at(event: DpEvent, order: float) -> float:
    """ρ(α) of an event; infinite for one without noise."""
    spending = spending_of(event)
    return rdp_values(spending, (order,))[0] if spending.private else math.inf
