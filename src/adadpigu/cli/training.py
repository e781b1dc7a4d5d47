"""`adadpigu train`: flags and files become a config, the config a run, the run a folder and a short table."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from adadpigu.accounting.wording import number as rounded_up
from adadpigu.cli.output import Json, notes, number, print_json, screen, table
from adadpigu.config import RunConfig, all_presets, merge, read_config, read_preset
from adadpigu.data import is_named
from adadpigu.data.own import is_own
from adadpigu.errors import InputError
from adadpigu.training.run import check_free

if TYPE_CHECKING:
    from adadpigu.distributed import Processes
    from adadpigu.randomness import Randomness, Tier
    from adadpigu.training import Preparation, Run
    from adadpigu.training.run import Observer


class Interrupted(int):
    """The exit code of a run that was stopped and has said what it spent."""


def train(
    dataset: Annotated[
        str | None, typer.Option(help="By name (`adadpigu data list`), or your own .csv, .parquet, .npz or folder.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `adadpigu methods`. [adadpigu]")] = None,
    model: Annotated[str | None, typer.Option(help="See `adadpigu models`, or package.module:function.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, the budget. [4, or what --noise-multiplier costs]")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the guarantee. [1e-5]")] = None,
    preset: Annotated[
        str | None, typer.Option(help="See `adadpigu presets`. [<dataset>-<method> where there is one]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file, e.g. a run folder's config.toml; flags win over it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [runs/<dataset>-<method>-<UTC>]")] = None,
    steps: Annotated[int | None, typer.Option(help="T, steps of all stages of the method.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Instead of steps: times records / batch size. [20]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="B, the expected batch size. [N/4, up to 512]")] = None,
    features: Annotated[str | None, typer.Option(help="Fixed front: none, scattering, prior (images). [none]")] = None,
    normalisation: Annotated[
        str | None,
        typer.Option(help="none, record, orders, group:GROUPS, constants:MEANS/STDS, or released (charged)."),
    ] = None,
    normalisation_clip: Annotated[
        float | None, typer.Option(help="For released: public bound on a record's channel means. [1]")
    ] = None,
    normalisation_noise: Annotated[
        float | None, typer.Option(help="For released: noise multiplier of each of its two sums. [8]")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="tanh, relu, or tempered:SCALE,TEMPERATURE,OFFSET.")] = None,
    initialisation: Annotated[str | None, typer.Option(help="Where weights start: default, xavier. [default]")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. [1]")] = None,
    lr_schedule: Annotated[str | None, typer.Option(help="constant, linear or cosine. [constant]")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the steps over which the rate rises. [0]")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of the optimiser. [0.9]")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Any of torch.optim, by name. [sgd]")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of the optimiser.")] = None,
    ema: Annotated[float | None, typer.Option(help="Decay of the average of the weights that is kept.")] = None,
    tail: Annotated[float | None, typer.Option(help="Instead: average the weights of this last share.")] = None,
    clipping: Annotated[str | None, typer.Option(help="flat, or automatic (every record is scaled). [flat]")] = None,
    clip_stability: Annotated[float | None, typer.Option(help="γ of automatic clipping. [0.01]")] = None,
    copies: Annotated[int | None, typer.Option(help="Augmented copies of a record, one clip for all. [1]")] = None,
    shift: Annotated[int | None, typer.Option(help="Augmentation: shift by up to so many pixels. [0]")] = None,
    shift_step: Annotated[int | None, typer.Option(help="Augmentation: shifts are multiples of this. [1]")] = None,
    flip: Annotated[bool | None, typer.Option("--flip/--no-flip", help="Augmentation: mirror half of them.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="C, the bound on a record's contribution.")] = None,
    retention: Annotated[
        float | None, typer.Option(help="r, the share of coordinates that AdaDPIGU keeps. [0.6]")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, an option of the method; repeatable.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ; without it, the least that keeps the budget.")
    ] = None,
    records: Annotated[int | None, typer.Option(help="N, the public record count of your own data.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes of your own data.")] = None,
    describe: Annotated[
        str | None, typer.Option(help="TOML file with the public facts of your own data (docs/own-data.md).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes what is public: weights at the start, random masks.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …, or auto. [auto: a GPU if any]")] = None,
    physical_batch_size: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Records processed at once, auto: as many as fit; changes memory only."),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="What processing records may take, e.g. 4GiB or 800MB; means auto. [what is free]"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="How gradients are bounded: auto, ghost, materialised, functional, loop. [auto]"),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of products within the net: float32 or bf16. [float32]")
    ] = None,
    execution: Annotated[
        str | None, typer.Option(help="auto: a GPU records a step once and replays it; eager: never. [auto]")
    ] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between looks at the test set.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped or crashed: its folder.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints. [about once a minute]")
    ] = None,
    spare_steps: Annotated[
        int | None, typer.Option(help="Calibrate for so many steps more, to be repeated after a crash. [0]")
    ] = None,
    reserve: Annotated[
        int | None, typer.Option(help="Steps charged at once. [1, or more where the ledger would cost over 2 %]")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="That several runs on one data set share; see `adadpigu ledger`."),
    ] = None,
    trust_model_code: Annotated[
        bool,
        typer.Option("--trust-model-code", help="With --resume: the run's model may be code of your own."),
    ] = False,
    randomness: Annotated[
        str | None,
        typer.Option(help="Of noise and sampling: secure (ChaCha20) or fast (torch). [secure; on a GPU fast]"),
    ] = None,
    reproducible_noise: Annotated[
        bool | None,
        typer.Option("--reproducible-noise", help="Fix noise by --seed, for debugging: the run is NOT PRIVATE."),
    ] = None,
    diagnostics: Annotated[
        bool | None, typer.Option("--diagnostics", help="Write un-noised losses and norms: OUTSIDE the guarantee.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOGGER", help="Log to the run folder: tensorboard, mlflow or wandb (offline); repeatable."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Trains a model under a privacy budget and writes a run folder. Without flags: AdaDPIGU on the embedded digits."""
    keys = {field.name for field in fields(RunConfig)}
    flags: dict[str, object] = {name: value for name, value in locals().items() if name in keys}
    flags["physical_batch_size"] = physical_batch_size
    methods = option or [], _given(clip_norm=clip_norm, retention=retention)
    asked = _Asked(flags, methods, preset=preset, config=config, out=out, resume=resume, trusted=trust_model_code)
    from adadpigu.distributed.launching import agreed, joined, one_voice
    from adadpigu.loggers import make_logger

    with joined() as processes, one_voice(processes):
        agreed(processes, lambda: [make_logger(name, Path()) for name in log or []])  # refused before data are fetched
        ordered = agreed(processes, lambda: _ordered(asked, processes))
        silent = as_json and not sys.stderr.isatty()
        run = _trained(ordered, processes, silent=silent, log=log or [])
        if as_json:
            print_json(run.summary())
        else:
            _conclude(run)
        return Interrupted(130) if run.interrupted else 0


