"""A run read from its folder for a page, part by part: what cannot be read costs no other part, and is told in a line.

The folder may come from a stranger: files are read as `loading` reads them, a statement is written anew from a
`privacy.json` that is bound to its ledger, and the un-noised values of Diagnostics are never read.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.ledger_reading import NAME as LEDGER
from adadpigu.accounting.ledger_reading import LedgerRecord
from adadpigu.errors import InputError, first_line
from adadpigu.report.audits import StoredAudit, audits_of_run
from adadpigu.report.cautions import Doubts, cautions_of, unprotected
from adadpigu.report.checking import fields_of
from adadpigu.report.claims import PRIVACY, Spent, read_record, settings_of, spent_of, stated
from adadpigu.report.curves import METRICS, Curves, read_curves
from adadpigu.report.embedding import name
from adadpigu.report.loading import text_of
from adadpigu.report.shown_run import OPEN, ShownRun
from adadpigu.report.timeline import Timeline, timeline_of
from adadpigu.runs.verifying import Binding, compare, read_privacy, verify
from adadpigu.training.run import SUMMARY

MOST_CONFIG = 1 << 14
"""bytes of a config that is shown"""
CONFIG, DIAGNOSTICS = "config.toml", "diagnostics.jsonl"
LEFT = (CONFIG, METRICS, LEDGER, PRIVACY, SUMMARY, "statement.txt", "data.json", "model.safetensors")
"""what a run leaves in its folder; two of them are enough to know one by"""

_CODE = (
    "Its model is code, not a name that adadpigu knows: training, resuming and evaluating import and run it with your "
    "rights. Read that code first. Of a run folder it is run only where you say that you trust whoever made the folder."
)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Summary:
    """What a run has said of itself at its end."""

    method: str
    dataset: str
    accuracy: float | None
    noise_multiplier: float | None
    steps: int
    done: int
    seconds: float | None
    interrupted: bool
    execution: str


@dataclass(kw_only=True)
class _Parts:
    """The parts of a folder; None or empty where one is not there or cannot be read."""

    folder: Path
    config: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    summary: _Summary | None = None
    curves: Curves = field(default_factory=lambda: Curves(single={}, layered={}))
    stated: Mapping[str, object] = field(default_factory=dict)
    """what `privacy.json` says, trusted or not"""
    privacy: PrivacyReport | None = None
    """what of it may be shown"""
    record: LedgerRecord | None = None
    timeline: Timeline | None = None
    spent: Spent | None = None
    """by the ledger, where nothing is claimed"""
    binding: Binding | None = None
    """of a claim to the ledger"""
    missing: list[str] = field(default_factory=list)

    def reading(self, read: Callable[[Path], T], otherwise: T) -> T:
        """What is read from the folder, or else the other, and a line that tells why."""
        try:
            return read(self.folder)
        except InputError as error:
            self.missing.append(str(error))
            return otherwise

    def there(self, file: str) -> bool:
        """Whether there is anything by that name, be it a link to nowhere."""
        return (self.folder / file).exists() or (self.folder / file).is_symlink()


def is_run_folder(folder: Path) -> bool:
    """Whether a folder looks like one that `adadpigu train` writes to, or like what is left of one."""
    return sum((folder / file).is_file() for file in LEFT) > 1


def read_run(folder: Path) -> ShownRun:
    """The run in a folder, as far as it can be read."""
    found = _read(folder)
    audits, odd = audits_of_run(folder)
    told, state, private = found.summary, _state(found), _private(found)
    method, dataset = _called(found)
    epsilon, delta, noise = _claimed(found, private)
    steps, done = _progress(found)
    seed = found.settings.get("seed")
    doubts = _doubts(found, private, state, _exceeded(audits, epsilon, delta))
    return ShownRun(
        name=folder.resolve().name,
        where=str(folder),
        method=method,
        dataset=dataset,
        state=state,
        config=found.config,
        rerun=_rerun(found, state),
        curves=found.curves,
        accuracy=found.curves.last("accuracy") if told is None else told.accuracy,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise,
        steps=steps,
        steps_done=done,
        seconds=None if told is None else told.seconds,
        private=private,
        seed=seed if type(seed) is int and abs(seed) < 2**53 else None,
        privacy=found.privacy,
        timeline=found.timeline,
        audits=audits,
        warnings=cautions_of(found.privacy, found.timeline, audits, doubts),
        missing=(*dict.fromkeys(found.missing), *odd),
        marks=_marks(found, doubts, incomplete=bool(odd)),
        facts=_facts(found),
    )


def _read(folder: Path) -> _Parts:
    found = _Parts(folder=folder)
    found.config, found.settings = found.reading(_settings, ("", found.settings))
    if found.there(SUMMARY):
        found.summary = found.reading(_summary, None)
    if found.there(LEDGER):
        found.record = found.reading(read_record, None)
        found.timeline = found.reading(lambda _: _timeline(found), None)
    _read_claim(found)
    found.curves, odd = found.reading(read_curves, (found.curves, ""))
    found.missing += [odd] if odd else []
    return found


def _read_claim(found: _Parts) -> None:
    """The claim, or else what the ledger has charged; a file that differs from what the run left hides both."""
    record, claim = found.record, found.there(PRIVACY)
    if claim:
        found.stated = found.reading(stated, found.stated)
        found.binding = verify(found.folder) if record is None else compare(found.folder, record)
        told = not found.stated or (found.timeline is None and found.there(LEDGER))  # why it cannot be read
        if found.binding.bound and not told:
            found.privacy = found.reading(read_privacy, None)
        elif not told:
            found.missing.append(found.binding.why)
        if found.binding.state in ("bound", "differs"):
            return
    if record is not None:
        found.spent = found.reading(lambda folder: spent_of(record, folder), None)
    if not claim and (found.there(SUMMARY) or _ended(found)):
        found.missing.append(f"run={str(found.folder)!r} has no {PRIVACY}, and has ended; allowed: as the run wrote it")


def _timeline(found: _Parts) -> Timeline | None:
    try:
        return None if found.record is None else timeline_of(found.record)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        where = f"run={str(found.folder)!r}: {LEDGER}"
        raise InputError(f"{where} holds lines that no run has written: {type(error).__name__}") from None


def _ended(found: _Parts) -> bool:
    """Whether the ledger says that the run came to an end of its own, at which a claim is written."""
    return found.timeline is not None and found.timeline.end not in ("crashed", "failed")


def _settings(folder: Path) -> tuple[str, Mapping[str, object]]:
    text = text_of(folder, CONFIG, MOST_CONFIG)
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"run={str(folder)!r}: {CONFIG} cannot be read: {first_line(error)}") from None


def _summary(folder: Path) -> _Summary:
    told = fields_of(text_of(folder, SUMMARY), f"run={str(folder)!r}: {SUMMARY}")
    return _Summary(
        method=told.text("method"),
        dataset=told.text("dataset"),
        accuracy=told.number("test_accuracy", 0, 1),
        noise_multiplier=told.number("noise_multiplier", 0, 1e30),
        steps=told.count("steps"),
        done=told.count("steps_done"),
        seconds=told.number("seconds", 0, 1e12),
        interrupted=told.flag("interrupted"),
        execution=told.text("execution") if "execution" in told.values else "",
    )


def _called(found: _Parts) -> tuple[str, str]:
    """Method and data set, from the file that was written last."""
    if found.summary is not None:
        return found.summary.method, found.summary.dataset
    if found.timeline is not None:
        return found.timeline.method or "—", found.timeline.dataset or "—"
    method = found.settings.get("method")
    return _word(method.get("name") if isinstance(method, Mapping) else method), _word(found.settings.get("dataset"))


def _word(value: object) -> str:
    """A setting for one line; what nests is none, and may nest without end."""
    return str(value) if isinstance(value, str | int | float) else "—"


def _state(found: _Parts) -> str:
    if found.summary is None:
        unsaid = found.timeline is None or found.timeline.end == "crashed"
        return OPEN if unsaid or found.timeline is None else name(found.timeline.end)
    if found.summary.interrupted:
        return "interrupted"
    return "finished" if found.summary.done == found.summary.steps else "stopped early"


def _repeatable(found: _Parts) -> bool:
    """Whether any file says that the noise can be repeated."""
    said = found.settings.get("reproducible_noise") is True
    reported = found.stated.get("randomness_private", True) is not True
    return said or reported or (found.timeline is not None and not found.timeline.secret)


def _private(found: _Parts) -> bool | None:
    """Whether there is a guarantee; None while nothing is claimed."""
    if _repeatable(found) or found.stated.get("private", True) is not True:
        return False
    if found.privacy is not None:
        return found.privacy.private
    return False if unprotected(_called(found)[0]) else None


def _claimed(found: _Parts, private: bool | None) -> tuple[float | None, float | None, float | None]:
    """ε, δ and σ: of the claim, or of what the ledger has charged; nothing where neither can be trusted."""
    told, spent, open_book = found.privacy, found.spent, private is False
    if told is not None:
        return None if open_book else told.epsilon_pld, told.delta, told.noise_multiplier
    if spent is not None:
        return None if open_book else spent.epsilon, spent.delta, spent.noise_multiplier
    return None, None, None


def _progress(found: _Parts) -> tuple[int | None, int]:
    """Steps that were planned, and how far the run has come: by its end, by its ledger, or else by its curves."""
    if found.summary is not None:
        return found.summary.steps, found.summary.done
    if found.timeline is not None:
        last = found.timeline.processes[-1]
        return found.timeline.planned, min(last.first_step + last.charged, found.timeline.planned)
    return found.curves.planned, found.curves.last_step


def _exceeded(audits: Sequence[StoredAudit], epsilon: float | None, delta: float | None) -> tuple[str, ...]:
    """Audits that are certain of more than the run's ε, at its δ or at a larger one, where ε would be smaller."""
    if epsilon is None or delta is None:
        return ()
    return tuple(a.file for a in audits if a.result.epsilon_certain > epsilon and a.result.delta >= delta)


