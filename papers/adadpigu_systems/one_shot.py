"""Releases that are made once, without steps or sampling: their statement, and the charge that comes before the noise.

`adadpigu.accounting`'s ledger holds Poisson-sampled Gaussians. A release with a theorem of its own is charged as the
(ε, δ) that the theorem gives, on a journal of the same form: a header, then a charge that is on disk before any number
is drawn. Public throughout.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adadpigu.accounting.journal import Journal, now
from adadpigu.accounting.ledger_reading import WITHOUT_STEPS
from adadpigu.accounting.statement import delta_warnings, library_versions
from adadpigu.core.randomness import Randomness, SystemRandomness
from adadpigu.training.earlier import StartedRun, earlier_runs

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FORMAT = WITHOUT_STEPS[0]
RELATION = "add or remove one record"
NOT_COVERED = (
    "the choice of settings, if other releases of the same records guided it",
    "test records: whatever is measured on them is exact",
    "whatever was computed from these records beforehand: features, scalers, bounds",
    "other releases of these records: their epsilon adds up",
    "facts declared as public: the record count, the classes, the bound on features",
    "how long it took",
)


@dataclass(frozen=True, kw_only=True)
class EpsilonDelta:
    """An event of which only (ε, δ) is known. `dp_accounting` has none such (0.6): several add up, and no better."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class OneShotStatement:
    """What one release claims, by which theorem, and what is not covered."""

    mechanism: str
    epsilon: float
    delta: float
    records: int
    """N, declared"""
    event: DpEvent | EpsilonDelta
    """a Gaussian's for any accountant"""
    sensitivity: float | None
    """of what the noise is added to; None where the theorem has no such number"""
    noise: tuple[str, ...]
    """what was drawn, in words"""
    assumed: tuple[str, ...]
    randomness: str
    private: bool
    """whether nobody can repeat the noise"""
    caveats: tuple[str, ...] = ()
    """what else is not covered: a mechanism's own, and what earlier runs of the process amount to"""

    @property
    def not_covered(self) -> tuple[str, ...]:
        return (*NOT_COVERED, *self.caveats)

    def statement(self) -> str:
        """The guarantee in plain words."""
        if not self.private:
            return f"NOT PRIVATE: the noise of {self.mechanism} can be repeated ({self.randomness})."
        lines = [
            f"{self.mechanism}: ({self.epsilon:g}, {self.delta:g})-differentially private, {RELATION} of about "
            f"{self.records:,} (declared). One release; no steps and no sampling.",
            f"Drawn: {'; '.join(self.noise)}. Generator: {self.randomness}.",
            "It holds because:",
            *(f"  - {line}" for line in self.assumed),
            *(f"Warning: {warning}." for warning in delta_warnings(self.delta, self.records)),
            "Not covered:",
            *(f"  - {line}" for line in self.not_covered),
        ]
        return "\n".join(row for line in lines for row in textwrap.wrap(line, 100, subsequent_indent="    "))

    def to_json(self) -> dict[str, object]:
        """Plain values, the event by name and number."""
        told = {key: value for key, value in vars(self).items() if key != "event"}
        fixed = {"format": FORMAT, "relation": RELATION, "versions": library_versions()}
        return {**fixed, **told, "event": repr(self.event)}


def charge(statement: OneShotStatement, path: Path | None, dataset: str) -> OneShotStatement:
    """Writes the charge, if there is a file; returns only when it is on disk, so call it before any noise is drawn.

    The statement that it returns counts the earlier runs of this process on the same data set.
    """
    spent = {"epsilon": statement.epsilon, "delta": statement.delta, "event": repr(statement.event)}
    facts = {"relation": RELATION, "records": statement.records}
    write_charge(path, FORMAT, facts, {"mechanism": statement.mechanism, **spent})
    run = f"{statement.mechanism} {len(earlier_runs)}"
    told = earlier_runs.add(
        StartedRun(
            run=run,
            preparation=run,
            dataset=dataset,
            records=statement.records,
            epsilon=statement.epsilon if statement.private else math.inf,
            delta=statement.delta,
            ledger=None,
        )
    )
    return statement if told is None else replace(statement, caveats=(*statement.caveats, told))


def write_charge(path: Path | None, kind: str, facts: Mapping[str, object], spent: Mapping[str, object]) -> None:
    """A journal of one charge, if there is a file for it; it is on disk when this returns."""
    if path is None:
        return
    journal = Journal(path, new=True)
    try:
        journal.append({"ledger": kind, "time": now(), **facts})
        journal.append({"charge": 0, **spent})
    finally:
        journal.close()


def secure(randomness: Randomness | None) -> Randomness:
    """The generator that is asked for; the package's secure one where none is."""
    return SystemRandomness() if randomness is None else randomness


def gaussian_event(noise_multiplier: float) -> DpEvent:
    """One Gaussian release of all records, unsampled."""
    import dp_accounting as dp

    return dp.GaussianDpEvent(noise_multiplier)
