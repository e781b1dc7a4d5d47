"""A run read from its folder for a page, part by part: what cannot be read costs no other part, and is told in a line.

The folder may be a stranger's: `runs.reading` reads it. What speaks against a run is taken from any file; an ε is taken
from the ledger's record, or from a `privacy.json` that is bound to it (`runs.verifying`). The un-noised values of
Diagnostics are never read.
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.ledger_reading import LEDGER_FILE, LedgerRecord
from adadpigu.errors import AdaDPIGUError, InputError, first_line
from adadpigu.report.audits import StoredAudit, audits_of_run
from adadpigu.report.curves import METRICS, Curves, read_curves, round_up
from adadpigu.report.embedding import name
from adadpigu.report.shown_run import EXPOSED, OPEN, UNPROTECTED, ShownRun, unprotected, whole_number
from adadpigu.runs import reading
from adadpigu.runs.digests import matches_digest
from adadpigu.runs.run import MODEL, SUMMARY
from adadpigu.runs.verifying import Binding, compare, verify

MOST_CONFIG = 1 << 14  # bytes of a config that is shown
DIAGNOSTICS = "diagnostics.jsonl"
LEFT = (reading.CONFIG, METRICS, LEDGER_FILE, reading.PRIVACY, SUMMARY, "statement.txt", reading.FACTS, MODEL)
"""what a run leaves in its folder; two of them are enough to know one by"""
_CODE = (
    "Its model is code, or its encoder is, not a name that adadpigu knows: training, resuming and evaluating import "
    "and run it with your rights. Read that code first. Of a run folder it is run only where you say that you trust "
    "whoever made the folder."
)
_REPEATABLE = "NOT PRIVATE: the noise was reproducible. Whoever knows the seed can subtract it; no ε applies here."
_UNSAID = (
    "No end is recorded: the run still trains, or its process ended without notice. Nothing is claimed for it yet; "
    "what its ledger has charged is spent."
)
_UNKNOWN = (
    "Neither its settings nor its claim can be read: nobody can tell from the folder whether Diagnostics were on, or "
    "whether the noise was secret."
)
_UNBOUND = (
    "Its ledger has no record of the files that the run left, so its claim is not shown. An ε beside it is what the "
    "ledger has charged."
)
_UNCLAIMED = (
    "The run has ended and there is no privacy.json: nothing is claimed for it. An ε beside it is what its ledger has "
    "charged."
)
T = TypeVar("T")


@dataclass(kw_only=True)
class _Parts:
    """The parts of a folder; None or empty where one is not there or cannot be read."""

    folder: Path
    config: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    summary: reading.Summary | None = None
    curves: Curves = field(default_factory=Curves)
    stated: Mapping[str, object] = field(default_factory=dict)  # what `privacy.json` says, trusted or not
    privacy: PrivacyReport | None = None  # what of it may be shown
    record: LedgerRecord | None = None
    spent: float | None = None  # ε by the ledger, where nothing is claimed
    binding: Binding | None = None  # of a claim to the ledger
    missing: list[str] = field(default_factory=list)

    def read_or(self, read: Callable[[Path], T], otherwise: T) -> T:
        """What is read from the folder, or else the other, and a line that tells why."""
        try:
            return read(self.folder)
        except InputError as error:
            self.missing.append(str(error))
            return otherwise

    def exists(self, file: str) -> bool:
        """Whether there is anything by that name, be it a link to nowhere."""
        return (self.folder / file).exists() or (self.folder / file).is_symlink()

    @property
    def charging(self) -> bool:
        """Whether there is a ledger that is more than an empty file, as it is until the first charge and no longer."""
        path, claimed = self.folder / LEDGER_FILE, self.exists(reading.PRIVACY)
        return self.exists(LEDGER_FILE) and (claimed or not path.is_file() or path.stat().st_size > 0)

    @property
    def end(self) -> str:
        """How the last process ended, by the ledger."""
        return "crashed" if self.record is None else self.record.sessions()[-1].end

    @property
    def logged(self) -> Mapping[str, object]:
        """The settings that the ledger's header names."""
        settings = None if self.record is None else self.record.header["facts"].get("settings")
        return settings if isinstance(settings, dict) else {}

    @property
    def repeatable(self) -> bool:
        """Whether any file says that the noise can be repeated."""
        said = self.settings.get("reproducible_noise") is True
        reported = self.stated.get("randomness_private", True) is not True
        sessions = () if self.record is None else self.record.sessions()
        return said or reported or not all(session.secret for session in sessions)

    @property
    def private(self) -> bool | None:
        """Whether there is a guarantee; None while nothing is claimed."""
        if self.repeatable or self.stated.get("private", True) is not True:
            return False
        if self.privacy is not None:
            return self.privacy.private
        return False if unprotected(self.names()[0]) else None

    def names(self) -> tuple[str, str]:
        """Method and data set, from the file that was written last."""
        if self.summary is not None:
            return self.summary.method, self.summary.dataset
        if self.record is not None:
            facts = self.record.header["facts"]
            return str(facts.get("method") or "—"), str(facts.get("dataset") or "—")
        method = self.settings.get("method")
        return _word(method.get("name") if isinstance(method, Mapping) else method), _word(self.settings.get("dataset"))

    def state(self) -> str:
        if self.summary is None:
            return OPEN if self.end == "crashed" else name(self.end)
        if self.summary.interrupted:
            return "interrupted"
        return "finished" if self.summary.done == self.summary.steps else "stopped early"

    def claim(self) -> tuple[float | None, float | None, float | None]:
        """ε, δ and σ: of the claim, or of what the ledger has charged; nothing where neither can be trusted."""
        hidden = self.private is False
        if self.privacy is not None:
            epsilon = None if hidden else self.privacy.epsilon_pld
            return epsilon, self.privacy.delta, self.privacy.noise_multiplier
        if self.spent is not None and self.record is not None:
            noise = self.logged.get("noise_multiplier")
            sigma = float(noise) if isinstance(noise, int | float) and 0 <= noise <= 1e30 else None
            return self.spent if not hidden and math.isfinite(self.spent) else None, self.record.delta, sigma
        return None, None, None

    def progress(self) -> tuple[int | None, int]:
        """Steps that were planned, and how far the run has come: by its end, by its ledger, or else by its curves."""
        if self.summary is not None:
            return self.summary.steps, self.summary.done
        if self.record is not None:
            last, planned = self.record.sessions()[-1], self.record.plan.steps
            return planned, min(last.first_step + last.steps, planned)
        return self.curves.planned, self.curves.last_step


