"""`adadpigu train`: its flags, and the way from them to a run: planned, trained, told.

training_settings.py merges flags with preset and config, training_flags.py refuses those that do nothing,
training_plan.py loads and calibrates, training_run.py trains, training_summary.py prints the end.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from adadpigu.cli.helping import add
from adadpigu.cli.output import Interrupted, Json, print_json
from adadpigu.cli.training_plan import Asked, plan_run
from adadpigu.cli.training_run import trained
from adadpigu.cli.training_summary import conclude
from adadpigu.config import RunConfig

_int, _float = partial(typer.Option, metavar="<int>|off"), partial(typer.Option, metavar="<float>|off")


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None, typer.Option(help="By name (`adadpigu data list`), or your own .csv, .parquet, .npz or folder.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `adadpigu methods`. [adadpigu]")] = None,
    model: Annotated[str | None, typer.Option(help="See `adadpigu models`, or package.module:function.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, the budget. [4, or what --noise-multiplier costs]")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the guarantee. [1e-5]")] = None,
    preset: Annotated[
        str | None, typer.Option(help="See `adadpigu presets`; none: start from defaults. [<dataset>-<method>]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file, e.g. a run folder's config.toml; flags win over it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [runs/<dataset>-<method>-<UTC>]")] = None,
    steps: Annotated[str | None, _int(help="T, steps of all stages of the method.")] = None,
    epochs: Annotated[str | None, _float(help="Instead of steps: times records / batch size. [20]")] = None,
    batch_size: Annotated[str | None, _int(help="B, the expected batch size. [N/4, up to 512]")] = None,
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
    warmup: Annotated[str | None, _float(help="Share of the steps over which the rate rises. [0]")] = None,
    momentum: Annotated[str | None, _float(help="Momentum of the optimiser. [0.9]")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Any of torch.optim, by name. [sgd]")] = None,
    weight_decay: Annotated[str | None, _float(help="Weight decay of the optimiser.")] = None,
    ema: Annotated[str | None, _float(help="Decay of the average of the weights that is kept.")] = None,
    tail: Annotated[str | None, _float(help="Instead: average the weights of this last share.")] = None,
    clipping: Annotated[str | None, typer.Option(help="flat, or automatic (every record is scaled). [flat]")] = None,
    clip_stability: Annotated[float | None, typer.Option(help="γ of automatic clipping. [0.01]")] = None,
    copies: Annotated[str | None, _int(help="Augmented copies of a record, one clip for all. [1]")] = None,
    shift: Annotated[str | None, _int(help="Augmentation: shift by up to so many pixels. [0]")] = None,
    shift_step: Annotated[int | None, typer.Option(help="Augmentation: shifts are multiples of this. [1]")] = None,
    flip: Annotated[bool | None, typer.Option("--flip/--no-flip", help="Augmentation: mirror half of them.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="C, the bound on a record's contribution.")] = None,
    retention: Annotated[
        float | None, typer.Option(help="r, the share of coordinates that AdaDPIGU keeps. [0.6]")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, an option of the method, as --NAME VALUE is.")
    ] = None,
    noise_multiplier: Annotated[str | None, _float(help="σ; without it, the least that keeps the budget.")] = None,
    records: Annotated[int | None, typer.Option(help="N, the public record count of your own data.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes of your own data.")] = None,
    describe: Annotated[
        str | None, typer.Option(help="TOML file with the public facts of your own data (docs/own-data.md).")
    ] = None,
    seed: Annotated[str | None, _int(help="Fixes what is public: weights at the start, random masks.")] = None,
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
    evaluate_every: Annotated[str | None, _int(help="Steps between looks at the test set.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped or crashed: its folder.")
    ] = None,
    checkpoint_every: Annotated[str | None, _int(help="Steps between checkpoints. [about once a minute]")] = None,
    spare_steps: Annotated[
        str | None, _int(help="Calibrate for so many steps more, to be repeated after a crash. [0]")
    ] = None,
    reserve: Annotated[
        str | None, _int(help="Steps charged at once. [1, or more where the ledger would cost over 2 %]")
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
        typer.Option(
            "--reproducible-noise/--no-reproducible-noise",
            help="Fix noise by --seed, for debugging: the run is NOT PRIVATE.",
        ),
    ] = None,
    diagnostics: Annotated[
        bool | None,
        typer.Option("--diagnostics/--no-diagnostics", help="Write un-noised losses and norms: OUTSIDE the guarantee."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOGGER", help="Log to the run folder: tensorboard, mlflow or wandb (offline); repeatable."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Trains a model under a privacy budget and writes a run folder. Without flags: AdaDPIGU on the embedded digits.

    Every option of the method is a flag too, such as --mean-decay 0.9; `adadpigu methods` lists them. The word off
    switches off what a preset or a config switched on: --ema off, --copies off, --normalisation off.
    """
    keys = {field.name for field in fields(RunConfig)}
    flags: dict[str, object] = {name: value for name, value in locals().items() if name in keys}
    flags["physical_batch_size"] = physical_batch_size
    given = _given(clip_norm=clip_norm, retention=retention)
    options = option or [], context.args, given
    asked = Asked(flags, options, preset=preset, config=config, out=out, resume=resume, trusted=trust_model_code)
    from adadpigu.distributed.launching import agreed, joined, one_voice
    from adadpigu.loggers import make_logger

    with joined() as processes, one_voice(processes):
        agreed(processes, lambda: [make_logger(name, Path()) for name in log or []])  # refused before data are fetched
        planned = agreed(processes, lambda: plan_run(asked, processes))
        silent = as_json and not sys.stderr.isatty()
        run = trained(planned, processes, silent=silent, log=log or [])
        if as_json:
            print_json(run.summary())
        else:
            conclude(run)
        return Interrupted(130) if run.interrupted else 0


def _given(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def add_to(app: typer.Typer) -> None:
    """Adds the command of this file."""
    add(
        app,
        train,
        "Trains a model under a privacy budget, into a run folder.",
        "adadpigu train --epsilon 2 --steps 60 --out runs/first",
        "adadpigu train --method dpsgd --model mlp --steps 60 --out runs/second",
        "adadpigu train --preset none --mean-decay 0.8 --steps 60 --out runs/plain",
        extra_flags=True,
    )
