"""Whether the files of a run folder belong together: they say what they said when its ledger was closed. The folder
may be a stranger's; all that is read is public.

The last record of a ledger has the SHA-256 of what each file says (`file_digest`), and the model's metadata names the
run. So mix-ups and edits of single files are found; whoever rewrites all files together, ledger included, is not.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from adadpigu.accounting import PrivacyReport, epsilon
from adadpigu.accounting.ledger_reading import LEDGER_FILE, LedgerRecord
from adadpigu.errors import InputError
from adadpigu.runs.digests import matches_digest
from adadpigu.runs.reading import file_of, ledger_of, privacy_of
from adadpigu.runs.run import FURTHER, MODEL, OUTPUTS, RUN, SUMMARY, TEXTS
from adadpigu.tensors import digest, read_file

State = Literal["bound", "partly", "differs", "open", "older"]
"""partly: weights and claim are the run's, and a file beside them is not"""
_OPEN = (
    f"{LEDGER_FILE} has no closing record: the run is at work, or was cut off before its end, and nothing binds its "
    "files; `adadpigu train --resume RUN`, or resume=True in Python, brings it to its end"
)
_OLDER = (
    f"{LEDGER_FILE} was written before weights were bound to the ledger, so nothing says that this model is the run's; "
    "`adadpigu export RUN --unbound` hands it out with that sentence in the file, or train again"
)
UNBOUND = (
    "nothing binds this model to the ledger of its run, which was written before weights were bound to ledgers; that "
    "the epsilon is this model's is the word of whoever kept the run folder"
)
"""a warning in the report of such a run"""
_REMEDY = "put the run's own file back (or take away what it left none of), or train again"


@dataclass(frozen=True, kw_only=True)
class Binding:
    """How the files of a folder stand to its ledger."""

    state: State
    file: str = ""  # which one differs, or has nothing to be compared with
    why: str = ""  # and what to do, in one line
    files: tuple[str, ...] = ()  # that were compared, where all are as the run left them
    missing: tuple[str, ...] = ()  # that the run left and are gone: they claim nothing

    @property
    def bound(self) -> bool:
        """Whether every file is as the run left it."""
        return self.state == "bound"

    @property
    def claimed(self) -> bool:
        """Whether the claim is of these weights, whatever other files say."""
        return self.state in ("bound", "partly")

    @property
    def unclosed(self) -> bool:
        """Whether the ledger names no file, so that nothing can be compared."""
        return self.state in ("open", "older")

    def to_json(self) -> dict[str, object]:
        found = {"bound": self.bound, "differs": self.file or None, "why": self.why or None}
        return {**found, "missing": list(self.missing)}

    @property
    def warning(self) -> str:
        """For whoever uses the model; empty where every file is as the run left it."""
        return self.why + ("" if self.claimed else "; no ε holds for this model by the folder's word")


def verify(folder: Path) -> Binding:
    """Compares a folder with the ledger in it; one that cannot be read differs."""
    try:
        return compare(folder, ledger_of(folder))
    except InputError as error:
        return Binding(state="differs", file=LEDGER_FILE, why=str(error))


def compare(folder: Path, record: LedgerRecord) -> Binding:
    """Compares a folder with a ledger's record that was read from it."""
    where = f"run={str(folder)!r}"
    if record.damage:
        why = f"{where}: the ledger is damaged: {record.damage} ({LEDGER_FILE}); {_REMEDY}"
        return Binding(state="differs", file=LEDGER_FILE, why=why)
    if record.closing is None:
        state: State = "older" if record.older else "open"
        return Binding(state=state, file=LEDGER_FILE, why=f"{where}: {_OLDER if record.older else _OPEN}")
    run = str(record.header["facts"].get("run"))
    ends = [session.end for session in record.sessions()]
    for name in (*TEXTS, *(() if ends[-1:] == ["failed"] else (MODEL,))):
        if name not in record.closing:
            why = f"{where}: the last record of {LEDGER_FILE} does not name {name}, so nothing binds it; {_REMEDY}"
            return Binding(state="differs", file=name, why=why)
    further = FURTHER if record.closing.keys() & {*FURTHER} else ()  # what the run left none of counts as well
    for name in dict.fromkeys((MODEL, *TEXTS, *further, *record.closing)):
        try:
            odd = _difference(folder, name, record.closing.get(name), run)
        except InputError as error:
            odd = str(error)
        if odd:
            why = odd if odd.startswith(where) else f"{where}: {odd}; {_REMEDY}"
            return Binding(state="partly" if name in FURTHER else "differs", file=name, why=why)
    missing = tuple(sorted(name for name in record.closing if _is_gone(folder / name)))
    return Binding(state="bound", files=tuple(name for name in record.closing if name not in missing), missing=missing)


def verified(folder: Path, *, unbound: bool = False) -> tuple[PrivacyReport, LedgerRecord]:
    """The privacy report of a folder and its ledger; refuses a folder whose files do not belong together.

    With `unbound` it takes one from before ledgers were closed, if its plan bears the claim out; the report then says
    so among its warnings (`UNBOUND`).
    """
    binding = verify(folder)
    if binding.bound:
        return privacy_of(folder), ledger_of(folder)
    if binding.state != "older" or not unbound:
        raise InputError(binding.why)
    report, record = privacy_of(folder), ledger_of(folder)
    cost = epsilon(record.plan.event(), record.delta)
    if record.delta != report.delta or cost > report.epsilon_pld * (1 + 1e-6):
        costs = f"the plan in {LEDGER_FILE} costs epsilon={cost:.6g} at delta={record.delta:g}"
        claims = f"privacy.json claims {report.epsilon_pld:.6g} at {report.delta:g}"
        raise InputError(f"run={str(folder)!r}: {costs}, and {claims}; {_REMEDY}")
    return replace(report, warnings=(UNBOUND, *report.warnings)), record


def _difference(folder: Path, name: str, wanted: str | None, run: str) -> str:
    """What is wrong with a file; empty where nothing is."""
    if wanted is None:
        return f"{name} is not the run's, which left none by its {LEDGER_FILE}" if (folder / name).exists() else ""
    if name in (SUMMARY, OUTPUTS) and _is_gone(folder / name):
        return ""  # it claims nothing, and no output of the model depends on it
    path = file_of(folder, name)
    if name == MODEL:
        tensors, told = read_file(path, "model")
        named = told.get(RUN, run)
        if named != run:
            other = f"{LEDGER_FILE} of run {run[:8]!r}"
            return f"{name} is of run {named[:8]!r} and {other}: one of them is from another folder"
        same = digest(sorted(tensors.items())) == wanted
    else:
        same = matches_digest(path, wanted)
    return "" if same else f"{name} is not as the run left it, by the SHA-256 in the last record of {LEDGER_FILE}"


def _is_gone(path: Path) -> bool:
    return not path.is_symlink() and not path.exists()
