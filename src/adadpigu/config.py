"""A run as a file: every choice that the command line makes, in TOML. Public throughout.

Presets are such files; the `config.toml` in a run folder is one too, and reruns it. Order of precedence: defaults,
preset, config file, flags. The word `off`, in a file or as a flag, switches off what an earlier layer switched on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_type_hints

from adadpigu.errors import InputError, unknown


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What `adadpigu train` does. The defaults train AdaDPIGU on the embedded digits."""

    dataset: str = "digits"
    records: int | None = None
    classes: int | None = None
    describe: str | None = None
    features: str = "none"
    normalisation: str = "none"
    normalisation_clip: float = 1.0
    normalisation_noise: float = 8.0
    model: str | None = None
    activation: str | None = None
    initialisation: str = "default"
    epsilon: float | None = None
    delta: float = 1e-5
    steps: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    lr: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    lr_schedule: str = "constant"
    warmup: float = 0.0
    ema: float | None = None
    tail: float | None = None
    clipping: str = "flat"
    clip_stability: float = 0.01
    copies: int = 1
    shift: int = 0
    shift_step: int = 1
    flip: bool = False
    noise_multiplier: float | None = None
    physical_batch_size: int | str | None = None
    memory_limit: int | str | None = None
    engine: str = "auto"
    precision: str = "float32"
    execution: str = "auto"
    evaluate_every: int | None = None
    device: str = "auto"
    seed: int | None = None
    diagnostics: bool = False
    spare_steps: int = 0
    checkpoint_every: int | None = None
    reserve: int | None = None
    ledger: str | None = None
    randomness: str | None = None
    reproducible_noise: bool = False
    method: str = "adadpigu"
    method_options: Mapping[str, object] = field(default_factory=dict)

    def to_toml(self) -> str:
        """The config as a file that `from_toml` reads back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        options = dict(values.pop("method_options"))
        method = values.pop("method")
        return to_toml({k: v for k, v in values.items() if v is not None} | {"method": {"name": method, **options}})


_RIVALS = (
    {"steps", "epochs"},
    {"epsilon", "noise_multiplier"},
    {"ema", "tail"},
    {"physical_batch_size", "memory_limit"},
)
"""keys of which a later layer's choice replaces an earlier layer's other one"""
OFF = "off"
_NEUTRAL: Mapping[str, object] = {
    "features": "none",
    "normalisation": "none",
    "initialisation": "default",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "lr_schedule": "constant",
    "warmup": 0.0,
    "copies": 1,
    "shift": 0,
    "flip": False,
    "diagnostics": False,
    "spare_steps": 0,
    "reproducible_noise": False,
}
"""what `off` stands for where a setting has a value that does nothing; where it may be unset, it is unset"""


def parse(text: str, name: str) -> dict[str, object]:
    """The keys that a TOML config sets, checked by name and type; errors tell the line."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"config {name}: it nests too deep") from None
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise InputError(f"config {name}: {error}") from None
    method = table.pop("method", {})
    found: dict[str, object] = {}
    if isinstance(method, str):
        method = {"name": method}
    if not isinstance(method, dict):
        raise InputError(f"config {name}, line {_line(text, 'method')}: method must be a name or a table")
    if "name" in method:
        found["method"] = method.pop("name")
        if not isinstance(found["method"], str):
            raise InputError(f"config {name}, line {_line(text, 'name')}: name={found['method']!r} is not a string")
    found["method_options"] = method
    _check_method(found, text, name)
    types = _types()
    for key, value in table.items():
        if key not in types:
            raise InputError(f"config {name}, line {_line(text, key)}: {unknown('key', key, [*types, 'method'])}")
        found[key] = _checked(value, key, f"config {name}, line {_line(text, key)}: {key}")
    return found


def read_flag(key: str, text: str) -> object:
    """A flag's text as a value of its setting's type; `off` as in a file.

    >>> read_flag("steps", "40"), read_flag("shift", "off"), read_flag("ema", "off")
    (40, 0, 'off')
    """
    for kind in (int, float):
        if kind in get_args(_types()[key]) or kind is _types()[key]:
            with contextlib.suppress(ValueError):
                return kind(text)
    return _checked(text, key, key)


def _check_method(found: Mapping[str, object], text: str, name: str) -> None:
    """Checks a method's options where the file names the method; else the flags will."""
    from adadpigu.methods import all_methods

    method, options = found.get("method"), found["method_options"]
    if method is None:
        return
    methods = all_methods()
    if method not in methods:
        raise InputError(f"config {name}, line {_line(text, 'name')}: {unknown('method', str(method), methods)}")
    assert isinstance(options, dict)
    for key, value in options.items():
        try:
            methods[str(method)].option(key, value)
        except InputError as error:
            raise InputError(f"config {name}, line {_line(text, key)}: {error}") from None


def _types() -> dict[str, Any]:
    hints = get_type_hints(RunConfig)
    return {name: hint for name, hint in hints.items() if name not in ("method", "method_options")}


def _checked(value: object, key: str, where: str) -> object:
    hint = _types()[key]
    kinds = tuple(kind for kind in (get_args(hint) or (hint,)) if kind is not type(None))
    switchable = key in _NEUTRAL or type(None) in get_args(hint)
    if value == OFF and switchable:
        return _NEUTRAL.get(key, OFF)
    if value == OFF:
        raise InputError(f"{where}={value!r} cannot be switched off; allowed: a value")
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > sys.float_info.max:
            raise InputError(f"{where} has {len(str(abs(value)))} digits; allowed: numbers of type float")
        return float(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        allowed = [kind.__name__ for kind in kinds] + [OFF] * switchable
        raise InputError(f"{where}={value!r} is not of type {' or '.join(allowed)}")
    return value


def _line(text: str, key: str) -> int:
    """The line on which a key is set."""
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"\s*\[?\s*[\"']?{re.escape(key)}[\"']?\s*[\]=.]", line):
            return number
    return 1


def merge(*layers: Mapping[str, object]) -> RunConfig:
    """One config from several, later ones winning; another method drops the options of the one before."""
    values: dict[str, Any] = {}
    options: dict[str, object] = {}
    for layer in layers:
        values = {key: value for key, value in values.items() if layer.get(key) != OFF}
        given = {key: value for key, value in layer.items() if value is not None and value != OFF}
        chosen = given.pop("method_options", {})
        if given.get("method", values.get("method")) != values.get("method", given.get("method")):
            options = {}
        for rivals in _RIVALS:
            if rivals & given.keys():
                values = {key: value for key, value in values.items() if key not in rivals}
        values |= given
        options |= dict(chosen) if isinstance(chosen, Mapping) else {}
    return RunConfig(**values, method_options=options)


def read_config(path: Path) -> dict[str, object]:
    """The keys of a config file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"config={str(path)!r} cannot be read: {reason}") from None
    return parse(text, str(path))


@functools.cache
def all_presets() -> Mapping[str, str]:
    """The text of every preset, by name."""
    folder = resources.files("adadpigu") / "presets"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8") for f in files}


def read_preset(name: str) -> dict[str, object]:
    """The keys of a preset."""
    presets = all_presets()
    if name not in presets:
        raise unknown("preset", name, presets)
    return parse(presets[name], f"preset {name}")


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
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    escaped = str(value).translate(
        {ord('"'): '\\"', ord("\\"): "\\\\", **{c: f"\\u{c:04x}" for c in (*range(32), 127)}}
    )
    return f'"{escaped}"'
