"""A run that was planned is trained, with its bar and its loggers, and its folder gets figures and a report."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from adadpigu.cli.output import notes, print_warning
from adadpigu.cli.training_plan import PlannedRun
from adadpigu.config import RunConfig
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from adadpigu.distributed import Processes
    from adadpigu.randomness import Randomness, Tier
    from adadpigu.training import Preparation, Run
    from adadpigu.training.run import Observer


def trained(planned: PlannedRun, processes: Processes, *, silent: bool, log: list[str]) -> Run:
    """Trains it into its folder, under the eyes of a bar and of loggers."""
    from adadpigu.cli.training_progress import Progress
    from adadpigu.loggers import make_logger

    folder = planned.resume or planned.out or processes.told(_new_folder(planned.prepared, planned.settings))
    shown: list[Observer] = [] if silent else [Progress(notes(), preset=planned.preset)]
    observers = [*shown, *(make_logger(name, folder) for name in dict.fromkeys(log))]
    return _execute(planned.prepared, planned.settings, folder, observers, resuming=planned.resume is not None)


def _new_folder(prepared: Preparation, settings: RunConfig) -> Path:
    """Named by what is trained and when; the second one of a second is numbered."""
    name = f"{prepared.data.name}-{settings.method}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(path for path in map(Path("runs").joinpath, itertools.chain([name], numbered)) if not path.exists())


def _execute(
    prepared: Preparation, settings: RunConfig, folder: Path, observers: Sequence[Observer], *, resuming: bool
) -> Run:
    from adadpigu.report.loading import DESCRIPTION
    from adadpigu.training import train_prepared
    from adadpigu.training.configured import described, resolved
    from adadpigu.training.memory import records_at_once

    declared = described(settings)
    files = {} if declared is None else {DESCRIPTION: declared.path.read_text(encoding="utf-8")}
    found = records_at_once(prepared)
    if found is not None:
        notes().print(f"up to {found} records at once fit the memory", style="dim")
        files["memory.json"] = json.dumps({"physical_batch_size": found, "memory_limit": settings.memory_limit}) + "\n"
    for warning in prepared.warnings:
        print_warning(warning)
    run = train_prepared(
        prepared,
        out=folder,
        config=resolved(settings, prepared).to_toml(),
        files=files,
        observers=observers,
        randomness=_chosen_randomness(settings),
        resuming=resuming,
        shared=None if settings.ledger is None else Path(settings.ledger),
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run has ended: Ctrl-C must not lose its table
    if run.folder is not None:  # the first process's, of several
        _draw(run, folder)
    return run


def _draw(run: Run, folder: Path) -> None:
    for name, draw in (("figures", _draw_figures), ("report", _write_report)):
        try:
            draw(run, folder)
        except Exception as error:  # a picture must cost a run neither its report nor its table
            print_warning(f"{name} could not be drawn: {type(error).__name__}: {error}")


def _draw_figures(run: Run, folder: Path) -> None:
    from adadpigu.report.figures import draw_figures

    draw_figures(run, folder / "figures")


def _write_report(_: Run, folder: Path) -> None:
    from adadpigu.report.page import write_run_page

    write_run_page(folder)


def _chosen_randomness(settings: RunConfig) -> Randomness | Tier | None:
    from adadpigu.randomness import ReproducibleRandomness

    if not settings.reproducible_noise:
        return cast("Tier | None", settings.randomness)
    if settings.randomness is not None:
        raise InputError(f"randomness={settings.randomness!r} with reproducible_noise: give one of them, not both")
    if settings.seed is None:
        raise InputError("reproducible_noise without a seed; allowed: with --seed, which fixes the noise")
    return ReproducibleRandomness(settings.seed)
