"""Several fixed features of one image side by side, as channels, and a norm for each kind of them.

φ(x) = [φ₁(x), φ₂(x), …]. Every part treats each record alone, so all of them together do; nothing is learnt here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import InputError
from adadpigu.features.scattering import CHANNELS, OrderNorm, Scattering
from adadpigu.priors.maps import PriorMaps

KINDS = (PriorMaps, Scattering)


class Beside(nn.Module):
    """The features of each part, [b, c₁ + c₂ + …, h, w]; all parts have one h and w."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        for part in parts:
            if type(part) not in KINDS:
                names = ", ".join(kind.__name__ for kind in KINDS)
                raise InputError(f"features beside others: {type(part).__name__}; allowed: {names}")
        self.parts = nn.ModuleList(parts)
        self.signature = " beside ".join(str(part.signature) for part in parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class PartNorm(nn.Module):
    """Each record's features of one kind to mean 0 and variance 1: a stage of a prior, an order of a scattering."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        parts = list(features.parts) if isinstance(features, Beside) else [features]
        self.sizes: list[int] = []
        norms: list[nn.Module] = []
        for part in parts:
            sizes, kinds = _parts(part)
            self.sizes += sizes
            norms += kinds
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([norm(part) for norm, part in zip(self.norms, x.split(self.sizes, 1), strict=True)], 1)


class RecordNorm(nn.Module):
    """A record's values to mean 0 and variance 1, whatever its shape."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:])


def _parts(features: nn.Module) -> tuple[list[int], list[nn.Module]]:
    """How many channels each kind of feature has, and its norm."""
    if isinstance(features, PriorMaps):
        return features.kinds, [RecordNorm() for _ in features.kinds]
    if isinstance(features, Scattering):
        return [features.features[0]], [OrderNorm(features.features[0] // CHANNELS)]
    raise InputError(f"normalisation='parts' is for prior and scattering features, not {type(features).__name__}")
