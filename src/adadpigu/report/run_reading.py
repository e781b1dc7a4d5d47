"""A run read from its folder for a page, part by part: what cannot be read costs no other part, and is told in a line.

The folder may be a stranger's: `runs.reading` reads it. What speaks against a run is taken from any file; an ε is taken
from the ledger's record, or from a `privacy.json` that is bound to it (`runs.verifying`). The un-noised values of
Diagnostics are never read.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.ledger_reading import NAME as LEDGER
from adadpigu.accounting.ledger_reading import LedgerRecord
from adadpigu.errors import AdaDPIGUError, InputError, LedgerError, first_line
from adadpigu.report import cautions
from adadpigu.report.audits import StoredAudit, audits_of_run
from adadpigu.report.cautions import unprotected
from adadpigu.report.curves import METRICS, Curves, read_curves, round_up
from adadpigu.report.embedding import name
from adadpigu.report.shown_run import OPEN, ShownRun, Timeline, timeline_of
from adadpigu.runs.reading import (
    CONFIG,
    FACTS,
    MALFORMED,
    PRIVACY,
    Summary,
    config_of,
    json_of,
    ledger_of,
    privacy_of,
    summary_of,
)
from adadpigu.runs.run import MODEL, SUMMARY
from adadpigu.runs.verifying import Binding, compare, verify

MOST_CONFIG = 1 << 14
"""bytes of a config that is shown"""
DIAGNOSTICS = "diagnostics.jsonl"
LEFT = (CONFIG, METRICS, LEDGER, PRIVACY, SUMMARY, "statement.txt", FACTS, MODEL)
"""what a run leaves in its folder; two of them are enough to know one by"""
_CODE = (
    "Its model is code, not a name that adadpigu knows: training, resuming and evaluating import and run it with your "
    "rights. Read that code first. Of a run folder it is run only where you say that you trust whoever made the folder."
)
T = TypeVar("T")


@dataclass(kw_only=True)
class _Parts:
    """The parts of a folder; None or empty where one is not there or cannot be read."""

    folder: Path
    config: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    summary: Summary | None = None
    curves: Curves = field(default_factory=Curves)
    stated: Mapping[str, object] = field(default_factory=dict)
    """what `privacy.json` says, trusted or not"""
    privacy: PrivacyReport | None = None
    """what of it may be shown"""
    record: LedgerRecord | None = None
    timeline: Timeline | None = None
    spent: float | None = None
    """ε by the ledger, where nothing is claimed"""
    binding: Binding | None = None
    """of a claim to the ledger"""
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
    def logged(self) -> Mapping[str, object]:
        """The settings that the ledger's header names."""
        facts = None if self.record is None else self.record.header.get("facts")
        settings = facts.get("settings") if isinstance(facts, dict) else None
        return settings if isinstance(settings, dict) else {}

    @property
    def repeatable(self) -> bool:
        """Whether any file says that the noise can be repeated."""
        said = self.settings.get("reproducible_noise") is True
        reported = self.stated.get("randomness_private", True) is not True
        return said or reported or (self.timeline is not None and not self.timeline.secret)

    @property
    def private(self) -> bool | None:
        """Whether there is a guarantee; None while nothing is claimed."""
        if self.repeatable or self.stated.get("private", True) is not True:
            return False
        if self.privacy is not None:
            return self.privacy.private
        return False if unprotected(self.names()[0]) else None

    @property
    def unread_ledger(self) -> bool:
        """Whether a ledger that is more than an empty file, as it is until the first charge, cannot be read."""
        path = self.folder / LEDGER
        begun = not path.is_file() or path.stat().st_size > 0
        return self.exists(LEDGER) and begun and (self.record is None or self.timeline is None)

    def names(self) -> tuple[str, str]:
        """Method and data set, from the file that was written last."""
        if self.summary is not None:
            return self.summary.method, self.summary.dataset
        if self.timeline is not None:
            facts = self.timeline.record.header["facts"]
            return str(facts.get("method") or "—"), str(facts.get("dataset") or "—")
        method = self.settings.get("method")
        return _word(method.get("name") if isinstance(method, Mapping) else method), _word(self.settings.get("dataset"))

    def state(self) -> str:
        """Whether and how the run has ended."""
        if self.summary is None:
            return OPEN if self.timeline is None or self.timeline.end == "crashed" else name(self.timeline.end)
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
        if self.timeline is not None:
            last, planned = self.timeline.processes[-1], self.timeline.record.plan.steps
            return planned, min(last.first_step + last.steps, planned)
        return self.curves.planned, self.curves.last_step


