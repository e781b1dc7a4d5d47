"""The audits as the command line knows them, and what each leaves: JSON and a figure in a folder, and a table."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from adadpigu.accounting.wording import number as rounded_up
from adadpigu.cli.output import print_line, print_prose, print_warning, screen, table
from adadpigu.durable import check_place, lowest_parent

if TYPE_CHECKING:
    from adadpigu.audit.result import AuditResult


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One audit as the command line knows it."""

    name: str
    counts: str
    """what its observations are"""
    means: str
    """what the ε that it shows says"""
    options: tuple[str, ...] = ()
    """that it takes beside those that all take"""
    looks_at_records: bool = False
    """so that own data needs --diagnostics; the others never look at a private record"""
    sample_rate: float = 0.02
    steps: int = 3000
    """of what is audited where neither a run, a preset nor a config says so"""

    def function(self) -> Callable[..., AuditResult]:
        """What runs it."""
        from adadpigu import audit

        found: Callable[..., AuditResult] = getattr(audit, f"audit_{self.name.replace('-', '_')}")
        return found


_LOOKED = "what an attacker has told apart: near the claim is as it should be, above it is a leak"
_IMPLIED = "what the claim's plan costs with what was found: at the claim is as it should be, above it is a leak"
_RECKONED = (
    "what the claim's plan costs at least, by another reckoning: at the claim is as it should be, above it is wrong"
)
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="white-box",
            counts="released coordinates, each world",
            means=_LOOKED,
            options=("observations", "directions"),
        ),
        Kind(name="one-run", counts="guesses", means=_LOOKED, options=("canaries", "guesses"), looks_at_records=True),
        Kind(
            name="many-runs",
            counts="runs, each world",
            means=_LOOKED,
            options=("runs",),
            looks_at_records=True,
            sample_rate=0.1,
            steps=60,
        ),
        Kind(
            name="membership",
            counts="guesses",
            means=_LOOKED,
            options=("models",),
            looks_at_records=True,
            sample_rate=0.25,
            steps=200,
        ),
        Kind(name="sampler", counts="draws", means=_IMPLIED, options=("draws",)),
        Kind(name="noise", counts="numbers of noise", means=_IMPLIED, options=("numbers",)),
        Kind(name="replay", counts="draws compared", means=_IMPLIED),
        Kind(name="accountant", counts="draws counted", means=_RECKONED),
    )
}
MOST = {
    "observations": 10**8,
    "directions": 64,
    "canaries": 10**5,
    "guesses": 10**5,
    "runs": 10**6,
    "models": 10**4,
    "draws": 10**6,
    "numbers": 10**8,
}


def check_folder(folder: Path) -> None:
    """Makes the folder before the work is done; one that a stranger's link leads away is refused."""
    there = folder.absolute() if folder.exists() else lowest_parent(folder)
    check_place(
        folder,
        {
            "is a link; allowed: a folder": folder.is_symlink(),
            f"cannot be made: {there} is a file; allowed: a folder": not there.is_dir(),
            f"cannot be written: {there} is read-only": not os.access(there, os.W_OK),
        },
    )


def write(result: AuditResult, folder: Path, stem: str) -> list[Path]:
    """The result as JSON and as a figure, beside those of earlier audits; what cannot be written costs no verdict."""
    from adadpigu.audit.result import picture
    from adadpigu.durable import write_bytes, write_text

    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.stem for path in folder.iterdir()}
        free = stem if stem not in taken else next(n for k in count(2) if (n := f"{stem}-{k}") not in taken)
        write_text(folder / f"{free}.json", json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n")
        written.append(folder / f"{free}.json")
        if result.draw is not None:
            write_bytes(folder / f"{free}.png", picture(result))
            written.append(folder / f"{free}.png")
    except Exception as error:
        print_warning(f"not all was written to {folder}: {type(error).__name__}: {error}")
    return written


def show(result: AuditResult, written: list[Path]) -> None:
    """One audit: what is claimed, what was shown, and what that rests on."""
    kind = KINDS[result.audit]
    rows = [
        ["audited", result.subject],
        ["ε claimed", f"{claimed(result.epsilon_claimed)} at δ = {result.delta:g}"],
        [f"ε shown, confidence {result.confidence:g}", shown(result.epsilon_lower)],
        ["ε shown, confidence 1 − 1e-6", shown(result.epsilon_certain)],
        ["observations", f"{result.observations:,} ({kind.counts})"],
        ["verdict", verdict(result)],
    ]
    if result.reach is not None:
        rows.insert(4, ["most that could be shown at 1 − 1e-6", shown(result.reach)])
    screen().print(table(["", ""], rows))
    screen().print()
    print_prose(f"ε shown is {kind.means}.")
    exposed = ("un-noised values of your records were looked at: what is shown here is OUTSIDE their guarantee",)
    sections = (
        ("Findings", result.findings),
        ("Assumed", result.assumed),
        ("Exposed", exposed if result.exposed else ()),
    )
    for title, lines in sections:
        if lines:
            screen().print(f"\n{title}")
        for line in lines:
            print_prose(line, indent="  ")
    print_line("\n" + "\n".join(map(str, written)))


def verdict(result: AuditResult) -> str:
    """Whether the claim has fallen, in words."""
    if result.passed and result.powerless:
        return "not refuted (too few to refute)"
    return "not refuted" if result.passed else "REFUTED"


def claimed(epsilon: float) -> str:
    """An ε that is claimed, for people: rounded up, as the statement rounds it."""
    return "∞" if math.isinf(epsilon) else rounded_up(epsilon)


def shown(epsilon: float) -> str:
    """An ε that was shown, for people."""
    return "∞" if math.isinf(epsilon) else f"{epsilon:.4g}"