@dataclass(frozen=True)
class _Asked:
    """What the command line says, as it stands there."""

    flags: dict[str, object]
    methods: tuple[list[str], dict[str, object]]
    preset: str | None
    config: Path | None
    out: Path | None
    resume: Path | None
    trusted: bool


@dataclass(frozen=True)
class _Ordered:
    """A run that can be started: its settings, and where it is written."""

    settings: RunConfig
    prepared: Preparation
    out: Path | None
    resume: Path | None
    preset: str | None
    """the one that was taken without being asked for"""


def _ordered(asked: _Asked, processes: Processes) -> _Ordered:
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
        _refuse_idle(flags, settings)
        if asked.preset is None and asked.config is None:
            taken = default_preset(merge(flags))
    else:
        # the first process alone looks at the ledger, which has one reader at a time that may become its writer
        settings = processes.told(processes.first(partial(_settings_to_go_on, asked.resume, flags, asked)))
    return _Ordered(settings, ready(settings), asked.out, asked.resume, taken)


def _settings_to_go_on(resume: Path, flags: dict[str, object], asked: _Asked) -> RunConfig:
    from adadpigu.report.loading import refuse_code

    settings = _settings_of(resume, flags, out=asked.out, preset=asked.preset, config=asked.config)
    if not asked.trusted:
        refuse_code(settings, resume)
    return settings


def _trained(ordered: _Ordered, processes: Processes, *, silent: bool, log: list[str]) -> Run:
    from adadpigu.cli.progress import Progress
    from adadpigu.loggers import make_logger

    folder = ordered.resume or ordered.out or processes.told(_new_folder(ordered.prepared, ordered.settings))
    shown: list[Observer] = [] if silent else [Progress(notes(), preset=ordered.preset)]
    observers = [*shown, *(make_logger(name, folder) for name in dict.fromkeys(log))]
    return _execute(ordered.prepared, ordered.settings, folder, observers, resuming=ordered.resume is not None)


