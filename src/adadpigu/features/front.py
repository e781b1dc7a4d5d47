"""What comes before the trained net: fixed features, then a normaliser. Record by record, without trained parameters.

A front learns nothing, so it costs nothing; the one exception is `ReleasedNorm`, whose two numbers a channel are
released with noise and charged before training (`training.normalising`).
"""

import copy
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from adadpigu.core.gradients.state import refuse_changes, untouched
from adadpigu.core.mechanism import Release, require_release
from adadpigu.core.trees import Tree, call
from adadpigu.data.augmentation import Augmentation, parse_views
from adadpigu.errors import InputError, check_known, check_range, first_line, require
from adadpigu.features.prior import Prior
from adadpigu.features.scattering import CHANNELS, OrderNorm, Scattering
from adadpigu.own_code import from_code
from adadpigu.priors.encoder import read_weights
from adadpigu.priors.named import NAMED, named_weights
from adadpigu.tensors import digest

FEATURES = ("none", "scattering", *NAMED, "FILE.safetensors (of a prior)", "package.module:function")
_LEAST_CLIP = 1e-9  # of released normalisation: its square must be far from zero, and its inverse's from infinity
NORMALISATIONS = ("none", "record", "orders", "group:GROUPS", "constants:MEANS/STDS", "released")


class ChannelNorm(nn.Module):
    """(x − mean_c) / std_c for each channel c, with public constants."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        finite = bool(torch.isfinite(mean).all() and torch.isfinite(std).all())
        fits = mean.shape == std.shape and mean.ndim == 1 and finite and bool((std > 0).all())
        require(fits, "normalisation: one finite mean and one finite std above 0 a channel are needed")
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *(1,) * (x.ndim - 2))
        return (x - self.mean.view(shape)) / self.std.view(shape)


class ReleasedNorm(ChannelNorm):
    """A `ChannelNorm` whose constants will be released privately, as one draw of the whole data set before training."""

    def __init__(self, channels: int, *, clip: float, noise_multiplier: float) -> None:
        super().__init__(torch.zeros(channels), torch.ones(channels))
        fits = _LEAST_CLIP <= clip <= 1 / _LEAST_CLIP
        require(fits, f"normalisation_clip={clip} is not from {_LEAST_CLIP:g} to {1 / _LEAST_CLIP:g}")
        check_range("normalisation_noise", noise_multiplier, "a finite number above 0")
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


class ByteScaling(nn.Module):
    """Images of bytes as floats in [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.get_default_dtype()) / 255


class Averaged(nn.Module):
    """The mean of an image's features over its views: a constant transform of each record alone, as each of them is."""

    def __init__(self, features: nn.Module, views: str) -> None:
        super().__init__()
        self.features, self._views = features, parse_views(views)
        self.signature = f"{getattr(features, 'signature', '')} averaged over views {views}"

    def forward(self, x: Tensor) -> Tensor:
        mean = self.features(self._views.show_one(x, 0))
        for view in range(1, self._views.variants):
            mean = mean + self.features(self._views.show_one(x, view))
        made: Tensor = mean / self._views.variants
        return made


_NORMALISERS = (nn.LayerNorm, nn.GroupNorm, OrderNorm, ChannelNorm, ReleasedNorm, ByteScaling)


class Front(nn.Module):
    """Features and normaliser, either of which may be absent. It is frozen and always in evaluation mode.

    It runs over many records at once, and no clip would bound what it carried from one to another. So a module that is
    not the package's own is probed on synthetic records (`inspect_front`) before a run.
    """

    def __init__(self, features: nn.Module | None, normaliser: nn.Module | None, origin: str | None = None) -> None:
        super().__init__()
        self.features = features
        self.normaliser = normaliser
        self.origin = origin  # of features that are the user's own
        self.requires_grad_(False)
        self.train()

    @classmethod
    def of(cls, module: nn.Module) -> "Front":
        """A copy of any module as a front: constants that a run releases are that run's."""
        module = copy.deepcopy(module)
        return module if isinstance(module, Front) else cls(module, None)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self.features is None:
            return inputs[0] if self.normaliser is None else self.normaliser(*inputs)
        made = self.features(*inputs, **named)
        return made if self.normaliser is None else self.normaliser(made)

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode, whatever is asked for: batch norms keep their stored statistics."""
        return super().train(False)

    @property
    def is_known(self) -> bool:
        """Whether all of it is known to treat each record alone."""
        parts = (_seen_by(self.features), (Scattering, Prior)), (self.normaliser, _NORMALISERS)
        return all(part is None or type(part) in kinds for part, kinds in parts)

    def declared(self) -> tuple[str, ...]:
        """Constants that are taken as public, for the statement."""
        features = _seen_by(self.features)
        told = [features.declared()] if isinstance(features, Prior) else []
        if not self.is_known:
            name = type(self.normaliser if features is None else features).__name__
            whence = ""
            if self.origin is not None:
                held = [*self.named_parameters(), *self.named_buffers()]
                whence = f" (from {self.origin}, weights of SHA-256 {digest(sorted(held))[:16]}…)"
            told = [f"the weights of the front {name}{whence}, and its constants: from none of these records"]
        if self.released is not None:
            told.append(f"the bound {self.released.clip:g} on a record's channel means, for released normalisation")
        elif isinstance(self.normaliser, ChannelNorm):
            told.append("normalisation constants, as given")
        return tuple(told)

    @property
    def released(self) -> ReleasedNorm | None:
        """The normaliser whose constants have to be released before training."""
        return self.normaliser if isinstance(self.normaliser, ReleasedNorm) else None


def _seen_by(features: nn.Module | None) -> nn.Module | None:
    """What makes the features of each view."""
    return features.features if isinstance(features, Averaged) else features


class Fronted(nn.Module):
    """A whole model: fixed front, trained body. This is what is kept, saved and used.

    Of images it gives the mean of its outputs over `views`: after training, and of each record alone.
    """

    def __init__(self, front: nn.Module, body: nn.Module, views: Augmentation | None = None) -> None:
        super().__init__()
        self.front = front
        self.body = body
        self.views = views or Augmentation()

    def forward(self, x: Any = None, *inputs: Any, **named: Any) -> Any:
        """`x` has a name of its own, since an exported model has one input."""
        if not self.views:
            return call(self.body, self.front(*(() if x is None else (x, *inputs)), **named))
        seen = [self.body(self.front(self.views.show_one(x, view))) for view in range(self.views.variants)]
        return torch.stack(seen).mean(0)


class OfViews(nn.Module):
    """The mean of a model's outputs over what was made of each view before, [b, views, ...]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.model(x.flatten(0, 1))
        return made.reshape(*x.shape[:2], *made.shape[1:]).mean(1)


