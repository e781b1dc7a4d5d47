"""The record of what was spent: a charge is on disk before the mechanism may draw its noise.

A ledger is a journal of a header, charges and notes. It holds names, counts and public constants, never a value that
depends on a record; charges carry no time, since a step's duration tells how many records it drew. What the plan does
not hold cannot be charged. A process that dies leaves more charged than drawn, never less.
"""

import contextlib
import functools
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from adadpigu.accounting import events as dp_events
from adadpigu.accounting import ledger_reading as reading
from adadpigu.accounting.accountants import epsilon
from adadpigu.accounting.events import DpEvent
from adadpigu.accounting.journal import Journal, now, strict_json
from adadpigu.accounting.plan import Budget, Plan
from adadpigu.errors import BudgetError, LedgerError, check

_SLACK = 1e-9


class Ledger:
    """Holds a run to its plan, through crashes too.

    Formal guarantee: the composition of all charges that ever returned, in this process or in one before it on the same
    file, is covered by the plan, whatever the caller does, because each one is taken out of the plan first; and the
    plan is within the budget, if one is given. After a failed write nothing more can be charged.

    >>> from adadpigu.accounting import draw_event, plan_for
    >>> ledger = Ledger(plan_for(0.1, steps=1)(2.0))
    >>> ledger.charge(draw_event(0.1, [2.0]), stage="training", step=0, draw="batch")
    >>> ledger.charge(draw_event(0.1, [2.0]), stage="training", step=1, draw="batch")
    Traceback (most recent call last):
        ...
    adadpigu.errors.BudgetError: sample_rate=0.1, noise_multiplier=2.0: the plan holds no such draw (1 of 1 charged)
    """

    def __init__(
        self,
        plan: Plan,
        *,
        budget: Budget | None = None,
        path: Path | None = None,
        facts: Mapping[str, object] | None = None,
        delta: float = 1e-5,
        reserve: int = 1,
        unit: str = "record",
    ) -> None:
        """`reserve`: steps that `cover` charges at once, for steps fast beside a disk; `unit`: "record" or "owner"."""
        if budget is not None and (cost := epsilon(plan.event(), budget.delta)) > budget.epsilon * (1 + _SLACK):
            raise BudgetError(f"epsilon={budget.epsilon}: the plan of {plan.steps} steps costs {cost:.4g}")
        check("reserve", reserve, 1 <= reserve <= reading.MOST_RESERVED, f"must be from 1 to {reading.MOST_RESERVED}")
        header: dict[str, object] = {
            "ledger": reading.FORMAT,
            "relation": f"{dp_events.RELATION} {unit}",
            "time": now(),
            "plan": plan.to_json(),
            "budget": None if budget is None else vars(budget).copy(),
            "delta": delta if budget is None else budget.delta,
            "reserve": reserve,
            "facts": dict(facts or {}),
        }
        journal = None if path is None else Journal(path, new=True)
        if journal is not None:
            journal.append(header)
        self._begin(reading.LedgerRecord(header=header, lines=()), journal)

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Goes on with the ledger of a run whose process has ended; refuses one that is damaged or in use."""
        journal = Journal(path, new=False)
        try:
            record = reading.record_of(journal.chain, path)
            ledger = cls.__new__(cls)
            ledger._begin(record, journal)
            if record.torn:
                ledger._charge_unfinished(record)
        except BaseException:
            journal.close()
            raise
        return ledger

    def _begin(self, record: reading.LedgerRecord, journal: Journal | None) -> None:
        self.plan = record.plan
        self.facts: Mapping[str, object] = record.header["facts"]
        self._header, self._lines = record.header, list(record.lines)
        self._journal = journal
        self._charged = reading.LedgerRecord(header=record.header, lines=record.lines).spent()
        self._planned = self.plan.charges()
        self._steps_ahead = int(record.header["reserve"])
        self._reserved: dict[tuple[str, int, str], DpEvent] = {}
        self._keys: set[tuple[str, int, str]] = set()
        self._released: dict[str, reading.ReleaseSummary] = {}
        for line in record.lines:
            for release in line.get("releases", ()):
                self._note_release(release)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._refusal = ""

    @property
    def count(self) -> int:
        """How many draws were charged."""
        return sum(self._charged.values())

    @property
    def released(self) -> tuple[reading.ReleaseSummary, ...]:
        return tuple(self._released.values())

    @property
    def head(self) -> tuple[int, str]:
        """Records written so far and the digest of the last one; of a ledger without a file, nothing."""
        return (0, "") if self._journal is None else (self._journal.count, self._journal.digest)

    @property
    def opened_at(self) -> tuple[int, str]:
        """`head` as it was when the ledger was opened."""
        return (0, "") if self._journal is None else (len(self._journal.chain.digests), self._journal.chain.digest)

    def holds(self, count: int, digest: str) -> bool:
        """Whether its record number `count` had this digest when the ledger was opened."""
        digests = () if self._journal is None else self._journal.chain.digests
        return 0 < count <= len(digests) and digests[count - 1] == digest

    @property
    def record(self) -> reading.LedgerRecord:
        return reading.LedgerRecord(header=self._header, lines=tuple(self._lines))

    def sessions(self) -> tuple[reading.LedgerSession, ...]:
        """The processes that have worked on the run; this one as if it ended now."""
        return self.record.sessions()

    def events(self) -> DpEvent:
        return dp_events.compose(self._charged)

    def charge(
        self, event: DpEvent, *, stage: str, step: int, draw: str, releases: Sequence[Mapping[str, object]] = ()
    ) -> None:
        """Takes one draw out of the plan and writes it down; returns only when it is on disk.

        A draw that `cover` has written down already costs no second write. `event` covers all `releases` made from the
        draw (each with `name`, `sensitivity`, `noise_multiplier`). More noise than planned is charged as planned.
        Anything else is a `BudgetError`, and nothing is written.
        """
        with self._opened():
            key = (stage, step, draw)
            if key in self._keys:
                which = f"stage={stage!r}, step={step}, draw={draw!r}"
                raise BudgetError(f"{which}: already charged; one charge covers all releases of a draw")
            _check_covers(event, releases)
            reserved = self._reserved.get(key)
            if reserved is not None and not _covered(event, reserved):
                rate, sigma = dp_events.sampled_gaussian(event)
                raise BudgetError(f"sample_rate={rate}, noise_multiplier={sigma}: another draw was reserved here")
            planned = self._match(event, self._planned - self._charged) if reserved is None else reserved
            self._keys.add(key)
            news = [release for release in releases if self._note_release(release)]
            if reserved is not None:
                del self._reserved[key]
                if news:
                    self._write({"releases": news})
                return
            self._charged[planned] += 1
            place = {"charge": self.count - 1, "stage": stage, "step": step, "draw": draw}
            self._write({**place, "event": _event_to_json(planned), "releases": list(releases)})

    def cover(self, stage: str, step: int, draws: Mapping[str, DpEvent], *, left: int) -> None:
        """Called before each step, with what it will draw; `left` such steps the stage has, this one included.

        Raises a `BudgetError` unless the plan still holds all draws together. Where several steps are charged at once,
        they are written down here, so that `charge` finds them on disk.
        """
        with self._opened():
            if any((stage, step, draw) in self._reserved for draw in draws):
                return
            remaining = self._planned - self._charged
            matched = {}
            for draw, event in draws.items():
                matched[draw] = self._match(event, remaining)
                remaining[matched[draw]] -= 1
            if self._steps_ahead == 1 or self._journal is None or not draws:
                return
            need, unspent = Counter(matched.values()), self._planned - self._charged
            steps = min(self._steps_ahead, left, *(unspent[event] // count for event, count in need.items()))
            for event, count in need.items():
                self._charged[event] += steps * count
            events = {draw: _event_to_json(event) for draw, event in matched.items()}
            self._write({"reserve": steps, "stage": stage, "step": step, "draws": events})
            # only now: what is not on the file must never be given back there
            self._reserved = {(stage, step + n, draw): event for n in range(steps) for draw, event in matched.items()}

    def store(self, path: Path) -> None:
        """Writes a ledger that was kept in memory to a file, where it goes on."""
        with self._opened():
            journal = Journal(path, new=True)
            for line in (self._header, *self._lines):
                journal.append(strict_json(line))
            self._journal = journal

    def add_caveat(self, text: str) -> None:
        """Keeps something that the guarantee does not cover, once, for every statement from here on."""
        if text not in self.record.caveats:
            with self._opened():
                self._write({"confession": text})

    def note(self, kind: str, **facts: object) -> None:
        """A line about how the run goes, such as "finished" or "interrupted"; public facts only."""
        with self._opened():
            self._settle()
            self._write({"note": kind, "time": now(), **facts})

    def write_closing(self, files: Mapping[str, str]) -> None:
        """The last record of a process: SHA-256 of each file that it leaves, by name. They are on disk by then."""
        with self._opened():
            self._settle()
            self._write({"closing": dict(files)})

    def close(self) -> None:
        """Nothing can be charged afterwards."""
        with self._lock:
            try:
                if not self._refusal and os.getpid() == self._owner:
                    self._settle()
            finally:
                self._refusal = self._refusal or "the ledger is closed"
                if self._journal is not None:
                    self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self) -> None:
        """Gives back the reserved steps of which nothing was drawn; they will not be."""
        reserved, self._reserved = self._reserved, {}
        stages = {stage for stage, _, _ in reserved}
        last = max((step for stage, step, _ in self._keys if stage in stages), default=-1)
        unbegun = {key: event for key, event in reserved.items() if key[1] > last}
        if not unbegun:
            return
        steps, stage = {step for _, step, _ in unbegun}, next(iter(unbegun))[0]
        self._write({"settle": len(steps), "stage": stage, "step": min(steps)})
        for event in unbegun.values():
            self._charged[event] -= 1

    def _charge_unfinished(self, record: reading.LedgerRecord) -> None:
        """A record that was never finished is charged as the largest one it can have been."""
        found = record.unfinished(self._charged)
        self._charged.update(found)
        charged = [[dp_events.event_to_json(event), count] for event, count in found.items()]
        steps = min(self._steps_ahead, max(found.values(), default=0))
        self._write({"torn": record.torn, "steps": steps, "charged": charged})

    def _note_release(self, release: Mapping[str, object]) -> bool:
        """Keeps the widest facts of each named release (an adaptive bound changes), and says whether they changed."""
        name, size = str(release["name"]), release.get("size")
        bound, sigma = _number(release, "sensitivity"), _number(release, "noise_multiplier")
        old = self._released.get(name)
        if old is not None:
            bound, sigma = max(bound, old.sensitivity), min(sigma, old.noise_multiplier)
        dimension = None if size is None else int(str(size))
        new = reading.ReleaseSummary(name=name, dimension=dimension, sensitivity=bound, noise_multiplier=sigma)
        self._released[name] = new
        return new != old

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Lets one thread write at a time, as long as the ledger is open."""
        with self._lock:
            if self._refusal:
                raise BudgetError(f"nothing more can be charged: {self._refusal}")
            if os.getpid() != self._owner:  # it would draw what its parent has reserved
                raise LedgerError("the ledger belongs to another process: a fork may charge nothing")
            yield

    def _match(self, event: DpEvent, remaining: Mapping[DpEvent, int]) -> DpEvent:
        """The planned event this one is charged as: itself, or else the cheapest planned one that costs no less."""
        if remaining.get(event, 0) > 0:
            return event
        candidates = [planned for planned, left in remaining.items() if left > 0 and _covered(event, planned)]
        if not candidates:
            rate, sigma = dp_events.sampled_gaussian(event)
            charged = f"{self.count} of {sum(self._planned.values())} charged"
            raise BudgetError(f"sample_rate={rate}, noise_multiplier={sigma}: the plan holds no such draw ({charged})")
        return max(candidates, key=lambda planned: dp_events.sampled_gaussian(planned)[1])

    def _write(self, line: dict[str, object]) -> None:
        self._lines.append(line)
        try:
            if self._journal is not None:
                self._journal.append(strict_json(line))
        except BaseException:
            self._refusal = "a line could not be written"
            raise


