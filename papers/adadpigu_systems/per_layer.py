"""Per-layer clipping: a bound for each layer, and one release of them all. Sees releases.

z̄_i = (g_i,l · min(1, C_l/‖g_i,l‖))_l    S = Σ z̄_i + N(0, σ²C² I)    C² = Σ_l C_l²    ĝ = S/B
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.core.bounding import MappedSum
from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release
from adadpigu.methods.base import Batches, Method, MethodState, Positive, RunContext, Stage, register


@register
@dataclass(frozen=True, kw_only=True)
class PerLayer(Method):
    """Per-layer clipping (McMahan et al. 2018), all layers in one release.

    Released is S, charged as one event (q, σ) a step. Proof: layer l of a record's term has norm at most C_l, and
    layers have no coordinate in common, so the whole has norm at most √(Σ C_l²) = C. That is what the noise is scaled
    with; the largest C_l would cover one layer alone. The sum clips the whole to C once more, so the guarantee does not
    hang on this file.

    A layer whose gradients are small keeps all of them whatever the others do; the price is a smaller bound for each
    than the C that a plain clip would leave to whichever needs it.
    """

    name: ClassVar[str] = "per-layer"
    source: ClassVar[str] = "McMahan et al. 2018"
    adds: ClassVar[str] = "a clipping bound for each layer"
    costs: ClassVar[str] = "one event a step, for all layers together"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C = √(Σ C_l²), of all layers together"""
    shares: Literal["equal", "size"] = "equal"
    """equal: C_l = C/√L for each of L layers; size: C_l = C·√(d_l/d)"""

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context)


def bounds(layout: Layout, clip_norm: float, shares: str) -> Tensor:
    """C_l of each layer, [L] in float64.

    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(4, 4, bias=False))
    >>> bounds(Layout.of(net), 1.0, "equal").square().tolist(), bounds(Layout.of(net), 5.0, "size").tolist()
    ([0.5000000000000001, 0.5000000000000001], [3.0, 4.0])
    """
    sizes = [sum(slot.stop - slot.start for slot in slots) for slots in layout.layers().values()]
    parts = [1 / len(sizes) if shares == "equal" else size / layout.size for size in sizes]
    return torch.tensor([clip_norm * math.sqrt(part) for part in parts], dtype=torch.float64)


def clip_layers(rows: Tensor, *, layers: Tensor, most: Tensor) -> Tensor:
    """Each row's layers clipped by themselves, [b, d]; `layers` has each coordinate's layer, `most` the C_l."""
    index, limits = layers.to(rows.device), most.to(rows)
    squares = rows.new_zeros(len(rows), len(most)).index_add_(1, index, rows.square())
    factors = (limits / squares.sqrt()).clamp(max=1.0)
    return rows * factors[:, index]


class _State(MethodState):
    def __init__(self, options: PerLayer, context: RunContext) -> None:
        layers, most = context.layout.layer_index(), bounds(context.layout, options.clip_norm, options.shares)
        of = partial(clip_layers, layers=layers.to(context.device), most=most.to(context.device))
        self._query = MappedSum(name="gradient", of=of, clip_norm=options.clip_norm, learned={"bounds": most})
        self._batch_size = context.batch_size

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return batches.denoise(batches.release(self._query)["gradient"]).map(lambda total: total / self._batch_size)