def is_run_folder(folder: Path) -> bool:
    """Whether a folder looks like one that `adadpigu train` writes to, or like what is left of one."""
    return sum((folder / file).is_file() for file in LEFT) > 1


def read_run(folder: Path) -> ShownRun:
    found = _read(folder)
    audits, odd = audits_of_run(folder)
    summary, state = found.summary, found.state()
    method, dataset = found.names()
    epsilon, delta, noise = found.claim()
    steps, done = found.progress()
    warnings, marks = _against(found, state, audits, incomplete=bool(odd))
    return ShownRun(
        name=folder.resolve().name,
        where=str(folder),
        method=method,
        dataset=dataset,
        state=state,
        config=found.config,
        rerun=_rerun(found, state),
        curves=found.curves,
        accuracy=summary.accuracy if summary else found.curves.last("accuracy") if state == OPEN else None,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise,
        steps=steps,
        steps_done=done,
        seconds=None if summary is None else summary.seconds,
        private=found.private,
        seed=whole_number(found.settings.get("seed")),
        privacy=found.privacy,
        ledger=found.record,
        audits=audits,
        warnings=warnings,
        missing=(*dict.fromkeys(found.missing), *odd),
        marks=marks,
        facts=_facts(found),
    )


def _read(folder: Path) -> _Parts:
    found = _Parts(folder=folder)
    nothing: tuple[str, dict[str, Any]] = ("", {})
    found.config, found.settings = found.read_or(lambda at: reading.config_of(at, MOST_CONFIG), nothing)
    if found.exists(SUMMARY):
        found.summary = found.read_or(reading.summary_of, None)
    if found.charging:
        found.record = found.read_or(reading.ledger_of, None)
    _read_claim(found)
    wanted = found.record and found.record.closing and found.record.closing.get(SUMMARY)
    if wanted and found.summary and not matches_digest(found.folder / SUMMARY, wanted):
        found.summary = None
    if wanted and found.binding and not found.summary and not any(SUMMARY in line for line in found.missing):
        found.missing.append(f"run={str(found.folder)!r}: {SUMMARY} is gone or was changed; no score is shown")
    found.curves, odd = found.read_or(read_curves, (found.curves, ""))
    found.missing += [odd] if odd else []
    return found


def _read_claim(found: _Parts) -> None:
    """The claim, or else what the ledger has charged; a file that differs from what the run left hides both."""
    record, claim = found.record, found.exists(reading.PRIVACY)
    if claim:
        found.stated = found.read_or(lambda folder: reading.json_of(folder, reading.PRIVACY).values, found.stated)
        found.binding = verify(found.folder) if record is None else compare(found.folder, record)
        explained = not found.stated or (record is None and found.exists(LEDGER_FILE))  # why it cannot be read
        if found.binding.claimed and not explained:
            found.privacy = found.read_or(reading.privacy_of, None)
        unread = found.binding.claimed and any(f": {found.binding.file}" in line for line in found.missing)
        if not (found.binding.bound or explained or unread):
            told = found.binding.claimed or found.binding.why in found.missing
            found.missing.append(("" if told else "the claim of ") + found.binding.why)
        if not found.binding.unclosed:
            return
    if record is not None and not record.damage:
        found.spent = found.read_or(lambda folder: _spent(record, folder), None)
    if not claim and (found.exists(SUMMARY) or found.end not in ("crashed", "failed")):
        ended = f"run={str(found.folder)!r} has no {reading.PRIVACY}, and has ended"
        found.missing.append(f"{ended}; allowed: as the run wrote it")


