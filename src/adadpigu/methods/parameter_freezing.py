"""Parameter freezing and selection: DP-SGD on a share of the coordinates that public facts choose.

    ĝ = (Σ clip_C(m ⊙ g_i) + m ⊙ N(0, σ²C² I))/B        m keeps the ⌊r·d⌋ coordinates of largest public |w|

w is what the run starts from, another public model, chance, or (every step anew) the weights as they are now, which
are functions of releases. None of these looks at a record, so the mask is free. It is applied before the clip.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum
from adadpigu.core.layout import Layout
from adadpigu.core.state import State
from adadpigu.errors import InputError, require
from adadpigu.methods.base import GradientState, Method, MethodState, Positive, RunContext, Share, Stage, register
from adadpigu.methods.importance import chosen, rank
from adadpigu.methods.mask import MaskSchedule
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
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C, of the masked gradient"""
    retention: Share = 0.6
    """r, the share of coordinates that is trained"""
    select: Select = "magnitude"
    """`magnitude`: the largest weights; `random`; `public-model`: the largest weights of `public_model`"""
    every: Every = "once"
    """`once`, before training, or at every `step` (by the magnitudes of the current weights, or by chance anew)"""
    public_model: str | None = None
    """FILE.safetensors with the model's parameter names, trained on public records; its magnitudes alone are used"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.public_model is None) == (self.select == "public-model"):
            given = f"public_model={self.public_model} with select={self.select!r}"
            raise InputError(f"{given}: select='public-model' needs a file, the others take none")
        if self.select == "public-model" and self.every == "step":
            raise InputError("every='step' with select='public-model': its magnitudes do not change; allowed: once")

    def declared(self) -> tuple[str, ...]:
        chosen = f"the weights in {self.public_model!r}, by which coordinates are chosen"
        return () if self.public_model is None else (chosen,)

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context, MaskSchedule(retention=self.retention).count(context.layout.size, 0, 1))


class _State(GradientState):
    def __init__(self, options: ParameterFreezing, context: RunContext, count: int) -> None:
        super().__init__(GradientSum(clip_norm=options.clip_norm), context.batch_size)
        self._options = options
        self._context = context
        self._count = count
        self._choose(context.weights, 0)

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        if self._options.every == "step":
            self._choose(weights, index)

    def _choose(self, weights: Tensor, index: int) -> None:
        """The coordinates of the largest scores, ties broken by index."""
        scores = self._scores(weights, index)
        self._ask_for(None if self._count == len(scores) else chosen(rank(scores), self._count))

    def _ask_for(self, active: Tensor | None) -> None:
        """A mask that stays is looked through once, to see which parameters it leaves anything of."""
        stays = active is not None and self._options.every == "once"
        trained = self._context.layout.parameters_in_mask(active) if stays and active is not None else None
        self._query = replace(self._query, active=active, trained=trained)

    def _scores(self, weights: Tensor, index: int) -> Tensor:
        """What the mask is chosen by: public, every kind of it."""
        if self._options.select == "random":
            return torch.from_numpy(self._context.public_rng(index).random(len(weights))).to(self._context.device)
        if self._options.public_model is not None:
            weights = read_public_model(self._options.public_model, self._context.layout).to(weights.device)
        return weights.abs()

    def state(self) -> State:
        return {} if self.active is None else {"active": self.active}

    def load(self, state: State) -> None:
        """The mask of the weights at the start, which are not there any more."""
        if "active" in state and self.active is not None:
            self.active.copy_(state["active"])
            self._ask_for(self.active)

    def capture_key(self, stage: Stage) -> Hashable | None:
        return stage.name if self._options.every == "once" else None


def read_public_model(path: str, layout: Layout) -> Tensor:
    """The weights of a public model as one vector, in the order of `layout`; other tensors of the file are ignored."""
    found = read_tensors(Path(path), "public_model")
    for slot in layout.slots:
        tensor, where = found.get(slot.name), f"public_model={path!r}: {slot.name!r}"
        if tensor is None:
            raise InputError(f"public_model={path!r} has no {slot.name!r}; allowed: the parameter names of this model")
        require(tensor.shape == slot.shape, f"{where} has shape {tuple(tensor.shape)}, not {tuple(slot.shape)}")
        finite = tensor.is_floating_point() and bool(torch.isfinite(tensor).all())
        require(finite, f"{where} of {tensor.dtype} has values that are not finite numbers")
    return torch.cat([found[slot.name].reshape(-1).double() for slot in layout.slots])
