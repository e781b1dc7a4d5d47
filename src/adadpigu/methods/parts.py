"""Parts of AdaDPIGU under names of their own: `adadpigu` is the whole of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from adadpigu.methods.adadpigu import AdaDPIGU, VarianceStart
from adadpigu.methods.base import register


@register
@dataclass(frozen=True, kw_only=True)
class Masked(AdaDPIGU):
    """AdaDPIGU's mask and unfreezing alone: α = 0 and β = 1 throughout."""

    name: ClassVar[str] = "masked"
    source: ClassVar[str] = "a part of adadpigu"
    adds: ClassVar[str] = "a mask by importance and progressive unfreezing"

    mean_decay: float = 1.0
    variance_decay: float = 1.0
    offset: float = 0.0
    floor: float = 0.0
    ceiling: float = math.inf


@register
@dataclass(frozen=True, kw_only=True)
class Layers(Masked):
    """No mask: β per layer from what stage 1 released, then held."""

    name: ClassVar[str] = "layers"
    source: ClassVar[str] = "a relative of adadpigu"
    adds: ClassVar[str] = "a clipping scale for each layer, from stage 1"

    retention: float = 1.0
    variance_start: VarianceStart = "stage-1"
