"""Linear layers at many positions: g = Σ_p a_p b_pᵀ is measured without being kept, and added up without being built.

    ‖g‖² = Σ_pq (a_p·a_q)(b_p·b_q)                             where nothing is standardised and positions are few
    z = w ⊙ (g − α), a few records at a time, then dropped       else
    Σ_i c_i z_i = w ⊙ (Σ_i c_i Σ_p a_ip b_ipᵀ − (Σ_i c_i) α)    one product for the whole batch, in float64

The sum is computed in another way than the norm, so the norm is raised by what rounding can have hidden from it. Then
what is added is within the bound, whatever a record holds. Sensitive in, sensitive out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adadpigu import kernels
from adadpigu.gradients.probing import exact_products
from adadpigu.layout import Slot

_SLICE_BYTES = {"cpu": 8 * 2**20}
"""what the gradients of a slice of records may take: on a CPU they stay in the cache"""
_SLICE_BYTES_ELSEWHERE = 2**30
_PART_BYTES_ELSEWHERE = 2**27
"""the same for one weight of a large net"""
_WIDE = 2**16
"""entries of a weight from which its gradients are not kept"""


def slice_size(records: int, bytes_a_record: int, device: torch.device, most: int = _SLICE_BYTES_ELSEWHERE) -> int:
    """How many records' gradients are built at once: a number that divides them all, so that slices are alike."""
    fit = max(1, _SLICE_BYTES.get(device.type, most) // max(bytes_a_record, 1))
    return next(size for size in range(min(fit, max(records, 1)), 0, -1) if records % size == 0)


@dataclass(frozen=True)
class SequenceLayer:
    """One weight [m, n] with left factors a [b, p, m] and right factors b [b, p, n]."""

    slot: Slot
    left: Tensor
    right: Tensor
    weight: Tensor | None
    """w, [m, n]; None: 1"""
    center: Tensor | None
    """α, [m, n]; None: 0"""

    @staticmethod
    def suits(slot: Slot, dtype: torch.dtype) -> bool:
        """Whether a weight is so large that its gradients had better not be kept."""
        return slot.stop - slot.start >= _WIDE and dtype == torch.float32

    def squares(self) -> Tensor:
        """The squared norm of each record's part in this layer, [b], raised by what rounding can have hidden."""
        positions, (rows, columns) = self.left.shape[1], self.slot.shape
        if self.weight is None and self.center is None and positions * (rows + columns) < rows * columns:
            return self._by_products()
        return self._by_parts()

    def total(self, factors: Tensor) -> Tensor:
        """Σ_i factor_i z_i, flat; a record whose factor is zero is left out, whatever it holds."""
        total = torch.zeros(self.slot.shape, dtype=torch.float64, device=factors.device)
        for part in self._slices(8 * (self.left[0].numel() + self.right[0].numel())):
            dropped = (factors[part] == 0)[:, None, None]
            left = (self.left[part].double() * factors[part][:, None, None]).masked_fill_(dropped, 0.0)
            right = self.right[part].double().masked_fill_(dropped, 0.0)
            total.addmm_(left.flatten(0, 1).mT, right.flatten(0, 1))
        if self.center is not None:
            total.addcmul_(self.center.double(), factors.sum(), value=-1)
        if self.weight is not None:
            total *= self.weight
        return total.flatten()

    def _by_products(self) -> Tensor:
        found = []
        for part in self._slices(8 * (self.left[0].numel() + self.right[0].numel())):
            left, right = self.left[part].double(), self.right[part].double()
            own = ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
            terms = left.shape[1] ** 2 + left.shape[2] + right.shape[2]
            hidden = (16 + terms) * torch.finfo(torch.float64).eps * _power(left) * _power(right)
            found.append(own.clamp(min=0) + hidden)
        return torch.cat(found)

    def _by_parts(self) -> Tensor:
        center, weight = (None if part is None else part.float().flatten() for part in (self.center, self.weight))
        found = []
        for part in self._slices(4 * (self.slot.stop - self.slot.start)):
            with exact_products():  # what rounding can hide is reckoned for float32, not for TF32
                rows = torch.bmm(self.left[part].mT, self.right[part]).flatten(1)
            found.append(_squares(rows, center, weight))
        norms = torch.cat(found).sqrt()
        rounding = torch.finfo(torch.float32).eps
        largest = 1.0 if self.weight is None else self.weight.abs().max()
        pull = 0.0 if self.center is None else torch.linalg.vector_norm(self.center, dtype=torch.float64)
        hidden = (self.left.shape[1] + 8) * _power(self.left).sqrt() * _power(self.right).sqrt() + 8 * pull
        # Products below the normal range of float32 may have vanished, each by as much as its smallest number.
        vanished = self.left.shape[1] * (self.slot.stop - self.slot.start) ** 0.5 * torch.finfo(torch.float32).tiny
        raised: Tensor = norms * (1 + 8 * rounding) + largest * (rounding * hidden + vanished)
        return raised.square()

    def _slices(self, bytes_a_record: int) -> list[slice]:
        size = slice_size(len(self.left), bytes_a_record, self.left.device, _PART_BYTES_ELSEWHERE)
        return [slice(start, start + size) for start in range(0, len(self.left), size)]


def _power(x: Tensor) -> Tensor:
    """‖x_i‖² of each record, in float64."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
    return norms.square()


def _squares(rows: Tensor, center: Tensor | None, weight: Tensor | None) -> Tensor:
    if kernels.usable(rows):
        from adadpigu.kernels.rows import squared_norms

        found: Tensor = squared_norms(rows, center, weight)
        return found
    if center is not None:
        rows -= center
    if weight is not None:
        rows *= weight
    return _power(rows)
