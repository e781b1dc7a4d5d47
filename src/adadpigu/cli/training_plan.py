"""What the command line asks for becomes a run that can be started: loaded, checked and calibrated, nothing written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adadpigu.cli.output import notes
from adadpigu.cli.training_flags import method_options, read_flags, refuse_idle
from adadpigu.cli.training_settings import configure, default_preset, settings_of
from adadpigu.config import RunConfig, merge
from adadpigu.training.run import check_free

if TYPE_CHECKING:
    from adadpigu.distributed import Processes
    from adadpigu.training import Preparation


@dataclass(frozen=True)
class Asked:
    """What the command line says, as it stands there."""

    flags: dict[str, object]
    options: tuple[list[str], list[str], dict[str, object]]
    """of the method: as --set, as flags that `train` does not declare, as flags that it does"""
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

    flags = {**read_flags(asked.flags), "method_options": method_options(*asked.options)}
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
