"""Reading a ledger back: what was charged, in how many lives of the process, and whether the record is whole.

    header -> (charge | reserve | settle | releases | torn | note)*

A reservation charges several steps at once; `settle` gives back those at its end that the process knows it never began.
A record that was never finished counts as the largest reservation that the header allows, because a flipped bit at the
end looks the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadpigu.accounting import events as dp_events
from adadpigu.accounting.accountants import epsilon
from adadpigu.accounting.budget import check_delta
from adadpigu.accounting.journal import Chain, read_journal
from adadpigu.accounting.plan import Plan
from adadpigu.errors import AdaDPIGUError, LedgerError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FORMAT = "adadpigu-ledger-2"
NAME = "ledger.log"
"""of a run's ledger, in its folder"""
Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Life:
    """One process that worked on a run."""

    first_step: int
    """the step it began with, of the whole run"""
    steps: int
    """steps it charged"""
    end: str
    """finished, interrupted, failed, exhausted, or crashed: the process ended and could not say so"""
    randomness: str
    """what drew its coins and noise"""
    secret: bool
    """whether nobody could repeat them"""


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """A ledger as it was written."""

    header: Mapping[str, Any]
    lines: tuple[Line, ...]
    """all after the header, in order"""
    torn: int = 0
    """bytes of a record that was never finished"""
    damage: str = ""
    """why it cannot be trusted; empty where it can"""

    @property
    def plan(self) -> Plan:
        """What the run may spend."""
        return Plan.from_json(self.header["plan"])

    @property
    def delta(self) -> float:
        """δ of the run."""
        return float(self.header["delta"])

    @property
    def charges(self) -> tuple[Line, ...]:
        """The draws that were charged one at a time."""
        return tuple(line for line in self.lines if "charge" in line)

    @property
    def notes(self) -> tuple[Line, ...]:
        """What was noted of the run's life."""
        return tuple(line for line in self.lines if "note" in line)

    def spent(self) -> Counter[DpEvent]:
        """How often each event was charged."""
        found: Counter[DpEvent] = Counter()
        last: Line = {}
        for line in self.lines:
            if "charge" in line:
                found[dp_events.event_from_json(line["event"])] += 1
            elif "reserve" in line:
                last = line
                for event in line["draws"].values():
                    found[dp_events.event_from_json(event)] += line["reserve"]
            elif "settle" in line:
                for event in last["draws"].values():
                    found[dp_events.event_from_json(event)] -= line["settle"]
            elif "torn" in line:
                for event, count in line["charged"]:
                    found[dp_events.event_from_json(event)] += count
        if self.torn:
            found.update(self.unfinished(found))
        return found

    def unfinished(self, spent: Counter[DpEvent]) -> Counter[DpEvent]:
        """The most that a record which was never finished can have charged, beside what was spent before it."""
        found: Counter[DpEvent] = Counter()
        for draws in {stage.draws for stage in self.plan.stages if stage.steps}:
            for draw in draws:
                found[draw.event()] += int(self.header["reserve"])
        left = self.plan.charges() - spent
        return Counter({event: min(count, left[event]) for event, count in found.items() if left[event] > 0})

    def events(self) -> DpEvent:
        """Everything charged, composed: what an accountant replays."""
        return dp_events.compose(self.spent())

    def epsilon(self) -> float:
        """ε of what was charged, by PLD at the run's δ; of a damaged ledger, that of the whole plan."""
        return epsilon(self.plan.event() if self.damage else self.events(), self.delta)

    @property
    def steps(self) -> int:
        """Steps that were charged, those that were repeated after a crash counted again."""
        return sum(life.steps for life in self.lives())

    def lives(self) -> tuple[Life, ...]:
        """The processes that worked on the run, in order."""
        return tuple(self._life(begin, part) for begin, part in self._parts())

    def _parts(self) -> Iterator[tuple[Mapping[str, Any], list[Line]]]:
        begin, part = self.header["facts"], list[Line]()
        for line in self.lines:
            if line.get("note") == "resumed":
                yield begin, part
                begin, part = line, []
            part.append(line)
        yield begin, part

    def _life(self, begin: Mapping[str, Any], part: list[Line]) -> Life:
        charged: set[tuple[str, int]] = set()
        end = "crashed"
        for line in part:
            if "charge" in line:
                charged.add((line["stage"], line["step"]))
            elif "reserve" in line:
                charged |= {(line["stage"], line["step"] + n) for n in range(line["reserve"])}
            elif "settle" in line:
                charged -= {(line["stage"], line["step"] + n) for n in range(line["settle"])}
            elif "note" in line and line["note"] != "resumed":
                end = line["note"]
        torn = sum(line["steps"] for line in part if "torn" in line)
        return Life(
            first_step=int(begin.get("step", 0)),
            steps=len(charged) + torn,
            end=end,
            randomness=str(begin.get("randomness", "")),
            secret=begin.get("secret", True) is True,
        )


def read_ledger(path: Path) -> LedgerRecord:
    """The record in a run's ledger; refuses one that is not whole."""
    record = inspect_ledger(path)
    if record.damage:
        raise LedgerError(f"ledger={str(path)!r} is damaged: {record.damage}")
    return record


def inspect_ledger(path: Path) -> LedgerRecord:
    """The record in a run's ledger, or what can be read of it."""
    return record_of(read_journal(path), path)


def record_of(chain: Chain, path: Path) -> LedgerRecord:
    """The record that a journal's lines make; refuses what is no ledger of a run."""
    if not chain.bodies:
        begun = chain.torn or chain.head > 0  # else a process that ended while it made the two files leaves them so
        what = (begun and chain.damage) or "it has no header, so nothing was charged yet"
        raise LedgerError(f"ledger={str(path)!r} cannot be used: {what}")
    header, lines = chain.bodies[0], chain.bodies[1:]
    if header.get("ledger") != FORMAT:
        raise LedgerError(f"ledger={str(path)!r} is not the ledger of a run ({FORMAT})")
    record = LedgerRecord(header=header, lines=lines, torn=chain.torn, damage=chain.damage)
    try:
        _check(record)
    except (AdaDPIGUError, KeyError, TypeError, ValueError, AttributeError):
        raise LedgerError(f"ledger={str(path)!r} holds lines that no run has written") from None
    return record


def _check(record: LedgerRecord) -> None:
    """Raises some error unless every line says what such a line says, and no count is turned round."""
    left, end = 0, ("", 0)
    for line in record.lines:
        if "reserve" in line:
            left, end = line["reserve"], (line["stage"], line["step"] + line["reserve"])
        elif "settle" in line:
            left -= line["settle"]
            if (line["stage"], line["step"] + line["settle"]) != end:  # it gives back the last ones of a reservation
                raise ValueError
        counts = [line[key] for key in ("reserve", "settle", "torn", "steps", "step") if key in line]
        counts += [count for _, count in line.get("charged", ())]
        if left < 0 or not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError
    if not (type(record.header["reserve"]) is int and record.header["reserve"] >= 1):
        raise ValueError
    check_delta(record.delta)
    for event in record.spent():
        dp_events.sampled_gaussian(event)
    record.lives()