def whole(front: nn.Module | None, body: nn.Module, views: Augmentation) -> nn.Module:
    """The model as it takes the user's records, with what comes before it and the views that it averages over."""
    if front is None and not views:
        return body
    return Fronted(Front(None, None) if front is None else front, body, views)


def apply_front(front: nn.Module, batch: Tree) -> Tree:
    """The front on what a record holds for it: the first of several parts, or all of a tensor. It keeps nothing."""
    with refuse_changes(front, path="front"):
        return (call(front, batch[0]), *batch[1:]) if isinstance(batch, tuple | list) else front(batch)


def make_front(
    features: str,
    normalisation: str,
    shape: tuple[int, ...],
    *,
    views: str = "none",
    normalisation_clip: float = 1.0,
    normalisation_noise: float = 8.0,
) -> tuple[Front | None, tuple[int, ...]]:
    """The front for records of a shape (None where there is nothing to do), and the shape it makes of them.

    Features are averaged over the `views` of an image.

    >>> make_front("none", "record", (1, 8, 8))[1]
    (1, 8, 8)
    """
    transform: nn.Module | None = None
    seen = shape
    own = is_own(features) and not features.partition("#")[0].endswith(SAVED)
    if own:
        transform, shape = _of_code(features, shape)
    elif features != "none":
        transform = Scattering(shape) if features == "scattering" else _prior(features, shape)
        shape = transform.features
    scattered = isinstance(transform, Scattering)
    looks = parse_views(views)
    if looks:
        fits = transform is not None and len(seen) == 3 and looks.shift < min(seen[1:])
        told = f"feature_views={views!r} of features={features!r} and records of shape {seen}"
        require(fits, f"{told}; allowed: features of images (channels, height, width), and a shift below their sides")
        assert transform is not None
        transform = Averaged(transform, views)
    normaliser = _normaliser(normalisation, shape, normalisation_clip, normalisation_noise, scattered=scattered)
    if transform is None and normaliser is None:
        return None, shape
    return Front(transform, normaliser, features if own else None), shape


SAVED = ".safetensors"


def is_own(features: str) -> bool:
    """Whether features are the user's own, code or a file, rather than the package's."""
    return ":" in features or features.partition("#")[0].endswith(SAVED)


def pinned(features: str) -> str:
    """The setting with the fingerprint of the file that it names, so that another file is refused later.

    >>> pinned("prior")
    'prior'
    """
    path, _, sha256 = features.partition("#")
    return f"{path}#{sha256 or read_weights(Path(path)).fingerprint()}" if path.endswith(SAVED) else features


def _prior(features: str, shape: tuple[int, ...]) -> Prior:
    """The prior of a file, or of a name; after @ how many of its directions are kept, the largest first."""
    path, _, sha256 = features.partition("#")
    if path.endswith(SAVED):
        return Prior(read_weights(Path(path), sha256 or None), shape)
    name, cut, count = features.partition("@")
    known = name in NAMED and (not cut or count.isdecimal())
    check_known("features", name if known else features, FEATURES)
    return Prior(named_weights(name), shape, keep=int(count) if cut else None)


def _of_code(features: str, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    """A user's own encoder, and the shape that it makes of a record; weights that it draws are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = from_code("features", features)().eval()
    try:
        with untouched(encoder), torch.no_grad():
            made = encoder(torch.zeros(2, *shape)).shape
    except Exception as error:
        raise InputError(f"features={features!r}: takes no records of shape {shape}: {first_line(error)}") from error
    require(len(made) > 1 and made[0] == 2, f"features={features!r}: makes {tuple(made)} of 2; allowed: a row a record")
    return encoder, tuple(made[1:])


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
    told = f"normalisation={spec!r} does not fit records of shape {shape}; allowed: {', '.join(NORMALISATIONS)}"
    groups = f"GROUPS a divisor of the {shape[0]} channels, and each has a mean and a std"
    raise InputError(f"{told}; orders is for scattering features, {groups}")
