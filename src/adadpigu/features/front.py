"""What comes before the trained net: fixed features, then a normaliser. Record by record, without trained parameters.

A front learns nothing, so it costs nothing; the one exception is `ReleasedNorm`, whose two numbers a channel are
released with noise and charged before training (`training.normalising`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError, unknown
from adadpigu.features.prior import Prior
from adadpigu.features.scattering import CHANNELS, OrderNorm, Scattering
from adadpigu.mechanism import Release, require_release
from adadpigu.priors.weights import packaged_weights

FEATURES = ("none", "scattering", "prior")
_LEAST_CLIP = 1e-9
"""of released normalisation: its square must be far from zero, and its inverse's from infinity"""
NORMALISATIONS = ("none", "record", "orders", "group:GROUPS", "constants:MEANS/STDS", "released")


class ChannelNorm(nn.Module):
    """(x − mean_c) / std_c for each channel c, with public constants."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        finite = bool(torch.isfinite(mean).all() and torch.isfinite(std).all())
        if mean.shape != std.shape or mean.ndim != 1 or not finite or not bool((std > 0).all()):
            raise InputError("normalisation: one finite mean and one finite std above 0 a channel are needed")
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *(1,) * (x.ndim - 2))
        return (x - self.mean.view(shape)) / self.std.view(shape)


class ReleasedNorm(ChannelNorm):
    """A `ChannelNorm` whose constants will be released privately, as one draw of the whole data set before training."""

    def __init__(self, channels: int, *, clip: float, noise_multiplier: float) -> None:
        super().__init__(torch.zeros(channels), torch.ones(channels))
        if not _LEAST_CLIP <= clip <= 1 / _LEAST_CLIP:
            raise InputError(f"normalisation_clip={clip} is not from {_LEAST_CLIP:g} to {1 / _LEAST_CLIP:g}")
        if not 0 < noise_multiplier < math.inf:
            raise InputError(f"normalisation_noise={noise_multiplier} is not a finite number above 0")
        self.clip = clip
        self.noise_multiplier = noise_multiplier

    def fill(self, mean: Release, std: Release) -> None:
        """Sets the released constants: a function of releases, and accepted as such only."""
        self.mean.copy_(require_release(mean).value)
        self.std.copy_(require_release(std).value)

    def reset(self) -> None:
        """Back to the identity: moments are taken of records as they are."""
        self.mean.zero_()
        self.std.fill_(1.0)


class Front(nn.Module):
    """Features and normaliser, either of which may be absent.

    Only kinds that treat each record alone and keep nothing are taken, by exact type: a front runs over many records
    at once, and whatever it let through from one to another no clip would bound.
    """

    def __init__(self, features: nn.Module | None, normaliser: nn.Module | None) -> None:
        super().__init__()
        _refuse_unknown("features", features, (Scattering, Prior))
        _refuse_unknown("normaliser", normaliser, (nn.LayerNorm, nn.GroupNorm, OrderNorm, ChannelNorm, ReleasedNorm))
        self.features = features
        self.normaliser = normaliser
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for part in (self.features, self.normaliser):
            if part is not None:
                x = part(x)
        return x

    def declared(self) -> tuple[str, ...]:
        """Constants that are taken as public, for the statement."""
        prior = (self.features.declared(),) if isinstance(self.features, Prior) else ()
        if isinstance(self.normaliser, ReleasedNorm):
            return (
                *prior,
                f"the bound {self.normaliser.clip:g} on a record's channel means, for released normalisation",
            )
        if isinstance(self.normaliser, ChannelNorm):
            return (*prior, "normalisation constants, as given")
        return prior

    @property
    def released(self) -> ReleasedNorm | None:
        """The normaliser whose constants have to be released before training."""
        return self.normaliser if isinstance(self.normaliser, ReleasedNorm) else None


def _refuse_unknown(role: str, module: nn.Module | None, allowed: tuple[type[nn.Module], ...]) -> None:
    names = ", ".join(kind.__name__ for kind in allowed)
    if module is not None and type(module) not in allowed:
        raise InputError(f"{role}={type(module).__name__}: not known to treat records alone; allowed: {names}")
    for path, part in module.named_modules() if module is not None else ():
        own = type(part).__module__.startswith("adadpigu.") or type(part) in allowed
        hooked = any(getattr(part, name) for name in ("_forward_hooks", "_forward_pre_hooks"))
        if not own or hooked or "forward" in vars(part):
            what = "with hooks or a forward of its own" if own else "not known to treat records alone"
            raise InputError(f"{role}: its part {path!r} is a {type(part).__name__}, {what}; allowed: as it is made")
    if module is not None and any(True for _ in module.parameters()):
        raise InputError(f"{role}={type(module).__name__} has parameters; allowed in a front: {names} without any")


class Fronted(nn.Module):
    """A whole model: fixed front, trained body. This is what is kept, saved and used."""

    def __init__(self, front: Front, body: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.body(self.front(x))
        return output


def make_front(
    features: str,
    normalisation: str,
    shape: tuple[int, ...],
    *,
    normalisation_clip: float = 1.0,
    normalisation_noise: float = 8.0,
) -> tuple[Front | None, tuple[int, ...]]:
    """The front for records of a shape (None where there is nothing to do), and the shape it makes of them.

    >>> make_front("none", "record", (1, 8, 8))[1]
    (1, 8, 8)
    """
    transform = _transform(features, shape)
    shape = shape if transform is None else transform.features
    scattered = isinstance(transform, Scattering)
    normaliser = _normaliser(normalisation, shape, normalisation_clip, normalisation_noise, scattered=scattered)
    if transform is None and normaliser is None:
        return None, shape
    return Front(transform, normaliser), shape


def _transform(features: str, shape: tuple[int, ...]) -> Scattering | Prior | None:
    """The features that a name stands for."""
    if features not in FEATURES:
        raise unknown("features", features, FEATURES)
    if features == "none":
        return None
    if len(shape) != 3:
        raise InputError(f"features={features!r} needs images (channels, height, width), not {shape}")
    return Scattering(shape) if features == "scattering" else Prior(packaged_weights(), shape)


def _normaliser(spec: str, shape: tuple[int, ...], clip: float, noise: float, *, scattered: bool) -> nn.Module | None:
    if spec == "none":
        return None
    if spec == "record":
        return nn.LayerNorm(shape, elementwise_affine=False)
    if spec == "orders" and scattered:
        return OrderNorm(shape[0] // CHANNELS)
    if spec == "released":
        return ReleasedNorm(shape[0], clip=clip, noise_multiplier=noise)
    kind, _, values = spec.partition(":")
    try:
        if kind == "group" and int(values) >= 1 and shape[0] % int(values) == 0:
            return nn.GroupNorm(int(values), shape[0], affine=False)
        if kind == "constants":
            means, stds = ([float(v) for v in part.split(",")] for part in values.split("/"))
            if len(means) == len(stds) == shape[0]:
                return ChannelNorm(torch.tensor(means), torch.tensor(stds))
    except (ValueError, ZeroDivisionError):
        pass
    raise InputError(
        f"normalisation={spec!r} does not fit records of shape {shape}; allowed: {', '.join(NORMALISATIONS)}; "
        f"orders is for scattering features, GROUPS a divisor of the {shape[0]} channels, and each has a mean and a std"
    )