def is_run_folder(folder: Path) -> bool:
    """Whether a folder looks like one that `adadpigu train` writes to, or like what is left of one."""
    return sum((folder / file).is_file() for file in LEFT) > 1


def read_run(folder: Path) -> ShownRun:
    """The run in a folder, as far as it can be read."""
    found = _read(folder)
    audits, odd = audits_of_run(folder)
    summary, state = found.summary, found.state()
    method, dataset = found.names()
    epsilon, delta, noise = found.claim()
    steps, done = found.progress()
    seed = found.settings.get("seed")
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
        accuracy=found.curves.last("accuracy") if summary is None else summary.accuracy,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise,
        steps=steps,
        steps_done=done,
        seconds=None if summary is None else summary.seconds,
        private=found.private,
        seed=seed if type(seed) is int and abs(seed) < 2**53 else None,
        privacy=found.privacy,
        timeline=found.timeline,
        audits=audits,
        warnings=warnings,
        missing=(*dict.fromkeys(found.missing), *odd),
        marks=marks,
        facts=_facts(found),
    )


def _read(folder: Path) -> _Parts:
    found = _Parts(folder=folder)
    nothing: tuple[str, dict[str, Any]] = ("", {})
    found.config, found.settings = found.read_or(lambda at: config_of(at, MOST_CONFIG), nothing)
    if found.exists(SUMMARY):
        found.summary = found.read_or(summary_of, None)
    if found.exists(LEDGER):
        found.record = found.read_or(_record, None)
        found.timeline = found.read_or(lambda _: _timeline(found), None)
    _read_claim(found)
    found.curves, odd = found.read_or(read_curves, (found.curves, ""))
    found.missing += [odd] if odd else []
    return found


def _record(folder: Path) -> LedgerRecord | None:
    """The ledger of a run folder, damaged or not; None where nothing was charged yet."""
    try:
        return ledger_of(folder)
    except LedgerError as error:
        if not (folder / LEDGER).stat().st_size:
            return None
        raise InputError(f"run={str(folder)!r}: {LEDGER}: {first_line(error)}") from None


def _timeline(found: _Parts) -> Timeline | None:
    try:
        return None if found.record is None else timeline_of(found.record)
    except MALFORMED as error:
        where = f"run={str(found.folder)!r}: {LEDGER}"
        raise InputError(f"{where} holds lines that no run has written: {type(error).__name__}") from None


def _read_claim(found: _Parts) -> None:
    """The claim, or else what the ledger has charged; a file that differs from what the run left hides both."""
    record, claim = found.record, found.exists(PRIVACY)
    if claim:
        found.stated = found.read_or(lambda folder: json_of(folder, PRIVACY).values, found.stated)
        found.binding = verify(found.folder) if record is None else compare(found.folder, record)
        explained = not found.stated or (found.timeline is None and found.exists(LEDGER))  # why it cannot be read
        if found.binding.claimed and not explained:
            found.privacy = found.read_or(privacy_of, None)
        unread = found.binding.claimed and any(f": {found.binding.file}" in line for line in found.missing)
        if not (found.binding.bound or explained or unread):
            found.missing.append(found.binding.why)
        if not found.binding.unclosed:
            return
    if record is not None and not record.damage:
        found.spent = found.read_or(lambda folder: _spent(record, folder), None)
    ended = found.timeline is not None and found.timeline.end not in ("crashed", "failed")
    if not claim and (found.exists(SUMMARY) or ended):
        found.missing.append(f"run={str(found.folder)!r} has no {PRIVACY}, and has ended; allowed: as the run wrote it")


def _spent(record: LedgerRecord, folder: Path) -> float:
    """ε of what a ledger has charged, as `adadpigu ledger show` tells it."""
    try:
        epsilon = record.epsilon()
        return round_up(epsilon) if math.isfinite(epsilon) else epsilon
    except (AdaDPIGUError, *MALFORMED) as error:
        what = f"run={str(folder)!r}: {LEDGER}: what was charged cannot be accounted"
        raise InputError(f"{what}: {first_line(error)}") from None


