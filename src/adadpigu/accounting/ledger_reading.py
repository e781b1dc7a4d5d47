"""Reading a ledger back: what was charged, by how many processes, and whether the record is whole.

    header -> (charge | reserve | settle | releases | torn | note)* -> closing, where a process came to its end

A reservation charges several steps at once; `settle` gives back those at its end that were never begun. An unfinished
record counts as the largest reservation that the header allows, since a flipped bit at the end looks the same.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadpigu.accounting import events as dp_events
from adadpigu.accounting.accountants import epsilon
from adadpigu.accounting.events import DpEvent
from adadpigu.accounting.journal import Chain, read_journal
from adadpigu.accounting.plan import Plan, check_delta
from adadpigu.errors import LedgerError, check

FORMAT = "adadpigu-ledger-3"
OLDER = "adadpigu-ledger-2"  # of runs that began before ledgers had a closing record
WITHOUT_STEPS = ("adadpigu-one-shot-1", "adadpigu-local-1")  # of systems that make one release, or local reports
LEDGER_FILE = "ledger.log"  # of a run's ledger, in its folder
MOST_RESERVED = 4096  # steps in one reservation
Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LedgerSession:
    """One process that worked on a run."""

    first_step: int  # the step it began with, of the whole run
    steps: int  # steps it charged
    end: str  # finished, interrupted, failed, exhausted, or crashed: the process ended and could not say so
    randomness: str  # what drew its coins and noise
    secret: bool  # whether nobody could repeat them


@dataclass(frozen=True, kw_only=True)
class ReleaseSummary:
    """One named kind of release: its length (None where the method decides), largest sensitivity and least noise."""

    name: str
    dimension: int | None
    sensitivity: float
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """A ledger as it was written."""

    header: Mapping[str, Any]
    lines: tuple[Line, ...]  # all after the header, in order
    torn: int = 0  # bytes of a record that was never finished
    damage: str = ""  # why it cannot be trusted; empty where it can
    digest: str = ""  # of the last record

    @property
    def plan(self) -> Plan:
        return Plan.from_json(self.header["plan"])

    @property
    def closing(self) -> Mapping[str, str] | None:
        """SHA-256 of each file that the last process left, by name; None where it has not closed the record."""
        return self.lines[-1].get("closing") if self.lines and not self.torn else None

    @property
    def older(self) -> bool:
        """Whether the run began before ledgers had a closing record."""
        return bool(self.header["ledger"] == OLDER)

    @property
    def begun_by(self) -> str:
        """The version that began the run, and the day, for a refusal by a later version."""
        versions = self.header["facts"].get("versions")
        version = versions.get("adadpigu") if isinstance(versions, dict) else None
        return f"adadpigu {str(version)[:20]!r}, on {str(self.header.get('time'))[:10]!r}"

    @property
    def delta(self) -> float:
        return float(self.header["delta"])

    @property
    def charges(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if "charge" in line)

    @property
    def notes(self) -> tuple[Line, ...]:
        """When processes began and ended."""
        return tuple(line for line in self.lines if "note" in line)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the guarantee does not cover: declared by the processes that worked on the run, or added since."""
        added = [line["confession"] for line in self.lines if "confession" in line]
        return tuple(dict.fromkeys(map(str, [*self._at_start("declared"), *added])))

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._at_start("warnings")))

    def _at_start(self, key: str) -> list[str]:
        return [str(text) for begin, _ in self._parts() for text in begin.get(key, ())]

    def spent(self) -> Counter[DpEvent]:
        found: Counter[DpEvent] = Counter()
        draws: Mapping[str, Any] = {}
        for line in self.lines:
            draws = line["draws"] if "reserve" in line else draws
            steps = line.get("reserve", 0) - line.get("settle", 0)  # what is settled was reserved last
            charged = line["charged"] if "torn" in line else [(event, steps) for event in draws.values() if steps]
            for event, count in [(line["event"], 1)] if "charge" in line else charged:
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
        """PLD ε of what was charged, of a damaged ledger that of the plan; infinite where noise can be repeated."""
        if not all(session.secret for session in self.sessions()):
            return math.inf
        if (several := self.header["facts"].get("repeats")) is not None:  # of which this run is the best
            return epsilon(dp_events.event_from_json(several), self.delta)
        return epsilon(self.plan.event() if self.damage else self.events(), self.delta)

    @property
    def steps(self) -> int:
        """Steps that were charged, those that were repeated after a crash counted again."""
        return sum(session.steps for session in self.sessions())

    def sessions(self) -> tuple[LedgerSession, ...]:
        return tuple(self._session(begin, part) for begin, part in self._parts())

    def _parts(self) -> Iterator[tuple[Mapping[str, Any], list[Line]]]:
        begin, part = self.header["facts"], list[Line]()
        for line in self.lines:
            if line.get("note") == "resumed":
                yield begin, part
                begin, part = line, []
            part.append(line)
        yield begin, part

    def _session(self, begin: Mapping[str, Any], part: list[Line]) -> LedgerSession:
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
        return LedgerSession(
            first_step=int(begin.get("step", 0)),
            steps=len(charged) + sum(line["steps"] for line in part if "torn" in line),
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
        what = chain.damage or "it has no header, so nothing was charged yet"
        raise LedgerError(f"ledger={str(path)!r} cannot be used: {what}")
    header, lines = chain.bodies[0], chain.bodies[1:]
    if header.get("ledger") in WITHOUT_STEPS:
        told = "is of a release without steps, which statement.txt tells of; nothing binds the files beside it"
        raise LedgerError(f"ledger={str(path)!r} {told}")
    if header.get("ledger") not in (FORMAT, OLDER):
        raise LedgerError(f"ledger={str(path)!r} is not the ledger of a run ({FORMAT})")
    record = LedgerRecord(header=header, lines=lines, torn=chain.torn, damage=chain.damage, digest=chain.digest)
    try:
        _check(record)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        raise LedgerError(f"ledger={str(path)!r} holds lines that no run has written") from None
    return record


_KINDS = {
    "charge": {"charge", "stage", "step", "draw", "event", "releases"},
    "reserve": {"reserve", "stage", "step", "draws"},
    "settle": {"settle", "stage", "step"},
    "torn": {"torn", "steps", "charged"},
    "confession": {"confession"},
    "closing": {"closing"},
}
"""lines by the key that names them, with the keys they have; besides, lists of releases, and notes with any facts"""
_COUNTS = ("charge", "reserve", "settle", "torn", "steps", "step")


def _check(record: LedgerRecord) -> None:
    """Raises unless every line has the keys and types of its kind and no count is negative."""
    most = record.header["reserve"]
    check("reserve", most, type(most) is int and 1 <= most <= MOST_RESERVED, f"must be from 1 to {MOST_RESERVED}")
    left, end = 0, ("", 0)
    for line in record.lines:
        _check_line(line, most)
        if "reserve" in line:
            left, end = line["reserve"], (line["stage"], line["step"] + line["reserve"])
        elif "settle" in line:  # it gives back the last ones of a reservation, once
            last = line["settle"] <= left and (line["stage"], line["step"] + line["settle"]) == end
            check("settle", line, last, "must give back the end of a reservation")
            left = 0
    check_delta(record.delta)
    spent = record.spent()
    for event in spent:
        dp_events.sampled_gaussian(event)
    check("charges", len(spent), not spent - record.plan.charges(), "must be within the plan")
    record.sessions()


def _check_line(line: Line, most: int) -> None:
    kind = next((kind for kind in _KINDS if kind in line), None)
    known = line.keys() == _KINDS[kind] if kind else isinstance(line.get("note"), str) or line.keys() == {"releases"}
    counts = [line[key] for key in _COUNTS if key in line] + [count for _, count in line.get("charged", ())]
    whole = all(type(count) is int and count >= 0 for count in counts) and line.get("reserve", 0) <= most
    named = all(isinstance(value, str) for value in line.get("closing", {}).values())
    check("line", sorted(line), known and whole and named, "must be as a run writes it")
    for release in line.get("releases", ()):
        str(release["name"]), float(release["noise_multiplier"] or 0), float(release["sensitivity"] or 0)
