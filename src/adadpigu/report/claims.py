"""What a run has spent by its ledger, and what its `privacy.json` says, bound to the ledger or not.

A folder may be a stranger's: how much there is to account is bounded before any accountant runs. What speaks against a
run is taken from any file, also from a claim that is not trusted; an ε is taken from the ledger's record, or from a
claim that is bound to it (`runs.verifying`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from adadpigu.accounting.ledger_reading import NAME as LEDGER
from adadpigu.accounting.ledger_reading import LedgerRecord, inspect_ledger
from adadpigu.errors import AdaDPIGUError, InputError, LedgerError, first_line
from adadpigu.report.checking import fields_of
from adadpigu.report.ledger_file import ODD, ledger_of
from adadpigu.report.loading import text_of
from adadpigu.report.series import upwards

PRIVACY = "privacy.json"
MOST_CHARGES = 2_000_000
"""draws whose ε is computed for a page; an accountant's time grows with them"""
MOST_KINDS = 32
"""different events among them"""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a whole ledger has charged until now."""

    epsilon: float | None
    """None where there is no guarantee"""
    delta: float
    noise_multiplier: float | None


def read_record(folder: Path) -> LedgerRecord | None:
    """The ledger of a run folder, damaged or not; None where nothing was charged yet."""
    refusal = f"run={str(folder)!r}: {LEDGER}"

    def inspected(path: Path) -> LedgerRecord:
        record = inspect_ledger(path)
        _check_amount(record.plan.charges().values(), refusal)
        return record

    try:
        return ledger_of(folder, inspected)
    except LedgerError as error:
        if not (folder / LEDGER).stat().st_size:
            return None
        raise InputError(f"{refusal}: {first_line(error)}") from None


def stated(folder: Path) -> Mapping[str, object]:
    """What stands in `privacy.json`, not to be trusted but where it speaks against the run."""
    return fields_of(text_of(folder, PRIVACY), f"run={str(folder)!r}: {PRIVACY}").values


def _check_amount(counts: Iterable[object], refusal: str) -> None:
    """Refuses what would keep an accountant busy for minutes."""
    found = [count for count in counts if isinstance(count, int)]
    if len(found) > MOST_KINDS or sum(found) > MOST_CHARGES:
        raise InputError(
            f"{refusal} tells of {len(found)} kinds of draws, {_short(sum(found))} in all: its ε would take too long; "
            f"allowed on a page: {MOST_KINDS} kinds, {MOST_CHARGES:,} in all (`adadpigu ledger show` takes any)"
        )


def _short(count: int) -> str:
    return f"{count:,}" if count < 10**15 else "more than 10^15"


def spent_of(record: LedgerRecord, folder: Path) -> Spent | None:
    """What a ledger's record costs, as `adadpigu ledger show` tells it; None where the record is damaged."""
    if record.damage:
        return None
    refusal = f"run={str(folder)!r}: {LEDGER}"
    try:
        epsilon = record.epsilon()
        noise = settings_of(record).get("noise_multiplier")
    except (AdaDPIGUError, *ODD) as error:
        raise InputError(f"{refusal}: what was charged cannot be accounted: {first_line(error)}") from None
    return Spent(
        epsilon=upwards(epsilon) if math.isfinite(epsilon) else None,
        delta=record.delta,
        noise_multiplier=float(noise) if isinstance(noise, int | float) and 0 <= noise <= 1e30 else None,
    )


def settings_of(record: LedgerRecord) -> Mapping[str, object]:
    """The settings that a ledger's header names; empty where it names none."""
    facts = record.header.get("facts")
    settings = facts.get("settings") if isinstance(facts, dict) else None
    return settings if isinstance(settings, dict) else {}
