"""A run as a file: every choice that the command line makes, in TOML. Public throughout.

Presets are such files; the `config.toml` in a run folder is one too, and reruns it. Order of precedence: defaults,
preset, config file, flags. The word `off`, in a file or as a flag, switches off what an earlier layer switched on.
"""

import contextlib
import dataclasses
import difflib
import functools
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from adadpigu.core.gradients import Precision
from adadpigu.durable import read_text
from adadpigu.errors import InputError, check, check_known
from adadpigu.methods import all_methods, plugged_packages

Clipping = Literal["flat", "automatic"]
Denoise = Literal["none", "james-stein", "soft"]
LearningRateSchedule = Literal["constant", "linear", "cosine"]
Execution = Literal["auto", "eager"]


def option(default: object, group: str, about: str, *, off: object = None, text: str = "") -> Any:
    """A setting: its default, its group in `train --help`, and its help there.

    `off` is what the word off stands for where the setting has a value that does nothing; where it may be unset, off
    unsets it. `text` shows how the flag is written where its type does not tell.
    """
    return field(default=default, metadata={"group": group, "about": about, "off": off, "text": text})


GROUPS = (
    "What to train",
    "Privacy",
    "Your own data",
    "Steps and batches",
    "Optimiser",
    "Options of the method (all of them: `adadpigu methods`)",
    "Inputs and weights",
    "Augmentation",
    "Device, memory and speed",
    "Run folder, crashes and logs",
    "Debugging",
)
"""of `train --help`, in their order"""
_RUN, _PRIVACY, _DATA, _STEPS, _UPDATE, _METHOD, _INPUTS, _AUGMENT, _MEMORY, _CRASH, _DEBUG = GROUPS


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of training that are the same in Python (`TrainingOptions`), in files and as flags (`RunConfig`)."""

    noise_multiplier: float | None = option(None, _PRIVACY, "σ; without it, the least that keeps the budget.")
    clipping: Clipping = option("flat", _PRIVACY, "flat, or automatic (every record is scaled). [flat]")
    clip_stability: float = option(0.01, _PRIVACY, "γ of automatic clipping. [0.01]")
    perturbation: float = option(0.0, _PRIVACY, "κ: adds random vectors of size κC before the clip. [0]", off=0.0)
    private_validation: float | str | None = option(
        None, _PRIVACY, "Share of the records that is held out and scored once, with noise; or test.", text="SHARE|test"
    )
    validation_noise: float = option(10.0, _PRIVACY, "Noise multiplier of that one score, charged. [10]")
    grid: float | None = option(None, _PRIVACY, "Spacing of tier exact, a power of two at or below. [C·2⁻²⁰]")
    steps: int | None = option(None, _STEPS, "T, steps of all stages of the method.")
    epochs: float | None = option(None, _STEPS, "Instead of steps: times records / batch size. [20]")
    evaluate_every: int | None = option(None, _STEPS, "Steps between looks at the test set. [20 looks a run]")
    lr: float = option(1.0, _UPDATE, "Learning rate. [1]")
    body_lr: float = option(1.0, _UPDATE, "Share of the learning rate for layers but the last. [1]", off=1.0)
    lr_schedule: LearningRateSchedule = option(
        "constant", _UPDATE, "constant, linear or cosine. [constant]", off="constant"
    )
    warmup: float = option(0.0, _UPDATE, "Share of the steps over which the rate rises. [0]", off=0.0)
    momentum: float = option(0.9, _UPDATE, "Momentum of the optimiser. [0.9]", off=0.0)
    weight_decay: float = option(0.0, _UPDATE, "Weight decay of the optimiser.", off=0.0)
    ema: float | None = option(None, _UPDATE, "Decay of the average of the weights that is kept.")
    tail: float | None = option(None, _UPDATE, "Instead: average the weights of this last share.")
    public: str | None = option(
        None, _METHOD, "Public records that it may look at: processes:COUNT, or an .npz with x and y."
    )
    denoise: Denoise = option(
        "none", _METHOD, "Shrinks what is released: none, james-stein (by layer), or soft. [none]", off="none"
    )
    copies: int = option(1, _AUGMENT, "Augmented copies of a record, one clip for all. [1]", off=1)
    shift: int = option(0, _AUGMENT, "Shift images by up to so many pixels. [0]", off=0)
    shift_step: int = option(1, _AUGMENT, "Shifts are multiples of this. [1]")
    flip: bool = option(False, _AUGMENT, "Mirror half of the images.", off=False)
    views: str = option(
        "none",
        _AUGMENT,
        "Average outputs over views of an image: none, mirror, shift:PIXELS, mirror+shift:PIXELS. [none]",
        off="none",
    )
    device: str = option("auto", _MEMORY, "cpu, cuda, cuda:1, …, or auto. [auto: a GPU if any]")
    physical_batch_size: int | str | None = option(
        None, _MEMORY, "Records processed at once, auto: as many as fit; changes memory only.", text="N|auto"
    )
    memory_limit: int | str | None = option(
        None, _MEMORY, "What processing records may take, e.g. 4GiB or 800MB; means auto. [what is free]"
    )
    engine: str = option("auto", _MEMORY, "Bounds gradients: auto, ghost, materialised, functional, loop. [auto]")
    precision: Precision = option("float32", _MEMORY, "Of products within the net: float32 or bf16. [float32]")
    execution: Execution = option("auto", _MEMORY, "auto: a GPU records a step and replays it; eager: never. [auto]")
    checkpoint_every: int | None = option(None, _CRASH, "Steps between checkpoints. [about once a minute]")
    spare_steps: int = option(0, _CRASH, "Calibrate for so many steps more, to be repeated after a crash. [0]", off=0)
    reserve: int | None = option(None, _CRASH, "Steps charged at once. [1; more where the ledger would cost over 2 %]")
    diagnostics: bool = option(False, _DEBUG, "Write un-noised losses and norms: OUTSIDE the guarantee.", off=False)


@dataclass(frozen=True, kw_only=True)
class RunConfig(CommonOptions):
    """Every setting of `adadpigu train`, once. The defaults train AdaDPIGU on the embedded digits."""

    dataset: str = option("digits", _RUN, "By name (`adadpigu data list`), or your own .csv, .parquet, .npz or folder.")
    method: str = option("adadpigu", _RUN, "See `adadpigu methods`. [adadpigu]")
    model: str | None = option(None, _RUN, "See `adadpigu models`, or package.module:function.")
    epsilon: float | None = option(None, _PRIVACY, "ε, the budget. [4, or what --noise-multiplier costs]")
    delta: float = option(1e-5, _PRIVACY, "δ of the guarantee. [1e-5]")
    ledger: str | None = option(None, _PRIVACY, "Shared by runs on one data set; see `adadpigu ledger`.", text="FILE")
    randomness: str | None = option(
        None,
        _PRIVACY,
        "Of noise and sampling: secure (ChaCha20), exact (in whole numbers) or fast. [secure]",
    )
    records: int | None = option(None, _DATA, "N, the public record count of your own data.", text="int")
    classes: int | None = option(None, _DATA, "Number of classes of your own data.", text="int")
    describe: str | None = option(None, _DATA, "TOML file with the public facts of your own data (docs/own-data.md).")
    batch_size: int | None = option(None, _STEPS, "B, the expected batch size. [N/4, up to 512]")
    seed: int | None = option(None, _STEPS, "Fixes what is public: weights at the start, random masks.")
    optimizer: str = option("sgd", _UPDATE, "Any of torch.optim, by name. [sgd]")
    features: str = option(
        "none",
        _INPUTS,
        "Frozen front: none, scattering, prior (images; prior@320: of 320 directions), or your own, FILE.safetensors "
        "or package.module:function.",
        off="none",
    )
    feature_views: str = option(
        "none",
        _INPUTS,
        "Average features over views of an image: none, mirror, shift:PIXELS, mirror+shift:PIXELS. [none]",
        off="none",
    )
    normalisation: str = option(
        "none", _INPUTS, "none, record, orders, group:GROUPS, constants:MEANS/STDS, or released (charged).", off="none"
    )
    normalisation_clip: float = option(1.0, _INPUTS, "For released: public bound on a record's channel means. [1]")
    normalisation_noise: float = option(8.0, _INPUTS, "For released: noise multiplier of each of its two sums. [8]")
    activation: str | None = option(None, _INPUTS, "tanh, relu, or tempered:SCALE,TEMPERATURE,OFFSET.")
    initialisation: str = option(
        "default", _INPUTS, "Where weights start: default, xavier, FILE.safetensors. [default]", off="default"
    )
    reproducible_noise: bool = option(
        False, _DEBUG, "Fix noise by --seed, to debug: the run is NOT PRIVATE.", off=False
    )
    method_options: Mapping[str, object] = field(default_factory=dict)

    def to_toml(self) -> str:
        """The config as a file that `parse` reads back."""
        values = {f.name: getattr(self, f.name) for f in SETTINGS if f.name != "method"}
        method = {"name": self.method, **self.method_options}
        return to_toml({k: v for k, v in values.items() if v is not None} | {"method": method})


SETTINGS = sorted(
    (f for f in dataclasses.fields(RunConfig) if f.metadata),
    key=lambda f: (GROUPS.index(f.metadata["group"]), f.name in CommonOptions.__dataclass_fields__),
)
"""in the order of `train --help` and of `config.toml`"""


_RIVALS = (
    {"steps", "epochs"},
    {"epsilon", "noise_multiplier"},
    {"ema", "tail"},
    {"physical_batch_size", "memory_limit"},
)
"""keys of which a later layer's choice replaces an earlier layer's other one"""
_OF_A_GUARANTEE = {"epsilon", "noise_multiplier", "clipping", "perturbation"}
"""keys of earlier layers that go where a later one chooses a method without a guarantee"""
OFF = "off"
_NEUTRAL = {f.name: f.metadata["off"] for f in SETTINGS if f.metadata["off"] is not None}


def parse(text: str, name: str) -> dict[str, object]:
    """The keys that a TOML config sets, checked by name and type; errors tell the line."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML, or a number of thousands of digits
        reason = "it nests too deep" if isinstance(error, RecursionError) else error
        raise InputError(f"config {name}: {reason}") from None
    method = table.pop("method", {})
    options = method if isinstance(method, dict) else {"name": method}
    found: dict[str, object] = {"method_options": {key: value for key, value in options.items() if key != "name"}}
    if "name" in options:
        found["method"] = options["name"]
    key = "name"
    try:
        for key, value in options.items():
            _check_method(key, value, options.get("name"))
        for key, value in table.items():
            check_known("key", key, _types())
            found[key] = _checked(value, key)
    except InputError as error:
        raise InputError(f"config {name}, line {_line(text, key)}: {error}") from None
    return found


