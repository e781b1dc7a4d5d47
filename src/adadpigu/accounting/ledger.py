"""The record of what was spent: a charge stands on disk before the mechanism may draw its noise.

`ledger.jsonl` is append-only: a header, then one line a charge, now and then a note. It holds names, counts and public
constants, never a value that depends on a record; charges carry no time, since a step's duration tells how many records
it drew. What the plan does not hold cannot be charged, so it cannot happen.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from adadpigu.accounting import events as dp_events
from adadpigu.accounting.accountants import epsilon
from adadpigu.accounting.budget import Budget
from adadpigu.accounting.plan import Plan
from adadpigu.errors import BudgetError, InputError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FORMAT = "adadpigu-ledger-1"
RELATION = "add or remove one record"
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Released:
    """One named release: its length (None where the method decides), largest sensitivity and least noise multiplier."""

    name: str
    size: int | None
    sensitivity: float
    noise_multiplier: float


class Ledger:
    """Holds a run to its plan.

    Formal guarantee: the composition of all charges that ever returned is covered by the plan, whatever the caller
    does, because each one is taken out of the plan first; and the plan is within the budget, if one is given. After a
    failed write nothing more can be charged.

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
    ) -> None:
        _check_within(plan, budget)
        self._plan = plan
        self._remaining = plan.charges()
        self._planned = sum(self._remaining.values())
        self._charged: Counter[DpEvent] = Counter()
        self._keys: set[tuple[str, int, str]] = set()
        self._released: dict[str, Released] = {}
        self._lock = threading.Lock()
        self._refusal = ""
        self._file = None if path is None else _create(path)
        self._write(
            {
                "format": FORMAT,
                "relation": RELATION,
                "time": _now(),
                "plan": plan.to_json(),
                "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
                "facts": dict(facts or {}),
            }
        )

    @property
    def plan(self) -> Plan:
        """What may be spent."""
        return self._plan

    @property
    def count(self) -> int:
        """How many draws were charged."""
        return sum(self._charged.values())

    @property
    def released(self) -> tuple[Released, ...]:
        """What was released so far, by name."""
        return tuple(self._released.values())

    def events(self) -> DpEvent:
        """Everything charged so far, composed."""
        return dp_events.compose(self._charged)

    def charge(
        self,
        event: DpEvent,
        *,
        stage: str,
        step: int,
        draw: str,
        releases: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Takes one draw out of the plan and writes it down; returns only when the line is on disk.

        `event` covers all `releases` made from the draw (each with `name`, `sensitivity`, `noise_multiplier`). More
        noise than planned is charged as planned. Anything else is a `BudgetError`, and nothing is written.
        """
        with self._lock:
            self._check_open()
            key = (stage, step, draw)
            if key in self._keys:
                raise BudgetError(
                    f"stage={stage!r}, step={step}, draw={draw!r}: already charged; one charge covers all releases "
                    "of a draw"
                )
            _check_covers(event, releases)
            planned = self._match(event, self._remaining)
            self._remaining[planned] -= 1
            self._charged[planned] += 1
            self._keys.add(key)
            for release in releases:
                self._note_release(release)
            self._write(
                {
                    "charge": self.count - 1,
                    "stage": stage,
                    "step": step,
                    "draw": draw,
                    "event": dp_events.event_to_json(planned),
                    "releases": [_public(release) for release in releases],
                }
            )

    def ensure_affordable(self, events: Iterable[DpEvent]) -> None:
        """Raises a `BudgetError` unless the plan still holds all of these together; charges nothing."""
        with self._lock:
            self._check_open()
            remaining = self._remaining.copy()
            for event in events:
                remaining[self._match(event, remaining)] -= 1

    def note(self, kind: str, **facts: object) -> None:
        """A line about the run's life, such as "finished" or "interrupted"; public facts only."""
        with self._lock:
            self._check_open()
            self._write({"note": kind, "time": _now(), **facts})

    def close(self) -> None:
        """Ends the record: nothing can be charged afterwards."""
        with self._lock:
            self._refusal = self._refusal or "the ledger is closed"
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note_release(self, release: Mapping[str, object]) -> None:
        """Keeps the widest facts of each named release: an adaptive bound changes from step to step."""
        name, size = str(release["name"]), release.get("size")
        sensitivity, sigma = float(str(release["sensitivity"])), float(str(release["noise_multiplier"]))
        old = self._released.get(name)
        self._released[name] = Released(
            name=name,
            size=int(str(size)) if size is not None else None,
            sensitivity=sensitivity if old is None else max(sensitivity, old.sensitivity),
            noise_multiplier=sigma if old is None else min(sigma, old.noise_multiplier),
        )

    def _check_open(self) -> None:
        if self._refusal:
            raise BudgetError(f"nothing more can be charged: {self._refusal}")

    def _match(self, event: DpEvent, remaining: Mapping[DpEvent, int]) -> DpEvent:
        """The planned event this one is charged as: itself, or else the cheapest planned one that costs no less."""
        if remaining.get(event, 0) > 0:
            return event
        rate, sigma = dp_events.sampled_gaussian(event)
        candidates = []
        for planned, left in remaining.items():
            planned_rate, planned_sigma = dp_events.sampled_gaussian(planned)
            same_rate = planned_rate == rate or planned_sigma == 0
            if left > 0 and same_rate and sigma >= planned_sigma * (1 - _SLACK):
                candidates.append((planned_sigma, planned))
        if not candidates:
            raise BudgetError(
                f"sample_rate={rate}, noise_multiplier={sigma}: the plan holds no such draw "
                f"({self.count} of {self._planned} charged)"
            )
        return max(candidates, key=lambda candidate: candidate[0])[1]

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except BaseException:
            self._refusal = "a line could not be written"
            raise


def _create(path: Path) -> TextIOWrapper:
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError as error:
        raise InputError(f"path={path}: a ledger stands there already; each run has its own") from error
    with contextlib.suppress(OSError):  # some systems cannot open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return file


def _check_within(plan: Plan, budget: Budget | None) -> None:
    if budget is None:
        return
    cost = epsilon(plan.event(), budget.delta)
    if cost > budget.epsilon * (1 + _SLACK):
        raise BudgetError(f"epsilon={budget.epsilon}: the plan of {plan.steps} steps costs {cost:.4g}")


def _check_covers(event: DpEvent, releases: Sequence[Mapping[str, object]]) -> None:
    """Refuse an event that claims more noise than the releases listed under it have together."""
    multipliers = []
    for release in releases:
        value = release.get("noise_multiplier")
        if not isinstance(value, (int, float)):
            raise InputError(f"noise_multiplier={value!r} of release {release.get('name')!r}: must be a number")
        multipliers.append(float(value))
    if not multipliers:
        return
    together = dp_events.combined_noise_multiplier(multipliers)
    claimed = dp_events.sampled_gaussian(event)[1]
    if claimed > together * (1 + _SLACK):
        raise BudgetError(f"noise_multiplier={claimed}: the releases of this draw together have only {together}")


def _public(release: Mapping[str, object]) -> dict[str, object]:
    """A release's public facts; an infinite number becomes null, since the file is strict JSON."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in release.items()
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
