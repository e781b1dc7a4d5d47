"""Flags of `adadpigu train` that nothing would look at: refused, since whoever gave them expects something of them."""

from __future__ import annotations

from adadpigu.config import RunConfig
from adadpigu.errors import InputError


def refuse_idle(flags: dict[str, object], settings: RunConfig) -> None:
    """Refuses each flag that does nothing with these settings. Presets may hold such."""
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
        ("momentum", "optimizer", has_momentum, "an optimiser that has one, such as 'sgd'"),
        ("activation", "model", has_activation, "a model that has one between its layers, such as 'mlp'"),
    ):
        found = getattr(settings, needed)
        if flags[key] is not None and not looks(found):
            raise InputError(f"{key}={flags[key]} does nothing with {needed}={found!r}; allowed with {wanted}")


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
