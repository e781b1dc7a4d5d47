"""What a reader must see before a run's numbers: why its guarantee is not what the ε alone would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adadpigu.accounting import PrivacyReport
from adadpigu.methods import all_methods
from adadpigu.report.audits import StoredAudit
from adadpigu.report.timeline import Timeline

DIAGNOSTICS = (
    "Diagnostics were on: somebody could look at un-noised losses, norms and batch sizes. These are outside the "
    "guarantee, and so is everything decided because of them. They are not shown on this page."
)
REPEATABLE = (
    "NOT PRIVATE: the noise was reproducible. Whoever knows the seed can subtract it; no ε applies to this run."
)
UNPROTECTED = "NOT PRIVATE: this run gives no guarantee for anybody's record."
UNSAID = (
    "No end is recorded: the run still trains, or its process ended without notice. Nothing is claimed for it yet; "
    "what its ledger has charged is spent."
)
UNKNOWN = (
    "Neither its settings nor its claim can be read: nobody can tell from the folder whether Diagnostics were on, or "
    "whether the noise was secret."
)
UNSTATED = "Its privacy.json cannot be trusted: no ε is shown for it."
UNBOUND = (
    "Its ledger has no record of the files that the run left, so its claim is not shown. An ε beside it is what the "
    "ledger has charged."
)
UNCLAIMED = (
    "The run has ended and there is no privacy.json: nothing is claimed for it. An ε beside it is what its ledger has "
    "charged."
)


@dataclass(frozen=True, kw_only=True)
class Doubts:
    """What the files of a run say against it, or do not say."""

    unprotected: bool
    """no guarantee, whatever the reason"""
    repeatable: bool
    """somebody can repeat the noise"""
    diagnostics: bool
    unsaid: bool
    """no end is recorded"""
    unknown: bool
    """no file tells whether Diagnostics were on, or whether the noise was secret"""
    unstated: bool
    """its claim cannot be trusted"""
    unbound: bool
    """nothing says that its claim is the run's: it has not closed, or began before ledgers did"""
    unclaimed: bool
    """it has ended without a claim"""
    exceeded: tuple[str, ...] = ()
    """audits that are certain of more than the run's ε"""
    confessed: tuple[str, ...] = ()
    """what was confessed in the ledger; a statement tells it, where there is one"""


def cautions_of(
    privacy: PrivacyReport | None, timeline: Timeline | None, audits: Sequence[StoredAudit], doubts: Doubts
) -> tuple[str, ...]:
    """The cautions of a run; any of its files is enough to raise one."""
    refuted = [audit.file for audit in audits if not audit.result.passed]
    exposed = doubts.diagnostics or (privacy is not None and privacy.diagnostics_exposed)
    found = [
        REPEATABLE if doubts.repeatable else "",
        UNPROTECTED if doubts.unprotected and not doubts.repeatable else "",
        DIAGNOSTICS if exposed else "",
        UNKNOWN if doubts.unknown and not exposed else "",
        UNSTATED if doubts.unstated else "",
        UNBOUND if doubts.unbound else "",
        UNCLAIMED if doubts.unclaimed else "",
        f"An audit has REFUTED the claim: {', '.join(refuted)}." if refuted else "",
        f"An audit is certain of more than the ε of this run: {', '.join(doubts.exceeded)}." if doubts.exceeded else "",
        UNSAID if doubts.unsaid and not doubts.unstated else "",
        _ledger(timeline),
        *((f"Not covered: {line}." for line in doubts.confessed) if privacy is None else ()),
        *((f"{warning}." for warning in privacy.warnings) if privacy is not None else ()),
    ]
    return tuple(line for line in found if line)


def unprotected(method: str) -> bool:
    """Whether a method of ours is one that gives no guarantee, as its name tells before anything is claimed.

    >>> unprotected("sgd"), unprotected("dpsgd"), unprotected("somebody's own")
    (True, False, False)
    """
    known = all_methods().get(method)
    return known is not None and not known.private


def _ledger(timeline: Timeline | None) -> str:
    if timeline is None or not timeline.damage:
        return ""
    return f"The ledger is damaged ({timeline.damage}): what was charged cannot be trusted."
