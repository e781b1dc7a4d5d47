"""Reading a ledger back: line by line, refusing the first line that is not what it should be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adadpigu.accounting import events as dp_events
from adadpigu.accounting.ledger import FORMAT
from adadpigu.accounting.plan import Plan
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Line = dict[str, object]

_CHARGE_FIELDS = {"stage": str, "step": int, "draw": str, "event": dict, "releases": list}


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """A ledger as it was written: its header, its charges in order, and its notes."""

    header: Mapping[str, object]
    charges: tuple[Line, ...]
    notes: tuple[Line, ...]

    @property
    def plan(self) -> Plan:
        """What the run was allowed to spend."""
        return Plan.from_json(self.header["plan"])  # type: ignore[arg-type]

    def events(self) -> DpEvent:
        """Everything charged, composed: what an accountant replays."""
        spent: Counter[DpEvent] = Counter(dp_events.event_from_json(line["event"]) for line in self.charges)  # type: ignore[arg-type]
        return dp_events.compose(spent)


def read_ledger(path: Path) -> LedgerRecord:
    """The record in a `ledger.jsonl`; a malformed line is refused with its number."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"path={path}: not a readable ledger ({error})") from error
    header: Line | None = None
    charges: list[Line] = []
    notes: list[Line] = []
    for number, raw in enumerate(text.splitlines(keepends=True), start=1):
        try:
            line = _parse(raw)
            if header is None:
                header = _checked_header(line)
            elif "note" in line:
                notes.append(line)
            else:
                charges.append(_checked_charge(line, len(charges)))
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
    if header is None:
        raise InputError(f"{path}, line 1: the ledger is empty")
    return LedgerRecord(header=header, charges=tuple(charges), notes=tuple(notes))


def _parse(raw: str) -> Line:
    if not raw.endswith("\n"):
        raise ValueError("the line was not written to its end")
    try:
        line = json.loads(raw)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    return line


def _checked_header(line: Line) -> Line:
    if line.get("format") != FORMAT:
        raise ValueError(f"format={line.get('format')!r}: must be {FORMAT!r}")
    plan = line.get("plan")
    if not isinstance(plan, dict):
        raise ValueError("the header holds no plan")
    Plan.from_json(plan)
    return line


def _checked_charge(line: Line, expected: int) -> Line:
    if line.get("charge") != expected:
        raise ValueError(f"charge={line.get('charge')!r}: must be {expected}")
    for name, kind in _CHARGE_FIELDS.items():
        if not isinstance(line.get(name), kind):
            raise ValueError(f"{name}={line.get(name)!r}: must be a {kind.__name__}")
    dp_events.sampled_gaussian(dp_events.event_from_json(line["event"]))  # type: ignore[arg-type]
    return line