def _covered(event: DpEvent, planned: DpEvent) -> bool:
    """Whether an event costs no more than a planned one."""
    rate, sigma = dp_events.sampled_gaussian(event)
    planned_rate, planned_sigma = dp_events.sampled_gaussian(planned)
    return (planned_rate == rate or planned_sigma == 0) and sigma >= planned_sigma * (1 - _SLACK)


def _check_covers(event: DpEvent, releases: Sequence[Mapping[str, object]]) -> None:
    """Refuse an event that claims more noise than the releases listed under it have together."""
    if not releases:
        return
    claimed, together = _claimed(event, tuple([_number(release, "noise_multiplier") for release in releases]))
    if claimed > together * (1 + _SLACK):
        raise BudgetError(f"noise_multiplier={claimed}: the releases of this draw together have only {together}")


@functools.lru_cache(maxsize=64)
def _claimed(event: DpEvent, multipliers: tuple[float, ...]) -> tuple[float, float]:
    """The noise multiplier of an event, and that of these releases together."""
    return dp_events.sampled_gaussian(event)[1], dp_events.combined_noise_multiplier(multipliers)


_event_to_json = functools.lru_cache(maxsize=64)(dp_events.event_to_json)


def _number(release: Mapping[str, object], key: str) -> float:
    """A release's number; null, as the file has it, is infinite."""
    value = release[key]
    return math.inf if value is None else float(str(value))
