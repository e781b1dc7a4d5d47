"""The audits as the command line knows them, and what each leaves: JSON and a figure in a folder, and a table."""

import json
import math
import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from adadpigu.accounting.wording import rounded_up
from adadpigu.console import number, print_line, print_prose, print_warning, screen, table
from adadpigu.durable import check_place, lowest_parent, write_bytes, write_text

if TYPE_CHECKING:
    from adadpigu.audit.result import AuditResult


class Kind(NamedTuple):
    """One audit as the command line knows it."""

    name: str
    counts: str  # what its observations are
    means: str  # what the ε that it shows says
    sizes: Mapping[str, int] = MappingProxyType({})  # further options, and the most of each
    looks_at_records: bool = False  # so that own data needs --diagnostics; the others never look at a private record
    sample_rate: float = 0.02
    steps: int = 3000  # of what is audited where neither a run, a preset nor a config says so


_LOOKED = "what an attacker has told apart: near the claim is as it should be, above it is a leak"
_IMPLIED = "what the claim's plan costs with what was found: at the claim is as it should be, above it is a leak"
_RECKONED = "what the claim's plan costs at least, by another reckoning: at the claim is right, above it is wrong"
_KINDS = (
    Kind("white-box", "released coordinates, each world", _LOOKED, {"observations": 10**8, "directions": 64}),
    Kind("one-run", "guesses", _LOOKED, {"canaries": 10**5, "guesses": 10**5}, looks_at_records=True),
    Kind("many-runs", "runs, each world", _LOOKED, {"runs": 10**6}, looks_at_records=True, sample_rate=0.1, steps=60),
    Kind("membership", "guesses", _LOOKED, {"models": 10**4}, looks_at_records=True, sample_rate=0.25, steps=200),
    Kind("sampler", "draws", _IMPLIED, {"draws": 10**6}),
    Kind("noise", "numbers of noise", _IMPLIED, {"numbers": 10**8}),
    Kind("replay", "draws compared", _IMPLIED),
    Kind("accountant", "draws counted", _RECKONED),
)
KINDS = {kind.name: kind for kind in _KINDS}
OWNERS = {size: kind for kind in _KINDS for size in kind.sizes}  # which audit takes an option


def check_folder(folder: Path) -> None:
    """Makes the folder before the work is done; one that a stranger's link leads away is refused."""
    there = folder.absolute() if folder.exists() else lowest_parent(folder)
    problems = {
        "is a link; allowed: a folder": folder.is_symlink(),
        f"cannot be made: {there} is a file; allowed: a folder": not there.is_dir(),
        f"cannot be written: {there} is read-only": not os.access(there, os.W_OK),
    }
    check_place(folder, problems)


def write(result: "AuditResult", folder: Path, stem: str) -> list[Path]:
    """The result as JSON and as a figure, beside those of earlier audits; what cannot be written costs no verdict."""
    from adadpigu.audit.result import picture

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


def kept(folder: Path, stem: str) -> "AuditResult | None":
    """What an earlier call has found and written; None where it has not."""
    from adadpigu.report.audits import audit_of
    from adadpigu.runs.reading import json_of

    name = f"{stem}.json"
    return audit_of(json_of(folder, name), name).result if (folder / name).is_file() else None


def show(result: "AuditResult", written: list[Path]) -> None:
    """One audit: what is claimed, what was shown, and what that rests on."""
    kind = KINDS[result.audit]
    rows = [
        ["audited", result.subject],
        ["ε claimed", f"{claimed(result.epsilon_claimed)} at δ = {result.delta:g}"],
        [f"ε shown, confidence {result.confidence:g}", number(result.epsilon_lower)],
        ["ε shown, confidence 1 − 1e-6", number(result.epsilon_certain)],
        ["observations", f"{result.observations:,} ({kind.counts})"],
        ["verdict", result.verdict],
    ]
    if result.reach is not None:
        rows.insert(4, ["most that could be shown at 1 − 1e-6", number(result.reach)])
    screen().print(table(["", ""], rows))
    screen().print()
    print_prose(f"ε shown is {kind.means}.")
    exposed = ("un-noised values of your records were looked at: what is shown here is OUTSIDE their guarantee",)
    sections = {"Findings": result.findings, "Assumed": result.assumed, "Exposed": exposed if result.exposed else ()}
    for title, lines in sections.items():
        if lines:
            screen().print(f"\n{title}")
        for line in lines:
            print_prose(line, indent="  ")
    print_line("\n" + "\n".join(map(str, written)))


def claimed(epsilon: float) -> str:
    """An ε that is claimed, for people: rounded up, as the statement rounds it."""
    return "∞" if math.isinf(epsilon) else rounded_up(epsilon)
