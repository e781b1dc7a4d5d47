"""Parameter freezing and selection: DP-SGD on a share of the coordinates that public facts choose.

    ĝ = (Σ clip_C(m ⊙ g_i) + m ⊙ N(0, σ²C² I))/B        m keeps the ⌊r·d⌋ coordinates of largest public |w|

w is what the run starts from, another public model, chance, or (every step anew) the weights as they are now, which
are functions of releases. None of these looks at a record, so the mask is free. It is applied before the clip.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.bounding import GradientSum
from adadpigu.errors import InputError
from adadpigu.importance import chosen, rank
from adadpigu.layout import Layout
from adadpigu.mechanism import Release
from adadpigu.methods.base import (
    Batches,
    Method,
    Running,
    Setting,
    Stage,
    check_choices,
    check_positive,
    mean_gradient,
    register,
)
from adadpigu.state import State
from adadpigu.tensors import read_tensors

Select = Literal["magnitude", "random", "public-model"]
Every = Literal["once", "step"]


@register
@dataclass(frozen=True, kw_only=True)
class ParameterFreezing(Method):
    """Trains the share r of the coordinates (Adamczewski and Park 2023): fixed (freezing) or changing (selection)."""

    name: ClassVar[str] = "parameter-freezing"
    source: ClassVar[str] = "Adamczewski and Park 2023"
    adds: ClassVar[str] = "a mask by public magnitudes or by chance, fixed or chosen anew every step"
    costs: ClassVar[str] = "one event a step; the mask is free"

    clip_norm: float = 0.5
    """C, of the masked gradient"""
    retention: float = 0.6
    """r, the share of coordinates that is trained"""
    select: Select = "magnitude"
    """`magnitude`: the largest weights; `random`; `public-model`: the largest weights of `public_model`"""
    every: Every = "once"
    """`once`, before training, or at every `step` (by the magnitudes of the current weights, or by chance anew)"""
    public_model: str | None = None
    """FILE.safetensors with the model's parameter names, trained on public records; its magnitudes alone are used"""

    def __post_init__(self) -> None:
        check_positive(self, "clip_norm")
        check_choices(self)
        if not 0 < self.retention <= 1:
            raise InputError(f"retention={self.retention} is not in (0, 1]")
        if (self.public_model is None) == (self.select == "public-model"):
            raise InputError(
                f"public_model={self.public_model} with select={self.select!r}: select='public-model' needs a file, "
                "the others take none"
            )
        if self.select == "public-model" and self.every == "step":
            raise InputError("every='step' with select='public-model': its magnitudes do not change; allowed: once")

    def declared(self) -> tuple[str, ...]:
        chosen = f"the weights in {self.public_model!r}, by which coordinates are chosen"
        return () if self.public_model is None else (chosen,)

    def begin(self, setting: Setting) -> Running:
        count = math.floor(self.retention * setting.layout.size + 1e-9)
        if count < 1:
            raise InputError(f"retention={self.retention} keeps none of {setting.layout.size} parameters")
        return _Running(self, setting, count)


class _Running(Running):
    def __init__(self, options: ParameterFreezing, setting: Setting, count: int) -> None:
        self._options = options
        self._setting = setting
        self._count = count
        self._active = self._choose(self._scores(setting.weights, 0))
        fixed = options.every == "once" and self._active is not None
        self._trained = setting.layout.touched(self._active) if fixed and self._active is not None else None

    @property
    def active(self) -> Tensor | None:
        return self._active

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        if self._options.every == "step":
            self._active = self._choose(self._scores(weights, index))

    def _scores(self, weights: Tensor, index: int) -> Tensor:
        """What the mask is chosen by: public, every kind of it."""
        if self._options.select == "random":
            chance = self._setting.chance(index).random(len(weights))
            return torch.from_numpy(chance).to(self._setting.device)
        if self._options.public_model is not None:
            weights = read_public_model(self._options.public_model, self._setting.layout).to(weights.device)
        return weights.abs()

    def _choose(self, scores: Tensor) -> Tensor | None:
        """The mask of the largest scores, ties broken by index; None for all."""
        return None if self._count == len(scores) else chosen(rank(scores), self._count)

    def state(self) -> State:
        return {} if self._active is None else {"active": self._active}

    def load(self, state: State) -> None:
        """The mask of the weights at the start, which are not there any more."""
        if "active" in state and self._active is not None:
            self._active.copy_(state["active"])
            if self._trained is not None:
                self._trained = self._setting.layout.touched(self._active)

    def record(self, stage: Stage) -> Hashable | None:
        return stage.name if self._options.every == "once" else None

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        query = GradientSum(clip_norm=self._options.clip_norm, active=self._active, trained=self._trained)
        return mean_gradient(batches, query, self._setting.batch_size)


def read_public_model(path: str, layout: Layout) -> Tensor:
    """The weights of a public model as one vector, in the order of `layout`; other tensors of the file are ignored."""
    if not Path(path).is_file():
        raise InputError(f"public_model={path!r} is not a file; allowed: a .safetensors file of a public model")
    found = read_tensors(Path(path), "public_model")
    for slot in layout.slots:
        if slot.name not in found:
            raise InputError(f"public_model={path!r} has no {slot.name!r}; allowed: the parameter names of this model")
        tensor = found[slot.name]
        if tensor.shape != slot.shape:
            raise InputError(
                f"public_model={path!r}: {slot.name!r} has shape {tuple(tensor.shape)}, not {tuple(slot.shape)}"
            )
        if not tensor.is_floating_point():
            raise InputError(f"public_model={path!r}: {slot.name!r} holds {tensor.dtype}; allowed: floating point")
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"public_model={path!r}: {slot.name!r} has values that are not finite")
    return torch.cat([found[slot.name].reshape(-1).double() for slot in layout.slots])