def _refuse_idle(flags: dict[str, object], settings: RunConfig) -> None:
    """A flag that nothing would look at is refused: whoever gave it expects something of it. Presets may hold such."""
    for key, needed, wanted in (
        ("normalisation_clip", "normalisation", "released"),
        ("normalisation_noise", "normalisation", "released"),
        ("clip_stability", "clipping", "automatic"),
    ):
        found = getattr(settings, needed)
        if flags[key] is not None and found != wanted:
            raise InputError(f"{key}={flags[key]} does nothing with {needed}={found!r}; allowed with {wanted!r}")
    for key, needed, looks, wanted in (
        ("shift_step", "shift", bool, "a shift above 0"),
        ("momentum", "optimizer", _has_momentum, "an optimiser that has one, such as 'sgd'"),
        ("activation", "model", _has_activation, "a model that has one between its layers, such as 'mlp'"),
    ):
        found = getattr(settings, needed)
        if flags[key] is not None and not looks(found):
            raise InputError(f"{key}={flags[key]} does nothing with {needed}={found!r}; allowed with {wanted}")


def _has_momentum(optimizer: str) -> bool:
    """Whether an optimiser, as it will be made, comes out otherwise with another momentum."""
    import torch

    from adadpigu.training.optimiser import optimiser_factory

    weights = [torch.nn.Parameter(torch.zeros(1, 1))]
    made = [optimiser_factory(optimizer, lr=1.0, momentum=momentum)(weights) for momentum in (0.25, 0.5)]
    return made[0].defaults != made[1].defaults


def _has_activation(model: str | None) -> bool:
    """Whether a model asks for the activation that is chosen; one that is not known by name is judged elsewhere."""
    import torch

    from adadpigu.models import all_models

    card = all_models().get(model or "mlp")
    if card is None:
        return True
    asked: list[torch.nn.Module] = []

    def activation() -> torch.nn.Module:
        asked.append(torch.nn.Identity())
        return asked[-1]

    with torch.device("meta"):  # shapes alone: nothing is allocated or drawn
        card.net(card.shape or (1, 8, 8), 10, activation)
    return bool(asked)


def _number_or_word(text: str | None) -> int | str | None:
    try:
        return text if text is None else int(text)
    except ValueError:
        return text


