"""Defaults, preset, config file and flags become the settings of a run; or those of a run that goes on.

Nothing here reads a record: settings are public, and so is what they are made of.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

from adadpigu.accounting.wording import number as rounded_up
from adadpigu.config import RunConfig, all_presets, merge, read_config, read_preset
from adadpigu.data import is_named
from adadpigu.data.own import is_own
from adadpigu.errors import InputError

NO_PRESET = "none"
"""in place of a preset's name: start from the defaults of the classes"""


def configure(flags: dict[str, object], *, preset: str | None, config: Path | None) -> RunConfig:
    """Defaults, preset, config file, flags, later ones winning. The preset of data and method is the default one."""
    file = {} if config is None else read_config(config)
    base: dict[str, object] = {}
    if preset is None and config is None:
        preset = default_preset(merge(flags))
    if preset not in (None, NO_PRESET):
        _refuse_unknown(preset)
        base = read_preset(preset)
    settings = merge(base, file, flags)
    if settings.ledger is not None:
        settings = replace(settings, ledger=str(Path(settings.ledger).resolve()))
    if is_named(settings.dataset) or not is_own(settings.dataset):
        return settings
    found = None if settings.describe is None else str(Path(settings.describe).resolve())
    # absolute, so that the run can be used from anywhere
    return replace(settings, dataset=str(Path(settings.dataset).resolve()), describe=found)


def _refuse_unknown(preset: str) -> None:
    """A name that no preset has: the nearest are told, and where all of them are listed."""
    known = all_presets()
    if preset not in known:
        near = difflib.get_close_matches(preset.lower(), known, n=3, cutoff=0.5)
        meant = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InputError(f"unknown preset {preset!r};{meant} `adadpigu presets` lists all {len(known)}")


def default_preset(asked: RunConfig) -> str | None:
    """The preset for a data set and a method: of the ε asked for, or of the nearest there is."""
    name = f"{'fashion' if asked.dataset == 'fashion-mnist' else asked.dataset}-{asked.method}"
    if name in all_presets():
        return name
    budgets = [int(tail) for head, _, tail in (known.rpartition("-eps") for known in all_presets()) if head == name]
    near = min(sorted(budgets), key=lambda budget: abs(budget - (asked.epsilon or 4.0)), default=None)
    return None if near is None else f"{name}-eps{near}"


def settings_of(run: Path, flags: dict[str, object], **others: object) -> RunConfig:
    """The settings of a run that goes on; of the flags, those are taken that change neither guarantee nor result."""
    from adadpigu.training.resuming import FREE, noise_of, refuse_unfit, spent_by

    for key, value in others.items():
        if value is not None:
            raise InputError(
                f"{key}={str(value)!r} with --resume: a run goes on in its own folder, as it began; leave it out"
            )
    refuse_unfit(run)
    stored = merge(read_config(run / "config.toml"))
    settings = merge(read_config(run / "config.toml"), flags)
    if settings.epsilon not in (None, stored.epsilon) and (settings.epsilon or 0.0) < (spent := spent_by(run)):
        raise InputError(
            f"epsilon={settings.epsilon:g} is lower than what the run has spent already ({rounded_up(spent)}); "
            "leave it out"
        )
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
