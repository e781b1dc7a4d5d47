"""A run that goes on after its process has ended: its folder, ledger and newest checkpoint, and whether they agree.

The guarantee is the ledger's: steps that are repeated are charged again, coins and noise come from a new key, and where
the plan holds no further step the run ends there. What is compared here keeps the *model* sound: same settings, a
checkpoint of the same run, a ledger that is not older than it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import cast

from adadpigu.accounting import Ledger
from adadpigu.accounting.journal import Journal
from adadpigu.accounting.ledger_reading import NAME, LedgerRecord, read_ledger
from adadpigu.errors import InputError
from adadpigu.training.checkpoints import Checkpoint, Checkpoints
from adadpigu.training.preparation import Preparation
from adadpigu.training.run import SUMMARY, RunFolder

FREE = frozenset(
    {
        "device",
        "physical_batch_size",
        "memory_limit",
        "engine",
        "execution",
        "evaluate_every",
        "checkpoint_every",
        "ledger",
    }
)
"""options that change neither the guarantee nor what is computed, so that a run may go on with others"""
_ENDS = {"finished": "it is finished", "exhausted": "its budget is spent"}


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run whose ledger is open: a new one, or one that goes on."""

    prepared: Preparation
    folder: RunFolder | None
    ledger: Ledger
    checkpoint: Checkpoint | None = None
    """None of a new run, and where the process ended before the first one: what was charged stays charged"""


def settings_of(prepared: Preparation) -> dict[str, object]:
    """What a run is defined by, as its ledger keeps it."""
    options = {key: value for key, value in vars(prepared.options).items() if key not in FREE}
    options |= {"noise_multiplier": prepared.noise_multiplier}
    method = {f"method.{key}": value for key, value in prepared.method.options().items()}
    slots = [(slot.name, tuple(slot.shape)) for slot in prepared.engine.layout.slots]
    settings = {
        "dataset": prepared.data.name,
        "records": prepared.data.records,
        "model": f"{prepared.engine.layout.size} parameters, {sha256(repr(slots).encode()).hexdigest()[:16]}",
        "epsilon": None if prepared.budget is None else prepared.budget.epsilon,
        "delta": prepared.delta,
        **options,
        "method": prepared.method.name,
        **method,
    }
    return {key: _plain(value) for key, value in settings.items()}


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float | bool) else "an object"


def refuse_unfit(folder: Path) -> None:
    """Refuses, before any data is loaded, a run that has ended, is damaged, or that another process works on."""
    path = _ledger_path(folder)
    Journal(path, new=False).close()
    _refuse_ended(read_ledger(path), folder)


def noise_of(folder: Path) -> float | None:
    """σ of the run in a folder, which goes on with it whatever a calibration would find today; None: no guarantee."""
    header = read_ledger(_ledger_path(folder)).header
    try:
        sigma = float(header["facts"]["settings"]["noise_multiplier"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"resume={str(folder)!r}: its ledger does not tell the run's noise_multiplier") from None
    return sigma if sigma > 0 else None


def spent_by(folder: Path) -> float:
    """ε that the run in a folder has spent so far."""
    return read_ledger(_ledger_path(folder)).epsilon()


def resume(prepared: Preparation, out: Path) -> Begun:
    """Opens the run in a folder, to go on with it as `prepared` says; refuses where that is another run."""
    ledger = Ledger.resume(_ledger_path(out))
    try:
        _refuse_odd(ledger, out)
        _refuse_ended(ledger.record, out)
        checkpoint, problems = Checkpoints(out).newest()
        if checkpoint is not None:
            _refuse_foreign(checkpoint, ledger, out)
        _refuse_changed(prepared, ledger)
        _refuse_edited(ledger, out)
        prepared = replace(prepared, seed=int(str(ledger.facts["seed"])), warnings=(*prepared.warnings, *problems))
        folder = RunFolder.reopen(out, ledger)
    except BaseException:
        ledger.close()
        raise
    return Begun(prepared=prepared, folder=folder, ledger=ledger, checkpoint=checkpoint)


def _refuse_odd(ledger: Ledger, out: Path) -> None:
    """The facts that a run needs to go on; a stranger's ledger may have others."""
    facts, kinds = ledger.facts, {"run": str, "settings": dict, "seed": int, "shared": bool, "config": str}
    odd = next((key for key, kind in kinds.items() if not isinstance(facts.get(key), kind)), None)
    if odd is not None:
        raise InputError(f"resume={str(out)!r}: the ledger's {odd}={facts.get(odd)!r} is not what a run writes")


def _ledger_path(folder: Path) -> Path:
    if not (folder / NAME).is_file():
        raise InputError(
            f"resume={str(folder)!r} has no {NAME}, so nothing was charged; allowed: the folder of a run that has begun"
        )
    return folder / NAME


def _refuse_ended(record: LedgerRecord, out: Path) -> None:
    end = record.lives()[-1].end
    closed = record.closing is not None or (record.older and (out / SUMMARY).exists())
    if end in _ENDS and closed:  # else it was killed while its end was written: that can be repeated
        raise InputError(f"resume={str(out)!r}: {_ENDS[end]}; allowed: a run that was stopped or crashed")


def _refuse_changed(prepared: Preparation, ledger: Ledger) -> None:
    before, now = cast(Mapping[str, object], ledger.facts["settings"]), settings_of(prepared)
    for key in [*before, *now]:
        if before.get(key) != now.get(key):
            raise InputError(f"{key}={now.get(key)!r} is not what the run began with; allowed: {before.get(key)!r}")
    if ledger.plan != prepared.plan:
        raise InputError("the plan is not the one that the run began with: its stages or draws have changed")


def _refuse_edited(ledger: Ledger, out: Path) -> None:
    """What `settings_of` does not tell apart, such as a front, stands in the config as it was written."""
    try:
        found = sha256((out / "config.toml").read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"resume={str(out)!r}: config.toml cannot be read: {error.strerror}") from None
    if found != ledger.facts["config"]:
        raise InputError(f"resume={str(out)!r}: its config.toml was edited; allowed: as the run began")


def _refuse_foreign(checkpoint: Checkpoint, ledger: Ledger, out: Path) -> None:
    if checkpoint.run != ledger.facts["run"]:
        raise InputError(f"resume={str(out)!r}: the ledger belongs to another run than the checkpoint")
    if not ledger.holds(*checkpoint.ledger):
        raise InputError(f"resume={str(out)!r}: the ledger is older than the checkpoint, or another copy of it")
    if not 0 <= checkpoint.step <= ledger.plan.steps:
        raise InputError(
            f"resume={str(out)!r}: the checkpoint is of step {checkpoint.step}, which the run does not have"
        )
