"""Layers whose per-sample gradient is one outer product g = a bᵀ: bounded and added up without ever being built.

With w = m / scale and centre α, in float64:

    ‖w ⊙ (g − α)‖² = (a²)ᵀ w² (b²) − 2 aᵀ (w² ⊙ α) b + ‖w ⊙ α‖²
    Σ_i c_i w ⊙ (g_i − α) = w ⊙ (Σ_i c_i a_i b_iᵀ − (Σ_i c_i) α)

two products for the whole batch. Sensitive in, sensitive out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from adadpigu.layout import Slot


class Outer(Protocol):
    """A weight whose per-sample gradients are never built."""

    @property
    def slot(self) -> Slot: ...

    def squares(self) -> Tensor:
        """The squared norm of each record's part, [b], or [parts, b] that add up to it."""
        ...

    def total(self, factors: Tensor) -> Tensor:
        """Σ_i factor_i z_i, flat."""
        ...


@dataclass(frozen=True)
class TiledOuterLayer:
    """The same in tiles: a kernel makes each entry of each record's gradient twice, to measure it and to add it up."""

    slot: Slot
    left: Tensor
    right: Tensor
    weight: Tensor | None
    center: Tensor | None
    copies: int

    def squares(self) -> Tensor:
        from adadpigu.kernels.outer import partial_norms

        return partial_norms(self.left, self.right, _flat(self.center), _flat(self.weight), copies=self.copies)

    def total(self, factors: Tensor) -> Tensor:
        from adadpigu.kernels.outer import weighted_sum

        center, weight = _flat(self.center), _flat(self.weight)
        return weighted_sum(self.left, self.right, factors, center, weight, copies=self.copies)


def _flat(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.reshape(-1)


@dataclass(frozen=True)
class OuterLayer:
    """One weight [m, n] with left factors a [b, m] and right factors b [b, n]."""

    slot: Slot
    left: Tensor
    right: Tensor
    weight: Tensor | None
    """w, [m, n]; None: 1"""
    center: Tensor | None
    """α, [m, n]; None: 0"""

    def squares(self) -> Tensor:
        """The squared norm of each record's part in this layer, [b]; where terms cancel, an upper bound of it."""
        left, right = self.left.double().square(), self.right.double().square()
        squared = None if self.weight is None else self.weight.double().square()
        own = left.sum(1) * right.sum(1) if squared is None else (left @ squared * right).sum(1)
        if self.center is None:
            return own
        center = self.center.double()
        pull = center if squared is None else center * squared
        crossed = (self.left.double() @ pull * self.right.double()).sum(1)
        rest = (pull * center).sum()
        rounding = (16 + self.center.numel()) * torch.finfo(torch.float64).eps * (own + rest)
        return (own - 2 * crossed + rest).clamp(min=0) + rounding

    def total(self, factors: Tensor) -> Tensor:
        """Σ_i factor_i z_i, flat; a record whose factor is zero is left out, whatever it holds."""
        dropped = (factors == 0)[:, None]
        left = (self.left.double() * factors[:, None]).masked_fill_(dropped, 0.0)
        total = left.mT @ self.right.double().masked_fill(dropped, 0.0)
        if self.center is not None:
            total -= factors.sum() * self.center
        if self.weight is not None:
            total *= self.weight
        return total.flatten()
