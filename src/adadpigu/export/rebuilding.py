"""The privacy report that a ledger tells of, made again from its record alone: what an edited report is found by.

It is made by the function that made the first one, so that a field which is added there is compared here. What no line
of a ledger tells is taken from the report that is being judged: a look at sums by an audit's mechanism, the
shared total, and the versions of a later process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from adadpigu.accounting import PrivacyReport, ReleaseSummary, privacy_report
from adadpigu.accounting.ledger_reading import LedgerRecord
from adadpigu.distributed.mirror import MirrorLedger
from adadpigu.training.reporting import COMPARED, FAILED

_WELL = ("finished", "exhausted")
"""ends of a run that nobody interrupted"""


def rebuilt(record: LedgerRecord, told: PrivacyReport) -> PrivacyReport:
    """The report of the run that a ledger records; `told` is the one to be compared with it."""
    facts, lives, released = record.header["facts"], record.lives(), _released(record)
    settings, budget = facts["settings"], record.header["budget"]
    bounds = [release.sensitivity for release in released if release.name == "gradient"]
    return privacy_report(
        plan=record.plan,
        spent=record.events(),
        delta=record.delta,
        target_epsilon=None if budget is None else budget["epsilon"],
        method=facts["method"],
        records=settings["records"],
        expected_batch_size=settings["batch_size"],
        noise_multiplier=float(settings["noise_multiplier"]),
        clip_norm=max((bound for bound in bounds if math.isfinite(bound)), default=None),
        steps_done=_steps_done(record),
        releases=released,
        randomness="; ".join(dict.fromkeys(life.randomness for life in lives)),
        randomness_private=all(life.secret for life in lives),
        diagnostics_exposed=told.diagnostics_exposed is True or settings["diagnostics"] is not False,
        interrupted=lives[-1].end not in _WELL,
        lives=lives,
        shared=told.shared if facts["shared"] is True else None,
        not_covered=[
            *([COMPARED] if facts["shared"] is True else []),
            *([FAILED] if any(life.end == "failed" for life in lives) else []),
            *record.confessed,
        ],
        warnings=record.warnings,
        versions=_versions(facts, told, resumed=len(lives) > 1),
    )


def _released(record: LedgerRecord) -> list[ReleaseSummary]:
    """What was released, by name, as a ledger in memory folds it."""
    return [
        ReleaseSummary(name=r.name, dimension=r.size, sensitivity=r.sensitivity, noise_multiplier=r.noise_multiplier)
        for r in MirrorLedger(record).released
    ]


def _steps_done(record: LedgerRecord) -> dict[str, int]:
    """How far each stage got, by the note that the last process left at its end; nothing where it left none."""
    last = record.notes[-1] if record.notes else {}
    left, counts = int(last.get("steps_done", 0)), {}
    for stage in record.plan.stages:
        counts[stage.name] = max(0, min(stage.steps, left))
        left -= stage.steps
    return counts


def _versions(facts: Mapping[str, Mapping[str, str]], told: PrivacyReport, *, resumed: bool) -> Mapping[str, str]:
    """Of the packages: a ledger tells those of its first process, a report those of the last."""
    return told.versions if resumed else facts["versions"]
