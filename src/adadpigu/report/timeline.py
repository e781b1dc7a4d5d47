"""The life of a run as its ledger tells it: every process that charged steps, when it began, and how it ended.

A step that was charged and lost in a crash is charged again when it is repeated, so that the line of steps over charges
falls back there. Reads public facts only; nothing is accounted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from adadpigu.accounting.ledger_reading import LedgerRecord
from adadpigu.report.embedding import MOST_LISTED, name

_ENDS = {
    "crashed": "ended without notice (a crash, a kill or a power cut)",
    "interrupted": "interrupted",
    "failed": "failed",
    "exhausted": "stopped before the budget would have been exceeded",
    "finished": "finished",
}
_OPEN = "still at work, or ended without notice"


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process that worked on the run."""

    first_step: int
    charged: int
    end: str
    """as the ledger has it"""
    began: str
    ended: str
    """when it said so; empty where it could not"""
    randomness: str
    secret: bool


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What a ledger tells of a run."""

    processes: tuple[Process, ...]
    planned: int
    spare: int
    records: int
    digest: str
    damage: str
    """why it cannot be trusted; empty where it can"""
    torn: bool
    """whether a record was never finished; it counts as charged"""
    method: str
    dataset: str
    confessed: tuple[str, ...]
    """what was done since that the guarantee does not cover"""

    @property
    def charged(self) -> int:
        """Steps, those that were repeated counted again."""
        return sum(process.charged for process in self.processes)

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
        rows = []
        for number, process in enumerate(self.processes[:MOST_LISTED], start=1):
            unsaid = number == len(self.processes) and not over and process.end == "crashed"
            rows.append(
                {
                    "first": process.first_step,
                    "charged": process.charged,
                    "end": _OPEN if unsaid else _ENDS.get(process.end, name(process.end)),
                    "short": "open" if unsaid else name(process.end),
                    "bad": process.end in ("crashed", "failed") and not unsaid,
                    "began": _moment(process.began),
                    "ended": _moment(process.ended),
                    "randomness": name(process.randomness),
                    "secret": process.secret,
                }
            )
        return {
            "processes": rows,
            "more": len(self.processes) - len(rows),
            "planned": self.planned,
            "spare": self.spare,
            "charged": self.charged,
            "records": self.records,
            "digest": self.digest,
            "damage": name(self.damage),
            "torn": self.torn,
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
    processes = tuple(
        Process(
            first_step=life.first_step,
            charged=life.steps,
            end=life.end,
            began=start,
            ended=stop,
            randomness=life.randomness,
            secret=life.secret,
        )
        for life, start, stop in zip(record.lives(), began, ended, strict=True)
    )
    facts = record.header["facts"]
    return Timeline(
        processes=processes,
        planned=record.plan.steps,
        spare=record.plan.spare,
        records=len(record.lines) + 1,
        digest=record.digest,
        damage=record.damage,
        torn=record.torn > 0,
        method=str(facts.get("method", "")),
        dataset=str(facts.get("dataset", "")),
        confessed=tuple(str(line["confession"]) for line in record.lines if "confession" in line),
    )