def read_flag(key: str, text: str) -> object:
    """A flag's text as a value of its setting's type; `off` as in a file.

    >>> read_flag("steps", "40"), read_flag("shift", "off"), read_flag("ema", "off")
    (40, 0, 'off')
    """
    for kind in (int, float):
        if kind in _kinds(key):
            with contextlib.suppress(ValueError):
                return kind(text)
    return _checked(text, key)


def _check_method(key: str, value: object, method: object) -> None:
    """Checks the method's name, or an option of it where the file names the method; else the flags will."""
    if key == "name":
        check("name", repr(value), isinstance(value, str), "must be a string")
        check_known("method", value, all_methods())
    elif method in all_methods():
        all_methods()[str(method)].option(key, value)


@functools.cache
def _types() -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(RunConfig).items() if name != "method_options"}


def flag_type(key: str) -> tuple[type, str]:
    """The type by which a command line reads a setting, and how its help shows that where it is more than the type.

    Numbers that can be switched off come as text, since the word off is none.

    >>> flag_type("delta"), flag_type("steps"), flag_type("flip"), flag_type("ledger")
    ((<class 'float'>, ''), (<class 'str'>, '<int>|off'), (<class 'bool'>, ''), (<class 'str'>, 'FILE'))
    """
    shown = next(f.metadata["text"] for f in SETTINGS if f.name == key)
    kinds = _kinds(key)
    if str in kinds or bool in kinds:
        return kinds[-1], shown
    if shown or not _switchable(key):
        return kinds[0], ""
    return str, f"<{kinds[0].__name__}>|{OFF}"


