"""What an audit leaves: its result as JSON and a figure in a folder, and a table with its assumptions on the screen."""

from __future__ import annotations

import json
import math
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from adadpigu.accounting.wording import number as rounded_up
from adadpigu.cli.audit_kinds import KINDS
from adadpigu.cli.output import print_line, print_prose, print_warning, screen, table
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from adadpigu.audit.result import AuditResult


def check_folder(folder: Path) -> None:
    """Makes the folder before the work is done; one that a stranger's link leads away is refused."""
    if folder.is_symlink():
        raise InputError(f"out={str(folder)!r} is a link; allowed: a folder")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out={str(folder)!r} is a file; allowed: a folder")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"out={str(folder)!r}: {there} is a file; allowed: a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"out={str(folder)!r} cannot be written: {there} is read-only")


def write(result: AuditResult, folder: Path, stem: str) -> list[Path]:
    """The result as JSON and as a figure, beside those of earlier audits; what cannot be written costs no verdict."""
    from adadpigu.audit.figures import picture
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
        ["verdict", _verdict(result)],
    ]
    if result.reach is not None:
        rows.insert(4, ["most that could be shown at 1 − 1e-6", shown(result.reach)])
    screen().print(table(["", ""], rows))
    screen().print()
    print_prose(f"ε shown is {kind.means}.")
    exposed = ("un-noised values of your records were looked at: what is shown here is OUTSIDE their guarantee",)
    told = (("Findings", result.findings), ("Assumed", result.assumed), ("Exposed", exposed if result.exposed else ()))
    for title, lines in told:
        if lines:
            screen().print(f"\n{title}")
        for line in lines:
            print_prose(line, indent="  ")
    print_line("\n" + "\n".join(map(str, written)))


def _verdict(result: AuditResult) -> str:
    if result.passed and result.powerless:
        return "not refuted (too few to refute)"
    return "not refuted" if result.passed else "REFUTED"


def claimed(epsilon: float) -> str:
    """An ε that is claimed, for people: rounded up, as the statement rounds it."""
    return "∞" if math.isinf(epsilon) else rounded_up(epsilon)


def shown(epsilon: float) -> str:
    """An ε that was shown, for people."""
    return "∞" if math.isinf(epsilon) else f"{epsilon:.4g}"
