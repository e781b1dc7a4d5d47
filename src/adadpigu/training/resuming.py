"""A run that goes on after its process has ended: its folder, ledger and newest checkpoint, and whether they agree.

The guarantee is the ledger's: steps that are repeated are charged again, coins and noise come from a new key, and where
the plan holds no further step the run ends there. What is compared here keeps the *model* sound: same settings, a
checkpoint of the same run, a ledger that is not older than it.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import cast

from adadpigu.accounting import Ledger
from adadpigu.accounting.journal import Journal
from adadpigu.accounting.ledger_reading import LEDGER_FILE, LedgerRecord, read_ledger
from adadpigu.accounting.shared import SharedTotal
from adadpigu.errors import InputError, require
from adadpigu.runs.digests import matches_digest
from adadpigu.runs.run import SUMMARY, RunFolder
from adadpigu.training.checkpoints import Checkpoint, Checkpoints
from adadpigu.training.preparation import Preparation

CHANGEABLE_ON_RESUME = frozenset(
    ("device", "physical_batch_size", "memory_limit", "engine", "execution", "evaluate_every", "checkpoint_every")
) | {"ledger"}
"""options that change neither the guarantee nor what is computed, so that a run may go on with others"""
_ENDS = {"finished": "it is finished", "exhausted": "its budget is spent"}


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run whose ledger is open: a new one, or one that goes on."""

    prepared: Preparation
    ledger: Ledger
    folder: RunFolder | None = None
    checkpoint: Checkpoint | None = None  # None: a new run, or one that ended before its first; charges stay
    total: Callable[[], SharedTotal] | None = None  # what a shared ledger says of all its runs


def ledger_settings(prepared: Preparation) -> dict[str, object]:
    """What a run is defined by, as its ledger keeps it."""
    options = {key: value for key, value in vars(prepared.options).items() if key not in CHANGEABLE_ON_RESUME}
    options |= {"noise_multiplier": prepared.noise_multiplier}
    method = {f"method.{key}": value for key, value in prepared.method.options().items()}
    slots = [(slot.name, tuple(slot.shape)) for slot in prepared.engine.layout.slots]
    settings = {
        "dataset": prepared.data.name,
        "records": prepared.data.records,
        **({} if prepared.data.owners is None else {"owner_cap": prepared.per_owner}),
        "model": f"{prepared.engine.layout.size} parameters, {sha256(repr(slots).encode()).hexdigest()[:16]}",
        "epsilon": None if prepared.budget is None else prepared.budget.epsilon,
        "delta": prepared.delta,
        **options,
        **({"public_sha256": sha} if prepared.public is not None and (sha := prepared.public.sha256) else {}),
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
    with contextlib.ExitStack() as opening:
        ledger = opening.enter_context(Ledger.resume(_ledger_path(out)))
        checkpoint, problems = Checkpoints(out).newest()
        _check_same_run(prepared, ledger, checkpoint, out)
        prepared = replace(prepared, seed=int(str(ledger.facts["seed"])), warnings=(*prepared.warnings, *problems))
        folder = RunFolder.reopen(out, ledger)
        opening.pop_all()  # the ledger stays open
    return Begun(prepared=prepared, folder=folder, ledger=ledger, checkpoint=checkpoint)


def _check_same_run(prepared: Preparation, ledger: Ledger, checkpoint: Checkpoint | None, out: Path) -> None:
    """Refuses a run that has ended, a checkpoint of another run, other settings."""
    where, facts, begun_by = f"resume={str(out)!r}", ledger.facts, ledger.record.begun_by
    _refuse_ended(ledger.record, out)
    if checkpoint is not None:
        same = checkpoint.run == facts["run"]
        require(same, f"{where}: the ledger belongs to another run than the checkpoint")
        newer = ledger.holds(*checkpoint.ledger)
        require(newer, f"{where}: the ledger is older than the checkpoint, or another copy of it")
        within = 0 <= checkpoint.step <= ledger.plan.steps
        require(within, f"{where}: the checkpoint is of step {checkpoint.step}, which the run does not have")
    before, now = dict(cast(Mapping[str, object], facts["settings"])), ledger_settings(prepared)
    options = {field.name: field.default for field in fields(prepared.options)}
    options |= {f"method.{key}": value for key, value in vars(type(prepared.method)()).items()}
    for key in now.keys() & options.keys():  # one that did not exist then has its default
        before.setdefault(key, None if options[key] is MISSING else _plain(options[key]))
    for key in [*before, *now]:
        allowed = f"is not what the run began with; allowed: {before.get(key)!r}"
        gone = "" if key in now else f", in the version that began the run if this one has no {key} ({begun_by})"
        require(before.get(key) == now.get(key), f"{key}={now.get(key)!r} {allowed}{gone}")
    told = f"{where}: the plan is not the one that the run began with: its settings meant other stages or draws to the"
    remedy = "allowed: that version, or train again"
    require(ledger.plan == prepared.plan, f"{told} version that began it ({begun_by}); {remedy}")
    try:  # what settings do not tell apart, such as a front, stands in the config as it was written
        same = matches_digest(out / "config.toml", facts["config"])
    except OSError as error:
        raise InputError(f"{where}: config.toml cannot be read: {error.strerror}") from None
    require(same, f"{where}: its config.toml was edited; allowed: as the run began")


def _refuse_ended(record: LedgerRecord, out: Path) -> None:
    end = record.sessions()[-1].end
    closed = record.closing is not None or (record.older and (out / SUMMARY).exists())
    if end in _ENDS and closed:  # else it was killed while its end was written: that can be repeated
        raise InputError(f"resume={str(out)!r}: {_ENDS[end]}; allowed: a run that was stopped or crashed")


def _ledger_path(folder: Path) -> Path:
    allowed = "so nothing was charged; allowed: the folder of a run that has begun"
    require((folder / LEDGER_FILE).is_file(), f"resume={str(folder)!r} has no {LEDGER_FILE}, {allowed}")
    return folder / LEDGER_FILE
