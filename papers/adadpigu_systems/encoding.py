"""Gradient encoding: a public map takes every gradient to fewer numbers before the clip; its transpose brings back.

    ĝ = Eᵀ(Σ clip_C(E g_i) + N(0, σ²C² I_k)) / B        then, if the run asks for it, denoised before Eᵀ (`--denoise`)

E is a random projection from the run's public seed, or the leading directions of public gradients. Formal guarantee:
the clip stands after E, so a record moves the sum by at most C, and each step is one event at σ. Gaussian noise only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from adadpigu.core.bounding import MappedSum
from adadpigu.core.mechanism import Release
from adadpigu.core.state import State
from adadpigu.errors import require
from adadpigu.methods.base import Batches, Method, MethodState, Positive, RunContext, Stage, register
from adadpigu_systems.projection import PCDPSGD

Count = Annotated[int, "at least 1"]


@dataclass(frozen=True)
class SignedSums:
    """E [k, d]: each coordinate, under a random sign, is added to one of k sums, ⌈d/k⌉ or fewer to each.

    E[EᵀE] = I over the signs: (EᵀE)_jl is 1 for j = l, and a product of two independent signs, or 0, otherwise. The
    rows of E are orthogonal, of squared norm up to ⌈d/k⌉: for k = d, EᵀE = I.
    """

    order: Tensor
    """[k·⌈d/k⌉]: which coordinate stands where; d and above stand for none"""
    signs: Tensor
    """[d]"""
    count: int
    """k"""

    @classmethod
    def draw(cls, size: int, together: int, rng: np.random.Generator) -> SignedSums:
        count = -(-size // together)
        order = torch.from_numpy(rng.permutation(count * together))
        return cls(order, torch.from_numpy(2.0 * rng.integers(0, 2, size) - 1), count)

    def to(self, device: torch.device) -> SignedSums:
        return SignedSums(self.order.to(device), self.signs.to(device), self.count)

    def encoded(self, rows: Tensor) -> Tensor:
        """E g of each row, [b, d] -> [b, k]."""
        missing = len(self.order) - rows.shape[1]
        signed = torch.nn.functional.pad(rows * self.signs.to(rows), (0, missing))
        return signed[:, self.order].reshape(len(rows), len(self.order) // self.count, self.count).sum(dim=1)

    def decoded(self, values: Tensor) -> Tensor:
        """Eᵀ w, [k] -> [d]."""
        spread = values.new_empty(len(self.order))
        spread[self.order] = values.repeat(len(self.order) // self.count)
        return spread[: len(self.signs)] * self.signs.to(values)


@register
@dataclass(frozen=True, kw_only=True)
class GradientEncoding(Method):
    """Encoding by a random projection (Nasr, Shokri and Houmansadr 2020), with Gaussian noise.

    Eᵀ spreads the noise again: k numbers of variance σ²C² come back as d of the same variance, ⌈d/k⌉ of them alike. So
    encoding alone takes no noise away and adds the projection's own error, of squared norm about ‖g‖²·d/k a record;
    what it may gain is a denoiser's gain on k numbers. Expect little.
    """

    name: ClassVar[str] = "gradient-encoding"
    source: ClassVar[str] = "Nasr et al. 2020"
    adds: ClassVar[str] = "gradients are projected at random before the clip, and brought back after the noise"
    costs: ClassVar[str] = "one event a step; the projection is free"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C, of the encoded gradient"""
    together: Count = 4
    """⌈d/k⌉, coordinates that share a number"""
    renew_every: Count = 1
    """steps from one projection to the next"""

    def begin(self, context: RunContext) -> MethodState:
        size = context.layout.size
        require(self.together <= size, f"together={self.together} of {size} coordinates; allowed: 1 to {size}")
        return _State(self, context)


class _State(MethodState):
    def __init__(self, options: GradientEncoding, context: RunContext) -> None:
        self._options, self._context = options, context
        self._number = -1

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        number = index // self._options.renew_every
        if number != self._number:
            self._number, rng = number, self._context.public_rng(number)
            code = SignedSums.draw(self._context.layout.size, self._options.together, rng)
            self._code = code.to(self._context.device)

    def state(self) -> State:
        return {}  # the projection follows from seed and step

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        code, batch_size = self._code, self._context.batch_size
        learned = {"order": code.order, "signs": code.signs}
        query = MappedSum(name="code", of=code.encoded, clip_norm=self._options.clip_norm, learned=learned)
        released = batches.denoise(batches.release(query)["code"], [code.count])
        return released.map(lambda values: code.decoded(values) / batch_size)


@register
@dataclass(frozen=True, kw_only=True)
class PublicEncoding(PCDPSGD):
    """Encoding by the leading directions of public gradients: what pcdp-sgd does, here under its earlier name."""

    name: ClassVar[str] = "gradient-encoding-public"
    source: ClassVar[str] = "Nasr et al. 2020"
    adds: ClassVar[str] = "gradients are encoded by directions of public gradients before the clip"
