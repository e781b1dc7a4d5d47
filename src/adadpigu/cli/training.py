"""`adadpigu train`: its flags, and the way from them to a run: settings, plan, training, summary."""

import itertools
import json
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from adadpigu import console
from adadpigu.accounting.wording import rounded_up
from adadpigu.cli import training_settings as choosing
from adadpigu.cli.commands import PRESETS, Interrupted, Json, with_settings
from adadpigu.cli.standalone import is_standalone, refuse_idle, run_standalone
from adadpigu.config import GROUPS, RunConfig, merge
from adadpigu.core.processes import Processes
from adadpigu.core.randomness import Randomness, ReproducibleRandomness, Tier
from adadpigu.errors import InputError, check
from adadpigu.loggers import make_logger
from adadpigu.runs.loading import refuse_code
from adadpigu.runs.run import Observer, Run, Validation, check_free
from adadpigu.training import Preparation, train_prepared
from adadpigu.training.configured import configured, resolved
from adadpigu.training.distributed.launching import agreed, joined, only_first_prints, run_to_resume
from adadpigu.training.micro_batches import records_at_once
from adadpigu.training.reporting import print_path


@dataclass(frozen=True)
class PlannedRun:
    """A run that can be started: its settings, and where it is written."""

    settings: RunConfig
    prepared: Preparation
    folder: Path | None  # None: a new one, named after the run
    resuming: bool = False
    preset: str | None = None  # whose settings it has where neither file nor flag says otherwise


def plan_run(
    flags: dict[str, object],
    processes: Processes,
    *,
    preset: str | None,
    config: Path | None,
    out: Path | None,
    resume: Path | None,
    trusted: bool,
) -> PlannedRun:
    """Loads, checks and calibrates what was asked for; nothing is written. Flags are None where nothing was said."""
    if (started_again := run_to_resume(out)) is not None:  # by torchrun: with the flags that the run began with
        resume, out, preset, config, trusted = started_again, None, None, None, True
    if out is not None:
        processes.first(partial(check_free, out))
    if resume is None:
        settings = choosing.configure(flags, preset=preset, config=config)
        choosing.refuse_idle(flags, settings)
        for told in choosing.made_idle(flags, settings):
            console.notes().print(f"of the preset or config: {told}", style="dim", soft_wrap=True)
        taken = choosing.default_preset(merge(flags)) if preset is None and config is None else preset
        return PlannedRun(settings, _prepare(settings), out, preset=None if taken == "none" else taken)

    def resumed() -> tuple[RunConfig, str | None]:
        settings = choosing.resumed_config(resume, flags, out=out, preset=preset, config=config)
        if not trusted:
            refuse_code(settings, resume)
        return settings, choosing.preset_of(resume)

    # the first process alone looks at the ledger, which has one reader at a time that may become its writer
    settings, begun_with = processes.broadcast_object(processes.first(resumed))
    return PlannedRun(settings, _prepare(settings), resume, resuming=True, preset=begun_with)


def _prepare(settings: RunConfig) -> Preparation:
    if console.can_redraw(console.notes()):
        console.notes().print("preparing: data, model, and the noise that keeps the budget", style="dim")
    with console.features_progress(console.notes()) as progress:
        return configured(settings, progress=progress)


_run, _privacy, _method, _crash = (partial(typer.Option, rich_help_panel=GROUPS[at]) for at in (0, 1, 5, 9))


@with_settings()
def train(
    context: typer.Context,
    *,
    preset: Annotated[
        str | None,
        _run(help="See `adadpigu presets`; none: start from defaults. [<dataset>-<method>]", autocompletion=PRESETS),
    ] = None,
    config: Annotated[Path | None, _run(help="TOML file, e.g. a run folder's config.toml; flags win over it.")] = None,
    out: Annotated[Path | None, _run(help="Run folder. [runs/<dataset>-<method>-<UTC>]")] = None,
    resume: Annotated[
        Path | None, _run(metavar="RUN", help="Go on with a run that was stopped or crashed: its folder.")
    ] = None,
    trust_model_code: Annotated[
        bool, _run("--trust-model-code", help="With --resume: the run's model may be code of your own.")
    ] = False,
    clip_norm: Annotated[
        str | None, _privacy(metavar="<float>", help="C, the bound on a record's contribution.")
    ] = None,
    retention: Annotated[
        str | None, _method(metavar="<float>|off", help="r, the share of coordinates that AdaDPIGU keeps. [0.6]")
    ] = None,
    option: Annotated[
        list[str] | None, _method("--set", help="NAME=VALUE, an option of the method, as --NAME VALUE is.")
    ] = None,
    log: Annotated[
        list[str] | None,
        _crash(metavar="LOGGER", help="Log to the run folder: tensorboard, mlflow or wandb (offline); repeatable."),
    ] = None,
    as_json: Json = False,
    **settings: object,
) -> int:
    """Trains a model under a privacy budget, into a run folder. Without flags: AdaDPIGU on the embedded digits.

    Every option of the method is a flag too, such as --mean-decay 0.9; `adadpigu methods` lists them. The word off
    switches off what a preset or a config switched on: --ema off, --copies off, --normalisation off.
    """
    declared = {"clip_norm": clip_norm, "retention": retention}
    given = {key: value for key, value in declared.items() if value is not None}
    options = choosing.method_options(option or [], context.args, given)
    flags = {**choosing.read_flags(settings), "method_options": options}
    sources: dict[str, Any] = {"preset": preset, "config": config, "out": out, "resume": resume}
    with joined() as processes, only_first_prints(processes):
        agreed(processes, lambda: [make_logger(name, Path()) for name in log or []])  # refused before data are fetched
        if resume is None and is_standalone(asked := choosing.configure(flags, preset=preset, config=config)):
            refuse_idle(asked, log, processes)
            return run_standalone(asked, out or _new_folder(asked.dataset, asked.method), as_json=as_json)
        planned = agreed(processes, lambda: plan_run(flags, processes, trusted=trust_model_code, **sources))
        named = planned.prepared.data.name, planned.settings.method
        folder = planned.folder or processes.broadcast_object(_new_folder(*named))
        run = _run_training(planned, folder, log or [], silent=as_json and not sys.stderr.isatty())
        if as_json:
            console.print_json({**run.summary(), "preset": planned.preset})
        else:
            print_summary(run)
        return Interrupted(130) if run.interrupted else 0