def _doubts(found: _Parts, private: bool | None, state: str, exceeded: tuple[str, ...]) -> Doubts:
    logged = found.record is not None and settings_of(found.record).get("diagnostics", False) is not False
    claim = found.there(PRIVACY)
    return Doubts(
        unprotected=private is False,
        repeatable=_repeatable(found),
        diagnostics=logged
        or found.settings.get("diagnostics") is True
        or found.stated.get("diagnostics_exposed", False) is not False
        or found.there(DIAGNOSTICS),
        unsaid=state == OPEN,
        unknown=not found.settings and found.privacy is None,
        unstated=found.binding is not None and found.binding.state in ("bound", "differs") and found.privacy is None,
        unbound=found.binding is not None and found.binding.state in ("open", "older"),
        unclaimed=not claim and (found.there(SUMMARY) or state != OPEN),
        exceeded=exceeded,
        confessed=() if found.timeline is None else found.timeline.confessed,
    )


def _marks(found: _Parts, doubts: Doubts, *, incomplete: bool) -> tuple[str, ...]:
    """What its row says of the files that are not whole."""
    unread = found.there(LEDGER) and (found.record is None or found.timeline is None) and _begun(found)
    damaged = found.timeline is not None and found.timeline.damage != ""
    explained = doubts.unstated + doubts.unbound + unread + doubts.unclaimed
    marks = {
        "claim not trusted": doubts.unstated,
        "claim not bound": doubts.unbound,
        "no claim": doubts.unclaimed,
        "ledger damaged": damaged or unread,
        "audit above the claim": bool(doubts.exceeded),
        "incomplete": incomplete or len(dict.fromkeys(found.missing)) > explained,
    }
    return tuple(mark for mark, so in marks.items() if so)


def _begun(found: _Parts) -> bool:
    """Whether the ledger is more than an empty file, which it is until the first charge."""
    path = found.folder / LEDGER
    return not path.is_file() or path.stat().st_size > 0


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