def _word(value: object) -> str:
    """A setting for one line; what nests is none, and may nest without end."""
    return str(value) if isinstance(value, str | int | float) else "—"


def _against(
    found: _Parts, state: str, audits: Sequence[StoredAudit], *, incomplete: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a reader must see before a run's numbers: in sentences, and in two or three words each for its row.

    Any file is enough to speak against a run.
    """
    privacy, timeline, binding = found.privacy, found.timeline, found.binding
    untrusted = binding is not None and not binding.unclosed and privacy is None
    unbound = binding is not None and binding.unclosed
    unclaimed = not found.exists(PRIVACY) and (found.exists(SUMMARY) or state != OPEN)
    exposed = (
        found.logged.get("diagnostics", False) is not False
        or found.settings.get("diagnostics") is True
        or found.stated.get("diagnostics_exposed", False) is not False
        or found.exists(DIAGNOSTICS)
        or (privacy is not None and privacy.diagnostics_exposed)
    )
    damage = "" if timeline is None else timeline.record.damage
    epsilon, delta, _ = found.claim()
    refuted = [audit.file for audit in audits if not audit.result.passed]
    above = [  # audits that are certain of more than the run's ε, at its δ or at a larger one, where ε would be smaller
        audit.file
        for audit in audits
        if epsilon is not None
        and delta is not None
        and audit.result.epsilon_certain > epsilon
        and audit.result.delta >= delta
    ]
    sentences = {
        cautions.REPEATABLE: found.repeatable,
        cautions.UNPROTECTED: found.private is False and not found.repeatable,
        cautions.DIAGNOSTICS: exposed,
        cautions.UNKNOWN: not found.settings and privacy is None and not exposed,
        cautions.UNSTATED: untrusted,
        cautions.UNBOUND: unbound,
        cautions.UNCLAIMED: unclaimed,
        f"An audit has REFUTED the claim: {', '.join(refuted)}.": bool(refuted),
        f"An audit is certain of more than the ε of this run: {', '.join(above)}.": bool(above),
        cautions.UNSAID: state == OPEN and not untrusted,
        f"The ledger is damaged ({damage}): what was charged cannot be trusted.": bool(damage),
    }
    said = [f"{warning}." for warning in privacy.warnings] if privacy is not None else []
    if privacy is None and timeline is not None:
        said = [f"Not covered: {line['confession']}." for line in timeline.record.lines if "confession" in line]
    explained = untrusted + unbound + found.unread_ledger + unclaimed
    marks = {
        "claim not trusted": untrusted,
        "claim not bound": unbound,
        "no claim": unclaimed,
        "ledger damaged": bool(damage) or found.unread_ledger,
        "audit above the claim": bool(above),
        "incomplete": incomplete or len(dict.fromkeys(found.missing)) > explained,
    }
    return (*_true(sentences), *said), _true(marks)


def _true(said: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(words for words, so in said.items() if so)


def _rerun(found: _Parts, state: str) -> tuple[tuple[str, str], ...]:
    """Commands by which this run is used, gone on with, or repeated."""
    folder, model = found.folder, found.settings.get("model")
    place, config = shlex.quote(str(folder)), shlex.quote(str(folder / CONFIG))
    if not found.settings:
        return ()
    if not isinstance(model, str) or "dataset" not in found.settings:
        return (
            ("", "It was started from Python: the script that made it runs it again. The config above is a record."),
        )
    commands = [(f"adadpigu train --config {config}", "trains anew with the same settings, and spends as much again")]
    if state in (OPEN, "interrupted"):
        resume = f"adadpigu train --resume {place}"
        commands.insert(0, (resume, "goes on where its last checkpoint stands, if no process works on it"))
    else:
        commands.append((f"adadpigu evaluate {place}", "measures the model on the test records again"))
    code = [("", _CODE)] if ":" in model else []
    return (*code, *commands, (f"adadpigu ledger verify {place}", "finds whether the ledger is whole"))


def _facts(found: _Parts) -> dict[str, str]:
    """Some settings by which runs differ most."""
    keys = {"model": "model", "batch_size": "expected batch size B", "lr": "learning rate", "features": "features"}
    facts = {label: _word(found.settings[key]) for key, label in keys.items() if key in found.settings}
    return facts | ({"steps were run": found.summary.execution} if found.summary and found.summary.execution else {})