def _new_folder(dataset: str, method: str) -> Path:
    """Named by what is trained and when; the second one of a second is numbered."""
    name = f"{Path(dataset).stem}-{method}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(path for path in map(Path("runs").joinpath, itertools.chain([name], numbered)) if not path.exists())


def _run_training(planned: PlannedRun, folder: Path, log: Sequence[str], *, silent: bool) -> Run:
    """Trains into the run folder, with a progress bar and loggers."""
    settings, prepared = planned.settings, planned.prepared
    shown: list[Observer] = [] if silent else [console.Progress(console.notes(), preset=planned.preset)]
    files, found = {}, records_at_once(prepared)
    if found is not None:
        files["memory.json"] = json.dumps({"physical_batch_size": found, "memory_limit": settings.memory_limit}) + "\n"

    def introduce(opened: Preparation) -> None:
        print_path(opened)
        if found is not None:
            console.notes().print(f"up to {found} records at once fit the memory", style="dim")
        for warning in opened.warnings:
            console.print_warning(warning)

    run = train_prepared(
        prepared,
        out=folder,
        config=choosing.remarks(planned.preset, prepared.stages) + resolved(settings, prepared).to_toml(),
        files=files,
        observers=[*shown, *(make_logger(name, folder) for name in dict.fromkeys(log))],
        randomness=_chosen_randomness(settings),
        resuming=planned.resuming,
        shared=None if settings.ledger is None else Path(settings.ledger),
        introduce=introduce,
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run has ended: Ctrl-C must not lose its table
    if run.folder is not None:  # the first process's, of several
        _draw(run, folder)
    return run


def _draw(run: Run, folder: Path) -> None:
    from adadpigu.report.figures import draw_figures
    from adadpigu.report.page import write_run_page

    for name, draw in (
        ("figures", lambda: draw_figures(run, folder / "figures")),
        ("report", lambda: write_run_page(folder)),
    ):
        try:
            draw()
        except Exception as error:  # a picture must cost a run neither its report nor its table
            console.print_warning(f"{name} could not be drawn: {type(error).__name__}: {error}")


def _chosen_randomness(settings: RunConfig) -> Randomness | Tier | None:
    if not settings.reproducible_noise:
        return cast("Tier | None", settings.randomness)
    alone = settings.randomness is None
    check("randomness", settings.randomness, alone, "with reproducible_noise: give one of them, not both")
    if settings.seed is None:
        raise InputError("reproducible_noise without a seed; allowed: with --seed, which fixes the noise")
    return ReproducibleRandomness(settings.seed)


def _validation_row(found: Validation) -> list[str]:
    noise = found.stddev / max(found.records, 1.0)
    return ["accuracy on private records", f"{found.accuracy:.2%} ± {noise:.1%} (noise), loss {found.loss:.3g}"]


def print_summary(run: Run) -> None:
    privacy = run.privacy
    rows = [
        ["test accuracy", "—" if run.accuracy is None else f"{run.accuracy:.2%}"],
        *([] if run.validation is None else [_validation_row(run.validation)]),
        ["ε (PLD, the one to cite)", rounded_up(privacy.epsilon_pld) if privacy.private else "∞: NOT PRIVATE"],
        ["ε (RDP)", rounded_up(privacy.epsilon_rdp) if privacy.private else "—"],
        ["δ", f"{privacy.delta:g}"],
        ["noise multiplier σ", console.number(privacy.noise_multiplier)],
        ["steps", f"{run.steps}" if run.steps_done == run.steps else f"{run.steps_done} of {run.steps}"],
        ["seconds", f"{run.seconds:.1f}"],
    ]
    if run.steps_done < run.steps and not run.interrupted:
        charged = f"{privacy.steps_charged} steps were charged"
        rows.insert(1, ["STOPPED before the budget: steps that a crash had cost could not be repeated", charged])
    if run.interrupted:
        rows.insert(1, ["INTERRUPTED: ε spent so far (the claim stays the plan's)", rounded_up(privacy.epsilon_spent)])
    folder = run.folder
    console.screen().print(console.table(["", ""], rows))
    quoted = shlex.quote(str(folder))  # commands are copied into a shell
    program = "adadpigu" if shutil.which("adadpigu") else sys.argv[0]
    if Path(program).name == "__main__.py":
        program = "python -m adadpigu"
    for line in (
        f"\nThe run is in {folder}. Look next at",
        f"  {folder}/statement.txt  what the model gives away, in plain words",
        *(f"  {path}  all of it, in a browser" for path in (folder or Path()).glob("report.html")),
        *(f"  {path}" for path in sorted((folder or Path()).glob("figures/*.png"))),
        f"  {program} predict {quoted} FILE" if run.accuracy is None else f"  {program} evaluate {quoted}",
        *([f"  {program} train --resume {quoted}  to go on"] if run.interrupted else []),
    ):
        console.print_line(line)
