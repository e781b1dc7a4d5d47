"""Audits as they were stored: what was claimed, what was shown, and the verdict. Nothing is audited here.

A verdict follows from the stored numbers by the rule of `AuditResult`; a file whose own verdict is another is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from adadpigu.audit.result import AuditResult
from adadpigu.errors import InputError
from adadpigu.report.embedding import listed, name
from adadpigu.runs.reading import Fields, fields_of, text_of

FOLDER = "audits"
"""of a run folder"""
_LARGEST = 1e30


@dataclass(frozen=True, kw_only=True)
class StoredAudit:
    """An audit and the file that holds it."""

    file: str
    result: AuditResult

    def to_json(self) -> dict[str, object]:
        """For the page; infinity is null."""
        result = self.result
        return {
            "file": name(self.file),
            "audit": name(result.audit),
            "subject": name(result.subject),
            "claimed": _finite(result.epsilon_claimed),
            "delta": result.delta,
            "shown": _finite(result.epsilon_lower),
            "certain": _finite(result.epsilon_certain),
            "reach": result.reach,
            "confidence": result.confidence,
            "observations": result.observations,
            "verdict": verdict(result),
            "refuted": not result.passed,
            "findings": listed(result.findings, name),
            "assumed": listed(result.assumed, name),
            "exposed": result.exposed,
        }


def verdict(result: AuditResult) -> str:
    """Whether the claim has fallen, in words."""
    if not result.passed:
        return "REFUTED"
    return "not refuted (too few observations to refute)" if result.powerless else "not refuted"


def is_audit(stored: Fields) -> bool:
    """Whether an object is one that `adadpigu audit` writes."""
    return {"audit", "epsilon_claimed", "epsilon_lower_certain"} <= stored.values.keys()


def audit_of(stored: Fields, file: str) -> StoredAudit:
    """A stored audit; refused where it contradicts itself."""
    delta, confidence = stored.number("delta", 0, 1), stored.number("confidence", 0, 1)
    stored.check(
        delta is not None and confidence is not None, "delta", "with a confidence, as `adadpigu audit` wrote it"
    )
    found = AuditResult(
        audit=stored.text("audit"),
        subject=stored.text("subject"),
        epsilon_claimed=_or_infinite(stored, "epsilon_claimed"),
        delta=delta or 0.0,
        epsilon_lower=_or_infinite(stored, "epsilon_lower"),
        epsilon_certain=_or_infinite(stored, "epsilon_lower_certain"),
        confidence=confidence or 0.0,
        observations=stored.count("observations"),
        assumed=stored.texts("assumed"),
        reach=stored.number("epsilon_reach", 0, _LARGEST),
        findings=stored.texts("findings"),
        exposed=stored.flag("diagnostics_exposed"),
    )
    stored.check(stored.flag("passed") == found.passed, "passed", "the verdict that follows from its numbers")
    return StoredAudit(file=file, result=found)


def audits_of_run(folder: Path) -> tuple[tuple[StoredAudit, ...], tuple[str, ...]]:
    """What is in a run's folder of audits, and a line for each file that cannot be shown."""
    found: list[StoredAudit] = []
    odd: list[str] = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        where = f"{FOLDER}/{path.name}"
        try:
            found.append(audit_of(fields_of(text_of(folder, where), f"run={str(folder)!r}: {where}"), path.name))
        except InputError as error:
            odd.append(str(error))
    return tuple(found), tuple(odd)


def _or_infinite(stored: Fields, key: str) -> float:
    value = stored.number(key, 0, _LARGEST)
    return math.inf if value is None else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