def _given(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def method_options(pairs: list[str]) -> dict[str, object]:
    """Options of a method as the command line gives them."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set {pair!r} is not NAME=VALUE")
        found[name.strip().replace("-", "_")] = value
    return found


def configure(flags: dict[str, object], *, preset: str | None, config: Path | None) -> RunConfig:
    """Defaults, preset, config file, flags, later ones winning. The preset of data and method is the default one."""
    file = {} if config is None else read_config(config)
    base: dict[str, object] = {}
    if preset is None and config is None:
        preset = default_preset(merge(flags))
    if preset is not None:
        base = read_preset(preset)
    settings = merge(base, file, flags)
    if settings.ledger is not None:
        settings = replace(settings, ledger=str(Path(settings.ledger).resolve()))
    if is_named(settings.dataset) or not is_own(settings.dataset):
        return settings
    found = None if settings.describe is None else str(Path(settings.describe).resolve())
    # absolute, so that the run can be used from anywhere
    return replace(settings, dataset=str(Path(settings.dataset).resolve()), describe=found)


def default_preset(asked: RunConfig) -> str | None:
    """The preset for a data set and a method: of the ε asked for, or of the nearest there is."""
    name = f"{'fashion' if asked.dataset == 'fashion-mnist' else asked.dataset}-{asked.method}"
    near = "eps4" if asked.epsilon is None or asked.epsilon > 3 else "eps2"
    return next((found for found in (name, f"{name}-{near}") if found in all_presets()), None)


def ready(settings: RunConfig) -> Preparation:
    """Loads, checks and calibrates; nothing is written."""
    from adadpigu.cli.progress import features_progress
    from adadpigu.training.configured import configured

    with features_progress(notes()) as progress:
        return configured(settings, progress=progress)


def _new_folder(prepared: Preparation, settings: RunConfig) -> Path:
    return Path("runs") / f"{prepared.data.name}-{settings.method}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _settings_of(run: Path, flags: dict[str, object], **others: object) -> RunConfig:
    """The settings of a run that goes on; of the flags, those are taken that change neither guarantee nor result."""
    from adadpigu.training.resuming import FREE, noise_of, refuse_unfit, spent_by

    for key, value in others.items():
        if value is not None:
            raise InputError(f"{key}={str(value)!r} with --resume: a run goes on in its own folder, as it began")
    refuse_unfit(run)
    stored = merge(read_config(run / "config.toml"))
    settings = merge(read_config(run / "config.toml"), flags)
    if settings.epsilon not in (None, stored.epsilon) and (settings.epsilon or 0.0) < (spent := spent_by(run)):
        raise InputError(f"epsilon={settings.epsilon:g} is lower than what the run has spent already ({spent:.4g})")
    before, now = _by_key(stored), _by_key(settings)
    for key in [*before, *now]:
        if now.get(key) != before.get(key) and key not in FREE | {"randomness"}:
            raise InputError(f"{key}={now.get(key)!r} is not what the run began with; allowed: {before.get(key)!r}")
    return replace(settings, noise_multiplier=noise_of(run))


def _by_key(settings: RunConfig) -> dict[str, object]:
    """Every setting by its name, the method's options among them."""
    from adadpigu.methods import make_method

    values = {key: value for key, value in vars(settings).items() if key != "method_options"}
    return values | make_method(settings.method, settings.method_options).options()


def _chosen_randomness(settings: RunConfig) -> Randomness | Tier | None:
    from adadpigu.randomness import ReproducibleRandomness

    if not settings.reproducible_noise:
        return cast("Tier | None", settings.randomness)
    if settings.randomness is not None:
        raise InputError(f"randomness={settings.randomness!r} with reproducible_noise: give one of them, not both")
    if settings.seed is None:
        raise InputError("reproducible_noise without a seed; allowed: with --seed, which fixes the noise")
    return ReproducibleRandomness(settings.seed)


def _execute(
    prepared: Preparation, settings: RunConfig, folder: Path, observers: Sequence[Observer], *, resuming: bool
) -> Run:
    from adadpigu.report.figures import draw_figures
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
        notes().print(f"[yellow]warning:[/] {warning}")
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
    try:
        if run.folder is not None:  # the first process's, of several
            draw_figures(run, folder / "figures")
    except Exception as error:  # a picture must not cost a run its table
        notes().print(f"[yellow]warning:[/] the figures could not be drawn: {type(error).__name__}: {error}")
    return run


def _conclude(run: Run) -> None:
    privacy = run.privacy
    rows = [
        ["test accuracy", "—" if run.accuracy is None else f"{run.accuracy:.2%}"],
        ["ε (PLD, the one to cite)", rounded_up(privacy.epsilon_pld) if privacy.private else "∞: NOT PRIVATE"],
        ["ε (RDP)", rounded_up(privacy.epsilon_rdp) if privacy.private else "—"],
        ["δ", f"{privacy.delta:g}"],
        ["noise multiplier σ", number(privacy.noise_multiplier)],
        ["steps", f"{run.steps}" if run.steps_done == run.steps else f"{run.steps_done} of {run.steps}"],
        ["seconds", f"{run.seconds:.1f}"],
    ]
    if run.steps_done < run.steps and not run.interrupted:
        told = f"{privacy.steps_charged} steps were charged"
        rows.insert(1, ["STOPPED before the budget: steps that a crash had cost could not be repeated", told])
    if run.interrupted:
        rows.insert(1, ["INTERRUPTED: ε spent so far (the claim stays the plan's)", rounded_up(privacy.epsilon_spent)])
    folder = run.folder
    screen().print(table(["", ""], rows))
    program = "adadpigu" if shutil.which("adadpigu") else sys.argv[0]
    for line in (
        f"\nThe run is in {folder}. Look next at",
        f"  {folder}/statement.txt  what the model gives away, in plain words",
        *(f"  {path}" for path in sorted((folder or Path()).glob("figures/*.png"))),
        f"  {program} evaluate {folder}",
        *([f"  {program} train --resume {folder}  to go on"] if run.interrupted else []),
    ):
        screen().print(line, soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    """Adds the command of this file."""
    app.command()(train)
