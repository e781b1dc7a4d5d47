"""What the command line asks for becomes a run that can be started: loaded, checked and calibrated, nothing written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from adadpigu.cli.output import notes
from adadpigu.cli.training_flags import refuse_idle
from adadpigu.cli.training_settings import configure, default_preset, method_options, settings_of
from adadpigu.config import RunConfig, merge
from adadpigu.errors import InputError
from adadpigu.training.run import check_free

if TYPE_CHECKING:
    from adadpigu.distributed import Processes
    from adadpigu.training import Preparation


@dataclass(frozen=True)
class Asked:
    """What the command line says, as it stands there."""

    flags: dict[str, object]
    methods: tuple[list[str], dict[str, object]]
    preset: str | None
    config: Path | None
    out: Path | None
    resume: Path | None
    trusted: bool


@dataclass(frozen=True)
class PlannedRun:
    """A run that can be started: its settings, and where it is written."""

    settings: RunConfig
    prepared: Preparation
    out: Path | None
    resume: Path | None
    preset: str | None
    """the one that was taken without being asked for"""


def plan_run(asked: Asked, processes: Processes) -> PlannedRun:
    """Loads, checks and calibrates what was asked for; nothing is written."""
    from adadpigu.distributed.launching import to_go_on

    pairs, given = asked.methods
    flags = {**asked.flags, "method_options": {**method_options(pairs), **given}}
    flags["physical_batch_size"] = _number_or_word(cast("str | None", flags["physical_batch_size"]))
    if flags["steps"] is not None and flags["epochs"] is not None:
        raise InputError(f"steps={flags['steps']} and epochs={flags['epochs']}: give one of them, not both")
    if (started_again := to_go_on(asked.out)) is not None:  # by torchrun: with the flags that the run began with
        asked = replace(asked, resume=started_again, out=None, preset=None, config=None, trusted=True)
    if asked.out is not None:
        processes.first(partial(check_free, asked.out))
    taken = None
    if asked.resume is None:
        settings = configure(flags, preset=asked.preset, config=asked.config)
        refuse_idle(flags, settings)
        if asked.preset is None and asked.config is None:
            taken = default_preset(merge(flags))
    else:
        # the first process alone looks at the ledger, which has one reader at a time that may become its writer
        settings = processes.told(processes.first(partial(_settings_to_go_on, asked.resume, flags, asked)))
    return PlannedRun(settings, _ready(settings), asked.out, asked.resume, taken)


def _settings_to_go_on(resume: Path, flags: dict[str, object], asked: Asked) -> RunConfig:
    from adadpigu.report.loading import refuse_code

    settings = settings_of(resume, flags, out=asked.out, preset=asked.preset, config=asked.config)
    if not asked.trusted:
        refuse_code(settings, resume)
    return settings


def _ready(settings: RunConfig) -> Preparation:
    """Loads, checks and calibrates; nothing is written."""
    from adadpigu.cli.progress import features_progress, moves
    from adadpigu.training.configured import configured

    if moves(notes()):
        notes().print("preparing: data, model, and the noise that keeps the budget", style="dim")
    with features_progress(notes()) as progress:
        return configured(settings, progress=progress)


def _number_or_word(text: str | None) -> int | str | None:
    try:
        return text if text is None else int(text)
    except ValueError:
        return text
