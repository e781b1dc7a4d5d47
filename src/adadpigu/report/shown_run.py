"""A run as a page shows it: its facts, curves, statement, timeline, audits, and how to run it again. All of it public.

Made from a folder by `run_reading`, or from a row of results by `results`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.wording import number as rounded_up
from adadpigu.report.audits import StoredAudit
from adadpigu.report.curves import Curves
from adadpigu.report.embedding import block, listed, name, visible
from adadpigu.report.statement import paragraphs
from adadpigu.report.timeline import Timeline

OPEN = "open"
"""the state of a run without an end: it trains, or its process ended without notice"""


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
