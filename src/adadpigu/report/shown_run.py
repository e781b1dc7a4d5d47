"""A run as a page shows it: its facts, curves, statement, timeline, audits, and how to run it again. All of it public.

Made from a folder by `run_reading`, or from a row of results by `results`. The timeline is what the ledger tells: every
process that charged steps. A step that a crash lost is charged again when it is repeated. Nothing is accounted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.ledger_reading import LedgerRecord, LedgerSession
from adadpigu.accounting.wording import number as rounded_up
from adadpigu.report.audits import StoredAudit
from adadpigu.report.curves import Curves
from adadpigu.report.embedding import MOST_LISTED, block, listed, name, visible

OPEN = "open"
"""the state of a run without an end: it trains, or its process ended without notice"""


_ENDS = {
    "crashed": "ended without notice (a crash, a kill or a power cut)",
    "interrupted": "interrupted",
    "failed": "failed",
    "exhausted": "stopped before the budget would have been exceeded",
    "finished": "finished",
}
_UNSAID = "still at work, or ended without notice"


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What a ledger's record tells of a run."""

    record: LedgerRecord
    processes: tuple[LedgerSession, ...]
    moments: tuple[tuple[str, str], ...]
    """when each process began, and when it said that it ended; empty where it could not"""

    @property
    def end(self) -> str:
        """How the last process ended."""
        return self.processes[-1].end

    @property
    def secret(self) -> bool:
        """Whether nobody can repeat the noise of any process."""
        return all(process.secret for process in self.processes)

    def to_json(self, *, over: bool) -> dict[str, object]:
        """For the page; `over` where the run is known to have ended."""
        record, rows = self.record, []
        for number, (process, (began, ended)) in enumerate(zip(self.processes, self.moments, strict=True), start=1):
            unsaid = number == len(self.processes) and not over and process.end == "crashed"
            rows.append(
                {
                    "first": process.first_step,
                    "charged": process.steps,
                    "end": _UNSAID if unsaid else _ENDS.get(process.end, name(process.end)),
                    "short": OPEN if unsaid else name(process.end),
                    "bad": process.end in ("crashed", "failed") and not unsaid,
                    "began": _moment(began),
                    "ended": _moment(ended),
                    "randomness": name(process.randomness),
                    "secret": process.secret,
                }
            )
        return {
            "processes": rows[:MOST_LISTED],
            "more": max(0, len(rows) - MOST_LISTED),
            "planned": record.plan.steps,
            "spare": record.plan.spare,
            "charged": record.steps,
            "records": len(record.lines) + 1,
            "digest": record.digest,
            "damage": name(record.damage),
            "torn": record.torn > 0,
        }


def _moment(stored: str) -> str:
    """A time for people, to the second; what is none stays as it stands.

    >>> _moment("2026-11-16T07:25:06.128+00:00"), _moment("")
    ('2026-11-16 07:25:06 UTC', '')
    """
    try:
        return f"{datetime.fromisoformat(stored).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return name(stored)


def timeline_of(record: LedgerRecord) -> Timeline:
    """The timeline that a ledger's record tells."""
    began, ended = [str(record.header.get("time", ""))], [""]
    for line in record.notes:
        if line["note"] == "resumed":
            began.append(str(line.get("time", "")))
            ended.append("")
        else:
            ended[-1] = str(line.get("time", ""))
    moments = tuple(zip(began, ended, strict=True))
    return Timeline(record=record, processes=record.sessions(), moments=moments)


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """One row of the page's table, and what stands behind it."""

    name: str
    where: str
    """path of its folder or file, as it was asked for"""
    method: str
    dataset: str
    state: str
    config: str
    """as TOML"""
    rerun: tuple[tuple[str, str], ...]
    """commands, each with what it does"""
    curves: Curves
    accuracy: float | None = None
    score: str = "test"
    """which records accuracy was measured on"""
    epsilon: float | None = None
    """that is claimed, or charged while `private` is None; None where there is no guarantee or none is told"""
    delta: float | None = None
    noise_multiplier: float | None = None
    steps: int | None = None
    steps_done: int | None = None
    seconds: float | None = None
    private: bool | None = None
    """None while nothing is claimed yet"""
    seed: int | None = None
    privacy: PrivacyReport | None = None
    timeline: Timeline | None = None
    audits: tuple[StoredAudit, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """a line for each part that cannot be shown"""
    marks: tuple[str, ...] = ()
    """in two or three words each, why its row is not to be trusted or not whole"""
    facts: Mapping[str, str] = field(default_factory=dict)
    """what else is worth a line"""

    def to_json(self, most: int) -> dict[str, object]:
        """For the page, with at most so many points a line."""
        return {
            "id": sha256(self.where.encode("utf-8", "surrogateescape")).hexdigest()[:16],
            "name": name(self.name),
            "where": name(self.where),
            "method": name(self.method),
            "dataset": name(self.dataset),
            "state": self.state,
            "accuracy": self.accuracy,
            "score": name(self.score),
            "epsilon": self.epsilon,
            "epsilon_text": self._epsilon_text(),
            "delta": self.delta,
            "sigma": self.noise_multiplier,
            "steps": self.steps,
            "done": self.steps_done,
            "seconds": self.seconds,
            "seed": self.seed,
            "private": self.private,
            "warnings": listed(self.warnings),
            "missing": listed(self.missing),
            "marks": list(self.marks),
            "statement": None if self.privacy is None else paragraphs(self.privacy),
            "curves": self.curves.to_json(most),
            "ledger": None if self.timeline is None else self.timeline.to_json(over=self.state != OPEN),
            "audits": [audit.to_json() for audit in self.audits],
            "config": block(self.config),
            "rerun": [[block(command), visible(words)] for command, words in self.rerun],
            "facts": {key: name(value) for key, value in self.facts.items()},
        }

    def _epsilon_text(self) -> str:
        if self.private is False:
            return "∞"
        if self.epsilon is None:
            return "—"
        unclaimed = " so far" if self.state == OPEN else " charged"
        return f"{rounded_up(self.epsilon)}{unclaimed if self.private is None else ''}"


def paragraphs(report: PrivacyReport) -> list[list[str]]:
    """Each paragraph's words, followed by the entries of its list, if it has one."""
    parts = (_joined(part.split("\n")) for part in block(report.statement()).split("\n\n"))
    return [[words, *listed(entries)] for words, *entries in parts]


def _joined(lines: list[str]) -> list[str]:
    """Lines joined to one text, and those behind two spaces to the entries of a list.

    >>> _joined(["Not covered:", "  - the choice of", "    parameters", "  1. began"])
    ['Not covered:', 'the choice of parameters', '1. began']
    """
    found = [""]
    for line in lines:
        words = line.strip()
        if line.startswith("  ") and not line.startswith("    "):
            found.append(words.removeprefix("- "))
        else:
            found[-1] = f"{found[-1]} {words}".strip()
    return found