def _spent(record: LedgerRecord, folder: Path) -> float:
    """ε of what a ledger has charged, as `adadpigu ledger show` tells it."""
    try:
        epsilon = record.epsilon()
        return round_up(epsilon) if math.isfinite(epsilon) else epsilon
    except (AdaDPIGUError, *reading.MALFORMED) as error:
        what = f"run={str(folder)!r}: {LEDGER_FILE}: what was charged cannot be accounted"
        raise InputError(f"{what}: {first_line(error)}") from None


def _word(value: object) -> str:
    """A setting for one line; what nests is none, and may nest without end."""
    return str(value) if isinstance(value, str | int | float) else "—"


def _against(
    found: _Parts, state: str, audits: Sequence[StoredAudit], *, incomplete: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What speaks against a run, by any of its files: in sentences, and in two or three words each for its row."""
    privacy, record, binding = found.privacy, found.record, found.binding
    untrusted = binding is not None and not binding.unclosed and privacy is None
    unbound = binding is not None and binding.unclosed
    unclaimed = not found.exists(reading.PRIVACY) and (found.exists(SUMMARY) or state != OPEN)
    unread = found.charging and record is None
    exposed = (
        found.logged.get("diagnostics", False) is not False
        or found.settings.get("diagnostics") is True
        or found.stated.get("diagnostics_exposed", False) is not False
        or found.exists(DIAGNOSTICS)
        or (privacy is not None and privacy.diagnostics_exposed)
    )
    damage = "" if record is None else record.damage
    refuted = [audit.file for audit in audits if not audit.result.passed]
    above = _above(found, audits)
    said = [f"{warning}." for warning in privacy.warnings] if privacy is not None else []
    if privacy is None and record is not None:
        said = [f"Not covered: {caveat}." for caveat in record.caveats]
    incomplete |= len(set(found.missing)) > untrusted + unbound + unread + unclaimed
    against = (
        (found.repeatable, _REPEATABLE, ""),
        (found.private is False and not found.repeatable, UNPROTECTED, ""),
        (exposed, EXPOSED, ""),
        (not found.settings and privacy is None and not exposed, _UNKNOWN, ""),
        (untrusted, "Its privacy.json cannot be trusted: no ε is shown for it.", "claim not trusted"),
        (unbound, _UNBOUND, "claim not bound"),
        (unclaimed, _UNCLAIMED, "no claim"),
        (damage, f"The ledger is damaged ({damage}): what was charged cannot be trusted.", "ledger damaged"),
        (unread, "", "ledger damaged"),
        (refuted, f"An audit has REFUTED the claim: {', '.join(refuted)}.", ""),
        (above, f"An audit is certain of more than the ε of this run: {', '.join(above)}.", "audit above the claim"),
        (state == OPEN and not untrusted, _UNSAID, ""),
        (incomplete, "", "incomplete"),
    )
    sentences = [sentence for so, sentence, _ in against if so and sentence]
    return (*sentences, *said), tuple(mark for so, _, mark in against if so and mark)


def _above(found: _Parts, audits: Sequence[StoredAudit]) -> list[str]:
    """Audits that are certain of more than the run's ε, at its δ or at a larger one, where ε would be smaller."""
    epsilon, delta, _ = found.claim()
    if epsilon is None or delta is None:
        return []
    results = {audit.file: audit.result for audit in audits}
    return [file for file, found in results.items() if found.epsilon_certain > epsilon and found.delta >= delta]


def _rerun(found: _Parts, state: str) -> tuple[tuple[str, str], ...]:
    """Commands by which this run is used, gone on with, or repeated."""
    folder, model = found.folder, found.settings.get("model")
    place, config = shlex.quote(str(folder)), shlex.quote(str(folder / reading.CONFIG))
    if not found.settings:
        return ()
    if not isinstance(model, str) or "dataset" not in found.settings:
        told = "It was started from Python: the script that made it runs it again. The config above is a record."
        return (("", told),)
    commands = [(f"adadpigu train --config {config}", "trains anew with the same settings, and spends as much again")]
    if state in (OPEN, "interrupted"):
        resume = f"adadpigu train --resume {place}"
        commands.insert(0, (resume, "goes on where its last checkpoint stands, if no process works on it"))
    else:
        commands.append((f"adadpigu evaluate {place}", "measures the model on the test records again"))
    code = [("", _CODE)] if ":" in model or ":" in str(found.settings.get("features")) else []
    return (*code, *commands, (f"adadpigu ledger verify {place}", "finds whether the ledger is whole"))


def _facts(found: _Parts) -> dict[str, str]:
    keys = {"model": "model", "batch_size": "expected batch size B", "lr": "learning rate", "features": "features"}
    facts = {label: _word(found.settings[key]) for key, label in keys.items() if key in found.settings}
    return facts | ({"steps were run": found.summary.execution} if found.summary and found.summary.execution else {})
