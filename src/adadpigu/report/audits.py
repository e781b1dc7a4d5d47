"""Audits as they were stored: what was claimed, what was shown, and the verdict. Nothing is audited here.

A verdict follows from the stored numbers by the rule of `AuditResult`; a file whose own verdict is another is refused.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from adadpigu.audit.result import AuditResult
from adadpigu.errors import InputError
from adadpigu.report.embedding import listed, name
from adadpigu.runs.reading import Fields, json_of

FOLDER = "audits"  # of a run folder


@dataclass(frozen=True, kw_only=True)
class StoredAudit:
    """An audit and the file that holds it."""

    file: str
    result: AuditResult

    def to_json(self) -> dict[str, object]:
        """For the page: as it is stored, with words of unknown origin made visible; infinity is null."""
        found: dict[str, object] = {"file": name(self.file), "verdict": self.result.verdict}
        for key, value in self.result.to_json().items():
            if isinstance(value, list):
                value = listed(value, name)
            found[key] = name(value) if isinstance(value, str) else value
        return found


def is_audit(stored: Fields) -> bool:
    """Whether an object is one that `adadpigu audit` writes."""
    return {"audit", "epsilon_claimed", "epsilon_lower_certain"} <= stored.values.keys()


def audit_of(stored: Fields, file: str) -> StoredAudit:
    """A stored audit; refused where it contradicts itself."""
    delta, confidence = stored.number("delta", 0, 1), stored.number("confidence", 0, 1)
    keys = ("epsilon_claimed", "epsilon_lower", "epsilon_lower_certain", "epsilon_reach")
    claimed, lower, certain, reach = (stored.number(key, 0, 1e30) for key in keys)
    stored.check(None not in (delta, confidence), "delta", "with a confidence, as `adadpigu audit` wrote it")
    found = AuditResult(
        audit=stored.text("audit"),
        subject=stored.text("subject"),
        epsilon_claimed=math.inf if claimed is None else claimed,
        delta=delta or 0.0,
        epsilon_lower=math.inf if lower is None else lower,
        epsilon_certain=math.inf if certain is None else certain,
        confidence=confidence or 0.0,
        observations=stored.count("observations"),
        assumed=stored.texts("assumed"),
        reach=reach,
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
        try:
            found.append(audit_of(json_of(folder, f"{FOLDER}/{path.name}"), path.name))
        except InputError as error:
            odd.append(str(error))
    return tuple(found), tuple(odd)