def _kinds(key: str) -> tuple[type, ...]:
    hint = _types()[key]
    if get_origin(hint) is Literal:
        return (str,)
    return tuple(kind for kind in (get_args(hint) or (hint,)) if kind is not type(None))


def _switchable(key: str) -> bool:
    return key in _NEUTRAL or type(None) in get_args(_types()[key])


def _checked(value: object, key: str) -> object:
    """A setting's value in its type; a whole number may stand for a float, and the word off for nothing."""
    kinds, switchable = _kinds(key), _switchable(key)
    if value == OFF and switchable:
        return _NEUTRAL.get(key, OFF)
    if float in kinds and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    fits = value != OFF and isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    allowed = " or ".join([kind.__name__ for kind in kinds] + [OFF] * switchable)
    check(key, f"{value!r:.100}", fits, f"must be of type {allowed}")
    return value


def _line(text: str, key: str) -> int:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"\s*\[?\s*[\"']?{re.escape(key)}[\"']?\s*[\]=.]", line):
            return number
    return 1


def merge(*layers: Mapping[str, object]) -> RunConfig:
    """One config from several, later ones winning; another method drops the options of the one before.

    A method without a guarantee drops the budget of earlier layers.
    """
    values: dict[str, Any] = {}
    options: dict[str, object] = {}
    for layer in layers:
        values = {key: value for key, value in values.items() if layer.get(key) != OFF}
        given = {key: value for key, value in layer.items() if value is not None and value != OFF}
        chosen = given.pop("method_options", {})
        method = given.get("method", values.get("method"))
        if method != values.get("method", method):
            options = {}
        if method != values.get("method") and method in all_methods() and not all_methods()[str(method)].private:
            values = {key: value for key, value in values.items() if key not in _OF_A_GUARANTEE}
        for rivals in _RIVALS:
            if rivals & given.keys():
                values = {key: value for key, value in values.items() if key not in rivals}
        values |= given
        options |= dict(chosen) if isinstance(chosen, Mapping) else {}
    return RunConfig(**values, method_options=options)


