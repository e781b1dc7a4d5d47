"""Per-sample gradients, standardised, then measured and added up. Before the noise: sensitive in, sensitive out.

    z_i = m ⊙ (g_i − α) / scale,   optionally the top-k of each record,   then ‖z_i‖² and Σ_i factor_i z_i in float64

What is measured is what is added: the very same numbers, or a record could pass its bound.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from adadpigu import kernels
from adadpigu.beside import join
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.top_k import largest, largest_standardised

if TYPE_CHECKING:
    from adadpigu.bounding import GradientSum


class Standardiser:
    """z = m ⊙ (g − α) / scale, widened to float64, for some or all coordinates of a gradient.

    Frozen coordinates become zero in place, so that rows keep their length; a record whose gradient is not finite
    there has no finite norm and is dropped like any other such record.
    """

    def __init__(self, query: GradientSum, size: int, *, device: torch.device, columns: Tensor | None = None) -> None:
        """`columns` are the positions in a gradient of length `size` that rows will hold; None: all of them."""
        join(device)  # a query's vectors may be in the making
        self._kept: int | Tensor | None = None
        if query.top_k < 1:
            self._kept = _kept(query, size) if query.kept is None else query.kept
        if self._kept is not None and columns is not None:
            raise PrivacyLineError("the largest entries of a record are found in whole gradients, not in parts of them")
        weight = None if query.scale is None else query.scale.to(device).reciprocal()
        if query.active is not None:
            active = query.active.to(device)
            weight = active.float() if weight is None else only(active, weight)
        center = None if query.center is None else query.center.to(device)
        self.weight, self.center = (
            part if part is None or columns is None else part[columns] for part in (weight, center)
        )
        # kernels read them once for every few rows
        self._narrow = (_float(self.center), _float(self.weight)) if device.type == "cuda" else None

    def __call__(self, rows: Tensor) -> Standardised:
        """The rows [b, n], standardised."""
        if kernels.usable(rows) and rows.dtype == torch.float32:
            vectors = self._narrow or (self.center, self.weight)
            if self._kept is None:
                return _Fused(rows, None, *vectors)
            from adadpigu.kernels.top_k import measured_largest

            return _Fused(*measured_largest(rows, *vectors, self._kept))
        return _Widened(self.widened(rows))

    def widened(self, rows: Tensor) -> Tensor:
        """[b, n] -> [b, n] in float64, a new tensor."""
        # Standardised as the rows are, then widened: what is measured is what is added, and it is half the bytes.
        z = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        if self._kept is not None and z.device.type == "cpu" and int(self._kept) < z.shape[1]:
            return largest_standardised(z, self.center, self.weight, int(self._kept))
        if self.center is not None:
            z = z - self.center.to(z.dtype)
        if self.weight is not None:
            z = torch.mul(z, self.weight.to(z.dtype), out=None if z is rows else z)
        if self._kept is not None:
            z = largest(z, int(self._kept))
        return z.to(torch.float64, copy=z is rows)


class Standardised(Protocol):
    """Rows z that are measured and then added up: the very same numbers both times, in float64."""

    def squares(self) -> Tensor:
        """‖z_i‖², [b]."""
        ...

    def total(self, factors: Tensor) -> Tensor:
        """Σ_i factor_i z_i, [n]; a row whose factor is zero is left out, whatever it holds. Asked for last."""
        ...


class _Widened:
    """Rows that were standardised and widened to float64 beforehand."""

    def __init__(self, z: Tensor) -> None:
        self._z = z

    def squares(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self._z, dim=1)
        return norms.square()

    def total(self, factors: Tensor) -> Tensor:
        return weighted_total(self._z, factors)


class _Fused:
    """Rows that are standardised, in the same way both times, by the kernels that measure them and add them up."""

    def __init__(
        self, rows: Tensor, squares: Tensor | None, center: Tensor | None = None, weight: Tensor | None = None
    ) -> None:
        """`squares` where they are known already."""
        self._rows, self._squares, self._center, self._weight = rows, squares, center, weight

    def squares(self) -> Tensor:
        if self._squares is not None:
            return self._squares
        from adadpigu.kernels.rows import squared_norms

        found: Tensor = squared_norms(self._rows, self._center, self._weight)
        return found

    def total(self, factors: Tensor) -> Tensor:
        from adadpigu.kernels.rows import weighted_sum

        added: Tensor = weighted_sum(self._rows, factors, self._center, self._weight)
        return added


def _kept(query: GradientSum, size: int) -> int:
    """How many entries of each record stay: ⌊ρ·|m|⌋."""
    count = size if query.active is None else int(query.active.sum())
    kept = math.floor(query.top_k * count)
    if kept == 0:
        raise InputError(f"top_k={query.top_k} keeps none of {count} active coordinates; allowed: at least 1/{count}")
    return kept


def weighted_total(z: Tensor, factors: Tensor) -> Tensor:
    """Σ_i factor_i z_i in float64; a row whose factor is zero is left out, whatever it holds. May overwrite z."""
    dropped = factors == 0
    if z.device.type != "cpu" or bool(dropped.any()):
        z.masked_fill_(dropped[:, None], 0.0)
    return z.mT @ factors


def only(mask: Tensor, values: Tensor) -> Tensor:
    """The values where the mask has them, zero elsewhere, whatever stands there.

    >>> only(torch.tensor([True, False]), torch.tensor([1.0, math.nan]))
    tensor([1., 0.])
    """
    return torch.where(mask, values, _zero(values.dtype, values.device))


@functools.cache
def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once: torch would put a plain 0.0 on the device at every call."""
    return torch.zeros((), dtype=dtype, device=device)


def _float(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.float()
