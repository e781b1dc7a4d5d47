"""A run read from its folder for a page, part by part: what cannot be read costs no other part, and is told in a line.

The folder may come from a stranger: files are read as `loading` reads them, a statement is written anew from a
`privacy.json` whose ε its own events cost, and the un-noised values of Diagnostics are never read.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.ledger_reading import NAME as LEDGER
from adadpigu.errors import InputError, first_line
from adadpigu.export.subject import read_privacy
from adadpigu.report.audits import audits_of_run
from adadpigu.report.cautions import Doubts, cautions_of, unprotected
from adadpigu.report.checking import fields_of
from adadpigu.report.curves import METRICS, Curves, read_curves
from adadpigu.report.embedding import name
from adadpigu.report.loading import text_of
from adadpigu.report.series import upwards
from adadpigu.report.shown_run import OPEN, ShownRun
from adadpigu.report.timeline import Timeline, read_timeline
from adadpigu.training.run import SUMMARY

MOST_CONFIG = 1 << 16
"""bytes of a config that is shown"""
CONFIG, PRIVACY, DIAGNOSTICS = "config.toml", "privacy.json", "diagnostics.jsonl"
LEFT = (CONFIG, METRICS, LEDGER, PRIVACY, SUMMARY, "statement.txt", "data.json", "model.safetensors")
"""what a run leaves in its folder; two of them are enough to know one by"""

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
    privacy: PrivacyReport | None = None
    timeline: Timeline | None = None
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
    seed = found.settings.get("seed")
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
        epsilon=_epsilon(found, private),
        delta=None if found.privacy is None else found.privacy.delta,
        noise_multiplier=None if told is None else told.noise_multiplier,
        steps=found.curves.planned if told is None else told.steps,
        steps_done=found.curves.last_step if told is None else told.done,
        seconds=None if told is None else told.seconds,
        private=private,
        seed=seed if type(seed) is int and abs(seed) < 2**53 else None,
        privacy=found.privacy,
        timeline=found.timeline,
        audits=audits,
        warnings=cautions_of(found.privacy, found.timeline, audits, _doubts(found, private, state)),
        missing=(*found.missing, *odd),
        facts=_facts(found),
    )


def _read(folder: Path) -> _Parts:
    found = _Parts(folder=folder)
    found.config, found.settings = found.reading(_settings, ("", found.settings))
    if found.there(SUMMARY):
        found.summary = found.reading(_summary, None)
    if found.there(SUMMARY) or found.there(PRIVACY):
        found.privacy = found.reading(read_privacy, None)
    found.curves, odd = found.reading(read_curves, (found.curves, ""))
    found.missing += [odd] if odd else []
    if found.there(LEDGER):
        found.timeline = found.reading(read_timeline, None)
    return found


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
    named = method.get("name") if isinstance(method, Mapping) else method
    return str(named or "—"), str(found.settings.get("dataset", "—"))


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
    reported = found.privacy is not None and not found.privacy.randomness_private
    return said or reported or (found.timeline is not None and not found.timeline.secret)


def _private(found: _Parts) -> bool | None:
    """Whether there is a guarantee; None while nothing is claimed."""
    if _repeatable(found):
        return False
    if found.privacy is not None:
        return found.privacy.private
    return False if unprotected(_called(found)[0]) else None


def _epsilon(found: _Parts, private: bool | None) -> float | None:
    """The claim, or what was spent until now; nothing where a claim is there and cannot be trusted."""
    if private is False:
        return None
    if found.privacy is not None:
        return found.privacy.epsilon_pld
    spent = None if found.there(PRIVACY) or found.there(SUMMARY) else found.curves.last("epsilon")
    return None if spent is None else upwards(spent)


def _doubts(found: _Parts, private: bool | None, state: str) -> Doubts:
    return Doubts(
        unprotected=private is False,
        repeatable=_repeatable(found),
        diagnostics=found.settings.get("diagnostics") is True or found.there(DIAGNOSTICS),
        unsaid=state == OPEN,
        unknown=not found.settings and found.privacy is None,
        unstated=found.privacy is None and (found.there(PRIVACY) or found.there(SUMMARY)),
    )


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
    trust = " --trust-model-code" if ":" in model else ""
    commands = [(f"adadpigu train --config {config}", "trains anew with the same settings, and spends as much again")]
    if state in (OPEN, "interrupted"):
        resume = f"adadpigu train --resume {place}{trust}"
        commands.insert(0, (resume, "goes on where its last checkpoint stands, if no process works on it"))
    else:
        commands.append((f"adadpigu evaluate {place}{trust}", "measures the model on the test records again"))
    return (*commands, (f"adadpigu ledger verify {place}", "finds whether the ledger is whole"))


def _facts(found: _Parts) -> dict[str, str]:
    """Some settings by which runs differ most."""
    keys = {"model": "model", "batch_size": "expected batch size B", "lr": "learning rate", "features": "features"}
    facts = {label: str(found.settings[key]) for key, label in keys.items() if key in found.settings}
    return facts | ({"steps were run": found.summary.execution} if found.summary and found.summary.execution else {})
