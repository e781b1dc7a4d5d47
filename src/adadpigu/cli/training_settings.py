"""Defaults, preset, config file and flags become the settings of a run; or those of a run that goes on.

Flags that nothing would look at are refused: someone expects an effect. Settings are public; no record is read here.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

from adadpigu.accounting.wording import rounded_up
from adadpigu.config import OFF, SETTINGS, RunConfig, all_presets, merge, read_config, read_flag, read_preset
from adadpigu.data import is_named
from adadpigu.data.own import is_own
from adadpigu.durable import read_text
from adadpigu.errors import InputError, require, unknown
from adadpigu.methods import all_methods, make_method
from adadpigu.methods.base import Stage
from adadpigu.training.options import idle_options
from adadpigu.training.resuming import CHANGEABLE_ON_RESUME, noise_of, refuse_unfit, spent_by


def read_flags(flags: Mapping[str, object]) -> dict[str, object]:
    """Flags that were read as text in the types of their settings; contradictions are refused."""
    read = {key: read_flag(key, value) if isinstance(value, str) else value for key, value in flags.items()}
    steps, epochs = read.get("steps"), read.get("epochs")
    require({None, OFF} & {steps, epochs}, f"steps={steps} and epochs={epochs}: give one of them, not both")
    return read


def method_options(pairs: Iterable[str], words: Iterable[str], given: Mapping[str, object]) -> dict[str, object]:
    """Options of a method as the command line gives them: by `--set`, by flags of their own, by declared flags."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        example = "e.g. --set clip_norm=0.5; `adadpigu methods` lists them"
        require(equals and name, f"--set {pair!r} is not NAME=VALUE, {example}")
        found[name.strip().replace("-", "_")] = value
    for key, chosen in (*_method_flags(list(words)), *given.items()):
        same = found.setdefault(key, chosen) == chosen
        require(same, f"{key}={found[key]} and {key}={chosen}: give one of them, not both")
    return found


def _method_flags(words: list[str]) -> list[tuple[str, str]]:
    """Flags that `train` does not declare: `--name value`, `--name=value`, `--name` and `--no-name` of any method."""
    if not words:
        return []
    known = {field.name for method in all_methods().values() for field in fields(method)}
    found: list[tuple[str, str]] = []
    while words:
        flag, equals, value = words.pop(0).partition("=")
        key = flag.removeprefix("--").replace("-", "_")
        require(flag.startswith("--"), f"{flag!r} belongs to no flag; see `adadpigu train --help`")
        if not equals and key.removeprefix("no_") in known and key not in known:
            key, value = key.removeprefix("no_"), "false"
        elif not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        if key not in known:
            ours = {"--" + name.replace("_", "-") for name in known.union(field.name for field in fields(RunConfig))}
            raise InputError(f"{unknown('flag', flag, ours)}; see `adadpigu train --help`")
        found.append((key, value))
    return found


def refuse_idle(flags: dict[str, object], settings: RunConfig) -> None:
    """Refuses each flag that does nothing with these settings. Presets may hold such."""
    method = make_method(settings.method, settings.method_options)
    of_method = cast("Mapping[str, object]", flags["method_options"] or {})
    for told in itertools.chain(idle_options(flags, vars(settings)), method.contradictions(of_method)):
        raise InputError(told)


def made_idle(flags: dict[str, object], settings: RunConfig) -> list[str]:
    """Says of options that a preset or a file chose that they do nothing beside the flags of the method."""
    given = cast("Mapping[str, object]", flags["method_options"] or {})
    if not given:
        return []
    method = make_method(settings.method, settings.method_options)
    usual = type(method)()
    held = {key: value for key, value in settings.method_options.items() if key not in given}
    return list(
        method.contradictions(
            {key: value for key, value in held.items() if getattr(method, key) != getattr(usual, key)}
        )
    )


def configure(flags: dict[str, object], *, preset: str | None, config: Path | None) -> RunConfig:
    """Defaults, preset, config file, flags, later ones winning. The preset of data and method is the default one."""
    file = {} if config is None else read_config(config)
    if preset is None and config is None:
        preset = default_preset(merge(flags))
    base = {} if preset in (None, "none") else read_preset(preset)  # none: start from the defaults of the classes
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
    if name in all_presets():
        return name
    budgets = [int(tail) for head, _, tail in (known.rpartition("-eps") for known in all_presets()) if head == name]
    near = min(sorted(budgets), key=lambda budget: abs(budget - (asked.epsilon or 4.0)), default=None)
    return None if near is None else f"{name}-eps{near}"


_FROM_PRESET = "# settings of the preset {}, where neither file nor flag said otherwise"


def remarks(preset: str | None, stages: Iterable[Stage]) -> str:
    """How a run folder's `config.toml` begins, for people: with the preset and the steps of each stage, T_pre first.

    No digest covers these lines.
    """
    steps = ", ".join(f"{stage.name} {stage.steps}" for stage in stages)
    return ("" if preset is None else _FROM_PRESET.format(preset) + "\n") + f"# steps of its stages: {steps}\n\n"


def preset_of(run: Path) -> str | None:
    """The preset that a run folder's config names."""
    first = read_text(run / "config.toml", f"run={str(run)!r}").partition("\n")[0]
    return next((name for name in all_presets() if first == _FROM_PRESET.format(name)), None)


def resumed_config(run: Path, flags: dict[str, object], **others: object) -> RunConfig:
    """The settings of a run that goes on; of the flags, those are taken that change neither guarantee nor result."""
    for key, value in others.items():
        began = "a run goes on in its own folder, as it began; leave it out"
        require(value is None, f"{key}={str(value)!r} with --resume: {began}")
    refuse_unfit(run)
    stored = merge(read_config(run / "config.toml"))
    settings = merge(read_config(run / "config.toml"), flags)
    if settings.epsilon not in (None, stored.epsilon) and (settings.epsilon or 0.0) < (spent := spent_by(run)):
        fault = f"epsilon={settings.epsilon:g} is lower than what the run has spent already ({rounded_up(spent)})"
        raise InputError(f"{fault}; leave it out")
    before, now = _by_key(stored), _by_key(settings)
    for key in [*before, *now]:
        if now.get(key) != before.get(key) and key not in CHANGEABLE_ON_RESUME | {"randomness"}:
            raise InputError(f"{key}={now.get(key)!r} is not what the run began with; allowed: {before.get(key)!r}")
    return replace(settings, noise_multiplier=noise_of(run))


def _by_key(settings: RunConfig) -> dict[str, object]:
    """Every setting by its name, the method's options among them."""
    values = {field.name: getattr(settings, field.name) for field in SETTINGS}
    return values | make_method(settings.method, settings.method_options).options()