def read_config(path: Path) -> dict[str, object]:
    return parse(read_text(path, f"config={str(path)!r}"), str(path))


@functools.cache
def all_presets() -> Mapping[str, str]:
    """The text of every preset, by name: those beside methods of other packages too; a name of ours stays ours."""
    folders = [resources.files(package) / "presets" for package in (*plugged_packages(), "adadpigu")]
    files = {f.name: f for folder in folders if folder.is_dir() for f in folder.iterdir() if f.name.endswith(".toml")}
    return {name.removesuffix(".toml"): files[name].read_text(encoding="utf-8") for name in sorted(files)}


def read_preset(name: str) -> dict[str, object]:
    """The keys of a preset; an error for an unknown name gives the nearest ones, and the command that lists all."""
    found = all_presets()
    if name not in found:
        near = " or ".join(map(repr, difflib.get_close_matches(name.lower(), found, n=3, cutoff=0.5)))
        hint = f" did you mean {near}?" if near else ""
        raise InputError(f"unknown preset {name!r};{hint} `adadpigu presets` lists all {len(found)}")
    return parse(found[name], f"preset {name}")


def to_toml(values: Mapping[str, object]) -> str:
    """Plain values and tables of plain values as TOML.

    >>> print(to_toml({"lr": 1.0, "method": {"name": "dpsgd"}}), end="")
    lr = 1.0
    <BLANKLINE>
    [method]
    name = "dpsgd"
    """
    lines = [f"{key} = {_literal(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    for key, table in values.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{key}]", *(f"{k} = {_literal(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    if isinstance(value, float):
        return repr(value)
    text = json.dumps(value if isinstance(value, int) else str(value), ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # the one character that JSON lets stand and TOML does not
