"""Flags of `adadpigu train` as values. Those that nothing would look at are refused: someone expects an effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import cast

from adadpigu.config import OFF, RunConfig, read_flag
from adadpigu.errors import InputError, unknown


def read_flags(flags: Mapping[str, object]) -> dict[str, object]:
    """Flags that were read as text in the types of their settings; contradictions are refused."""
    read = {
        key: read_flag(key, value) if isinstance(value, str) and key != "method" else value
        for key, value in flags.items()
    }
    if not {None, OFF} & {read["steps"], read["epochs"]}:
        raise InputError(f"steps={read['steps']} and epochs={read['epochs']}: give one of them, not both")
    return read


def method_options(pairs: Iterable[str], words: Iterable[str], given: Mapping[str, object]) -> dict[str, object]:
    """Options of a method as the command line gives them: by `--set`, by flags of their own, by declared flags."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(
                f"--set {pair!r} is not NAME=VALUE, e.g. --set clip_norm=0.5; `adadpigu methods` lists them"
            )
        found[name.strip().replace("-", "_")] = value
    for key, chosen in (*_method_flags(list(words)), *given.items()):
        if found.setdefault(key, chosen) != chosen:
            raise InputError(f"{key}={found[key]} and {key}={chosen}: give one of them, not both")
    return found


def _method_flags(words: list[str]) -> list[tuple[str, str]]:
    """Flags that `train` does not declare: `--name value`, `--name=value`, `--name` and `--no-name` of any method."""
    if not words:
        return []
    from adadpigu.methods import all_methods

    known = {field.name for method in all_methods().values() for field in fields(method)}
    found: list[tuple[str, str]] = []
    while words:
        flag, equals, value = words.pop(0).partition("=")
        key = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--"):
            raise InputError(f"{flag!r} belongs to no flag; see `adadpigu train --help`")
        if not equals and key.removeprefix("no_") in known and key not in known:
            key, value = key.removeprefix("no_"), "false"
        elif not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        if key not in known:
            ours = {field.name for field in fields(RunConfig)} | known
            raise unknown("flag", flag, {"--" + name.replace("_", "-") for name in ours})
        found.append((key, value))
    return found


def refuse_idle(flags: dict[str, object], settings: RunConfig) -> None:
    """Refuses each flag that does nothing with these settings. Presets may hold such."""
    for key, needed, wanted in (
        ("normalisation_clip", "normalisation", "released"),
        ("normalisation_noise", "normalisation", "released"),
        ("clip_stability", "clipping", "automatic"),
    ):
        found = getattr(settings, needed)
        if flags[key] not in (None, OFF) and found != wanted:
            raise InputError(f"{key}={flags[key]} does nothing with {needed}={found!r}; allowed with {wanted!r}")
    for key, needed, looks, wanted in (
        ("shift_step", "shift", bool, "a shift above 0"),
        ("momentum", "optimizer", has_momentum, "an optimiser that has one, such as 'sgd'"),
        ("activation", "model", has_activation, "a model that has one between its layers, such as 'mlp'"),
    ):
        found = getattr(settings, needed)
        if flags[key] not in (None, OFF, 0.0) and not looks(found):
            raise InputError(f"{key}={flags[key]} does nothing with {needed}={found!r}; allowed with {wanted}")
    _refuse_idle_options(flags, settings)


def _refuse_idle_options(flags: dict[str, object], settings: RunConfig) -> None:
    """The same for options of the method that need another one, which is off."""
    from adadpigu.methods import make_method

    given = cast("Mapping[str, object]", flags["method_options"] or {})
    options = vars(make_method(settings.method, settings.method_options))
    for needed, off, idle in (("top_k", 1.0, ("top_k_of",)), ("clip_quantile", None, ("clip_rate", "count_noise"))):
        for key in idle:
            if key in given and options.get(needed, ...) == off:
                raise InputError(f"{key}={given[key]} does nothing with {needed}={off}; allowed with another {needed}")


def has_momentum(optimizer: str) -> bool:
    """Whether an optimiser, as it will be made, comes out otherwise with another momentum."""
    import torch

    from adadpigu.training.optimiser import optimiser_factory

    weights = [torch.nn.Parameter(torch.zeros(1, 1))]
    made = [optimiser_factory(optimizer, lr=1.0, momentum=momentum)(weights) for momentum in (0.25, 0.5)]
    return made[0].defaults != made[1].defaults


def has_activation(model: str | None) -> bool:
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
