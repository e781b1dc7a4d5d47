"""A run as a page shows it: its facts, curves, statement, timeline, audits, and how to run it again. All of it public.

Made from a folder by `run_reading`, or from a row of results by `results`. The timeline is what the ledger tells: every
process that charged steps. A step that a crash lost is charged again when it is repeated. Nothing is accounted here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.ledger_reading import LedgerRecord
from adadpigu.accounting.wording import paragraphs, percent, rounded_up
from adadpigu.methods import all_methods
from adadpigu.report.audits import StoredAudit
from adadpigu.report.curves import Curves
from adadpigu.report.embedding import MOST_LISTED, block, listed, name, visible
from adadpigu.runs.reading import ledger_facts

OPEN = "open"  # the state of a run without an end: it trains, or its process ended without notice
EXPOSED = (
    "Diagnostics were on: somebody could look at un-noised losses, norms and batch sizes. These are outside the "
    "guarantee, and so is everything decided because of them. They are not shown on this page."
)
UNPROTECTED = "NOT PRIVATE: this run gives no guarantee for anybody's record."
_ENDS = {
    "crashed": "ended without notice (a crash, a kill or a power cut)",
    "exhausted": "stopped before the budget would have been exceeded",
}


def unprotected(method: str) -> bool:
    """Whether a method of ours is one that gives no guarantee, as its name tells before anything is claimed.

    >>> unprotected("sgd"), unprotected("dpsgd"), unprotected("somebody's own")
    (True, False, False)
    """
    known = all_methods().get(method)
    return known is not None and not known.private


def whole_number(value: object) -> int | None:
    """A value that a page can hold as a whole number, or None."""
    return value if type(value) is int and abs(value) < 2**53 else None


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """One row of the page's table, and what stands behind it."""

    name: str
    where: str  # path of its folder or file, as it was asked for
    method: str
    dataset: str
    state: str
    config: str  # as TOML
    rerun: tuple[tuple[str, str], ...]  # commands, each with what it does
    curves: Curves
    accuracy: float | None = None
    score: str = "test"  # which records accuracy was measured on
    epsilon: float | None = None
    """that is claimed, or charged while `private` is None; None where there is no guarantee or none is told"""
    delta: float | None = None
    noise_multiplier: float | None = None
    steps: int | None = None
    steps_done: int | None = None
    seconds: float | None = None
    private: bool | None = None  # None while nothing is claimed yet
    seed: int | None = None
    privacy: PrivacyReport | None = None
    ledger: LedgerRecord | None = None
    audits: tuple[StoredAudit, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # a line for each part that cannot be shown
    marks: tuple[str, ...] = ()  # in two or three words each, why its row is not to be trusted or not whole
    facts: Mapping[str, str] = field(default_factory=dict)  # what else is worth a line

    def to_json(self, most: int) -> dict[str, object]:
        """For the page, with at most so many points a line."""
        words = ("name", "where", "method", "dataset", "score")
        plain = ("state", "private", "accuracy", "epsilon", "delta", "noise_multiplier", "seconds", "seed", "marks")
        return {
            "id": sha256(self.where.encode("utf-8", "surrogateescape")).hexdigest()[:16],
            **{key: name(getattr(self, key)) for key in words},
            **{key: getattr(self, key) for key in (*plain, "steps", "steps_done")},
            "epsilon_text": self._epsilon_text(),
            "warnings": listed(self.warnings),
            "missing": listed(self.missing),
            "guesses": _guesses(self.privacy),
            "statement": None if self.privacy is None else [*map(_paragraph, paragraphs(self.privacy))],
            "curves": self.curves.to_json(most),
            "ledger": None if self.ledger is None else timeline(self.ledger, over=self.state != OPEN),
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


def timeline(record: LedgerRecord, *, over: bool) -> dict[str, object]:
    """What a ledger tells of a run; `over` where the run is known to have ended."""
    began, ended = [record.header.get("time")], [None]
    for line in record.notes:
        if line["note"] == "resumed":
            began.append(line.get("time"))
            ended.append(None)
        else:
            ended[-1] = line.get("time")
    sessions, rows = record.sessions(), []
    for number, session in enumerate(sessions[:MOST_LISTED]):
        unsaid = number == len(sessions) - 1 and not over and session.end == "crashed"
        end = "still at work, or ended without notice" if unsaid else _ENDS.get(session.end, name(session.end))
        row = {
            **vars(session),
            "end": end,
            "short": OPEN if unsaid else name(session.end),
            "bad": session.end in ("crashed", "failed") and not unsaid,
            "began": _moment(began[number]),
            "ended": _moment(ended[number]),
            "randomness": name(session.randomness),
        }
        rows.append(row)
    more = len(sessions) - len(rows)
    return {**ledger_facts(record), "damage": name(record.damage), "processes": rows, "more": more}


def _moment(stored: object) -> str:
    """A time for people, to the second; what is none stays as it stands.

    >>> _moment("2026-11-16T07:25:06.128+00:00"), _moment(None)
    ('2026-11-16 07:25:06 UTC', '')
    """
    text = str(stored or "")
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return name(text)


def _guesses(privacy: PrivacyReport | None) -> list[list[str | float]] | None:
    """What guesses are, how many are right without the model, and at most with it, in words too."""
    if privacy is None or not privacy.private or privacy.membership is None:
        return None
    return [[words, *shares, *map(percent, shares)] for words, *shares in privacy.membership.gains()]


def _paragraph(lines: list[str]) -> list[str]:
    """A paragraph's words, followed by the entries of its list, if it has one.

    >>> _paragraph(["Not covered:", "  - the choice of parameters", "  1. began"])
    ['Not covered:', 'the choice of parameters', '1. began']
    """
    entries = [line.strip().removeprefix("- ") for line in lines if line.startswith("  ")]
    return [visible(" ".join(line for line in lines if not line.startswith("  "))), *listed(entries)]
