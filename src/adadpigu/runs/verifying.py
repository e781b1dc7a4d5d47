"""Whether the files of a run folder belong together: weights, config, claim and statement are those that its ledger
closed with. The folder may be a stranger's; all that is read is public.

The last record of a ledger has the SHA-256 of each file that the run left, and the model's metadata names the run. So
mix-ups and edits of single files are found; whoever rewrites all files together, ledger included, is not.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.ledger_reading import NAME, LedgerRecord, inspect_ledger
from adadpigu.errors import AdaDPIGUError, InputError, first_line
from adadpigu.report.ledger_file import ledger_of
from adadpigu.report.loading import file_of, text_of
from adadpigu.tensors import digest, read_header, read_tensors
from adadpigu.training.run import MODEL, RUN, TEXTS

State = Literal["bound", "differs", "open", "older"]
_OPEN = (
    f"{NAME} has no closing record: the run is at work, or was cut off before its end, and nothing binds its files; "
    "`adadpigu train --resume RUN` brings it to its end"
)
_OLDER = (
    f"{NAME} was written before weights were bound to the ledger, so nothing says that this model is the run's; train "
    "again, or trust whoever kept the folder"
)
_REMEDY = "put the run's own file back, or train again"


@dataclass(frozen=True, kw_only=True)
class Binding:
    """How the files of a folder stand to its ledger."""

    state: State
    file: str = ""
    """which one differs, or has nothing to be compared with"""
    why: str = ""
    """and what to do, in one line"""

    @property
    def bound(self) -> bool:
        """Whether every file is as the run left it."""
        return self.state == "bound"

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {"bound": self.bound, "differs": self.file or None, "why": self.why or None}


def verify(folder: Path) -> Binding:
    """Compares a folder with the ledger in it; one that cannot be read differs."""
    try:
        return compare(folder, ledger_of(folder, inspect_ledger))
    except InputError as error:
        return Binding(state="differs", file=NAME, why=str(error))


def compare(folder: Path, record: LedgerRecord) -> Binding:
    """Compares a folder with a ledger's record that was read from it."""
    where = f"run={str(folder)!r}"
    if record.damage:
        why = f"{where}: the ledger is damaged: {record.damage} ({NAME}); {_REMEDY}"
        return Binding(state="differs", file=NAME, why=why)
    if record.closing is None:
        state: State = "older" if record.older else "open"
        return Binding(state=state, file=NAME, why=f"{where}: {_OLDER if record.older else _OPEN}")
    run = str(record.header["facts"].get("run"))
    ends = [life.end for life in record.lives()]
    for name in (*TEXTS, *(() if ends[-1:] == ["failed"] else (MODEL,))):
        if name not in record.closing:
            why = f"{where}: the last record of {NAME} does not name {name}, so nothing binds it; {_REMEDY}"
            return Binding(state="differs", file=name, why=why)
    for name in (MODEL, *(name for name in record.closing if name != MODEL)):
        try:
            odd = _difference(folder, name, record.closing.get(name), run)
        except InputError as error:
            return Binding(state="differs", file=name, why=str(error))
        if odd:
            return Binding(state="differs", file=name, why=f"{where}: {odd}; {_REMEDY}")
    return Binding(state="bound")


def verified(folder: Path) -> tuple[PrivacyReport, LedgerRecord]:
    """The privacy report of a folder and its ledger; refuses a folder whose files do not belong together."""
    binding = verify(folder)
    if not binding.bound:
        raise InputError(binding.why)
    return read_privacy(folder), ledger_of(folder, inspect_ledger)


def read_privacy(folder: Path) -> PrivacyReport:
    """The privacy report in a folder, as it stands there."""
    try:
        report = PrivacyReport.from_json(json.loads(text_of(folder, "privacy.json")))
        report.statement()
    except RecursionError:
        raise InputError(f"run={str(folder)!r}: privacy.json cannot be read: it nests too deep") from None
    except (AdaDPIGUError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"run={str(folder)!r}: privacy.json cannot be read: {first_line(error)}") from None
    return report


def _difference(folder: Path, name: str, wanted: str | None, run: str) -> str:
    """What is wrong with a file; empty where nothing is."""
    if wanted is None:
        return f"{name} is not the run's, which left none by its {NAME}" if (folder / name).exists() else ""
    path = file_of(folder, name)
    if name != MODEL:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    else:
        named = read_header(path, "model").metadata.get(RUN, run)
        if named != run:
            return f"{name} is of run {named[:8]!r} and {NAME} of run {run[:8]!r}: one of them is from another folder"
        found = digest(sorted(read_tensors(path, "model").items()))
    return "" if found == wanted else f"{name} is not as the run left it, by the SHA-256 in the last record of {NAME}"
