"""Per-sample gradients, standardised, then measured and added up. Before the noise: sensitive in, sensitive out.

    z_i = m ⊙ (g_i − α) / scale,   optionally the top-k of each record,   then ‖z_i‖² and Σ_i factor_i z_i in float64

What is measured is what is added: the very same numbers, or a record could pass its bound. Of entries that equal the
k-th largest the first stay. A row keeps an entry that is no number: the clip finds and drops the record.
"""

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadpigu.core import kernels
from adadpigu.core.exact import exact_total, whole_bound
from adadpigu.core.side_stream import join
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from adadpigu.core.bounding import GradientSum

Numbers = npt.NDArray[Any]
_ROWS_AT_ONCE = 8  # rows to select from at a time: more would leave the cache


class Standardiser:
    """z = m ⊙ (g − α) / scale, widened to float64, for some or all coordinates of a gradient.

    Frozen coordinates become zero; a record that is not finite there is dropped like any other such record.
    """

    def __init__(self, query: "GradientSum", size: int, *, device: torch.device, columns: Tensor | None = None) -> None:
        """Rows will hold these `columns` of a gradient of length `size` (None: all); with top-k, every active one."""
        if device.type == "cuda":
            join(device)  # a query's vectors may be in the making
        self._device = device
        self._room: Room | None = None
        self._kept: int | Tensor | None = query.top_k_count if query.top_k < 1 else None
        if query.top_k < 1 and self._kept is None:
            self._kept = entries_kept(query.top_k, size if query.active is None else int(query.active.sum()))
        weight = None if query.scale is None else query.scale.to(device).reciprocal()
        if query.active is not None:
            active = query.active.to(device)
            weight = active.float() if weight is None else where_or_zero(active, weight)
        center = None if query.center is None else query.center.to(device)
        if columns is not None:
            weight, center = [part if part is None else part[columns] for part in (weight, center)]
        self.weight, self.center = weight, center
        # kernels read them once for every few rows
        self._narrow = (_float(self.center), _float(self.weight)) if device.type == "cuda" else None

    @property
    def selects(self) -> bool:
        """Whether a CPU selects from the rows, a few at a time (`selected`), so that no copy of all is in float64."""
        return self._kept is not None and self._device.type == "cpu" and not kernels.INTERPRETED

    def __call__(self, rows: Tensor) -> "Standardised":
        """The rows [b, n], standardised. May overwrite them."""
        if (rows.is_cuda or kernels.INTERPRETED) and kernels.usable(rows) and rows.dtype == torch.float32:
            vectors = self._narrow or (self.center, self.weight)
            if self._kept is None:
                return _Fused(rows, None, *vectors)
            from adadpigu.core.kernels.top_k import measured_largest

            return _Fused(*measured_largest(rows, *vectors, self._kept))
        return Standardised(self.widened(rows))

    def selected(self, rows: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The rows, standardised with top-k in float64, and their squared norms: see `largest_standardised`."""
        assert self._kept is not None
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        self._room = self._room or Room(rows)
        return largest_standardised(rows, self.center, self.weight, min(int(self._kept), rows.shape[1]), self._room)

    def widened(self, rows: Tensor) -> Tensor:
        """[b, n] -> [b, n] in float64, a new tensor."""
        # Standardised as the rows are, then widened: what is measured is what is added, and it is half the bytes.
        z = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        if self._kept is not None and z.device.type == "cpu" and int(self._kept) < z.shape[1]:
            return _kept_together(z, largest_standardised(z, self.center, self.weight, int(self._kept)))
        if self.center is not None:
            z = z - self.center.to(z.dtype)
        if self.weight is not None:
            z = torch.mul(z, self.weight.to(z.dtype), out=None if z is rows else z)
        if self._kept is not None:
            z = largest(z, int(self._kept))
        return z.to(torch.float64, copy=z is rows)


class Standardised:
    """Rows z [b, n] that are measured and then added up: the very same numbers both times, in float64."""

    def __init__(self, z: Tensor) -> None:
        self._z = z

    def squares(self) -> Tensor:
        """‖z_i‖², [b]."""
        norms: Tensor = torch.linalg.vector_norm(self._z, dim=1)
        return norms.square()

    def total(self, factors: Tensor) -> Tensor:
        """Σ_i factor_i z_i, [n]; a row whose factor is zero is left out, whatever it holds. Asked for last."""
        return weighted_total(self._z, factors)

    def exact_total(self, factors: Tensor, clip_norm: float, grid: float) -> Tensor:
        """The same with every row, of all coordinates, in whole multiples of a grid (`core.exact`). Asked for last."""
        return exact_total(self._z, clip_norm, grid, factors)


class _Fused(Standardised):
    """Rows that are standardised, in the same way both times, by the kernels that measure them and add them up."""

    def __init__(
        self, rows: Tensor, squares: Tensor | None, center: Tensor | None = None, weight: Tensor | None = None
    ) -> None:
        """`squares` where they are known already."""
        self._rows, self._squares, self._center, self._weight = rows, squares, center, weight

    def squares(self) -> Tensor:
        if self._squares is not None:
            return self._squares
        from adadpigu.core.kernels.rows import squared_norms

        return squared_norms(self._rows, self._center, self._weight)

    def total(self, factors: Tensor) -> Tensor:
        from adadpigu.core.kernels.rows import weighted_sum

        return weighted_sum(self._rows, factors, self._center, self._weight)

    def exact_total(self, factors: Tensor, clip_norm: float, grid: float) -> Tensor:
        from adadpigu.core.kernels.rows import whole_sum

        bound = whole_bound(clip_norm, grid)
        return whole_sum(self._rows, factors / grid, self._center, self._weight, bound=bound) * grid


def entries_kept(share: float, count: int) -> int:
    """How many of `count` entries a share of them is: ⌊ρ·n⌋, at least one.

    >>> entries_kept(0.29, 100)
    29
    """
    kept = math.floor(share * count + 1e-9)
    if kept == 0:
        raise InputError(f"top_k={share} keeps none of {count} coordinates; allowed: at least 1/{count}")
    return kept


def weighted_total(z: Tensor, factors: Tensor) -> Tensor:
    """Σ_i factor_i z_i in float64; a row whose factor is zero is left out, whatever it holds. May overwrite z."""
    dropped = factors == 0
    if z.device.type != "cpu" or bool(dropped.any()):
        z.masked_fill_(dropped[:, None], 0.0)
    return z.mT @ factors


def where_or_zero(mask: Tensor, values: Tensor) -> Tensor:
    """The values where the mask has them, zero elsewhere, whatever stands there.

    >>> where_or_zero(torch.tensor([True, False]), torch.tensor([1.0, math.nan]))
    tensor([1., 0.])
    """
    return torch.where(mask, values, _zero(values.dtype, values.device))


@functools.cache
def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once: torch would put a plain 0.0 on the device at every call."""
    return torch.zeros((), dtype=dtype, device=device)


def _float(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.float()


def largest(z: Tensor, count: int) -> Tensor:
    """Zeroes all but the `count` largest magnitudes of each row; of equal ones the first stay.

    >>> largest(torch.tensor([[3.0, -4.0, 1.0, 2.0], [5.0, 5.0, -5.0, 5.0]]), 2)
    tensor([[ 3., -4.,  0.,  0.],
            [ 5.,  5.,  0.,  0.]])
    """
    if count >= z.shape[1] or not len(z):
        return z.clone()
    if z.device.type == "cpu" and z.dtype in (torch.float32, torch.float64):
        return _kept_together(z, largest_standardised(z, None, None, count)).to(z.dtype)
    sizes = z.abs()
    least = torch.kthvalue(sizes, z.shape[1] - count + 1, dim=1, keepdim=True).values
    below, tied = sizes < least, sizes == least
    spare = z.shape[1] - below.sum(dim=1, keepdim=True) - count
    last_first = tied.flip(1).cumsum(dim=1).flip(1)  # how many equal ones there are from here on
    return z.masked_fill(below | (tied & (last_first <= spare)), 0.0)


def largest_standardised(
    rows: Tensor, center: Tensor | None, weight: Tensor | None, count: int, room: "Room | None" = None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """`largest` of z = (g − α) · w in float64, and ‖z‖², of rows g in float32 or float64 on a CPU: some rows at a time.

    They stay in the cache for all passes over them; what is yielded is gone when the next ones are asked for.
    """
    alpha, w = (None if part is None else part.to(rows.dtype).numpy() for part in (center, weight))
    room, place, numbers = room or Room(rows), rows.shape[1] - count, rows.numpy()
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        some = numbers[part]
        z, sizes, stays, wide = (buffer[: len(some)] for buffer in room.buffers)
        with np.errstate(all="ignore"):
            np.copyto(z, some) if alpha is None else np.subtract(some, alpha, out=z)
            if w is not None:
                np.multiply(z, w, out=z)
            np.abs(z, out=sizes)
            sizes.partition(place, axis=1)
            least = sizes[:, place, None].copy()
            np.abs(z, out=sizes)
            np.greater_equal(sizes, least, out=stays)
            _drop_ties(z, sizes, stays, least, count)
            # As numbers of the same kind first: numpy would convert a mask piece by piece. What is no number stays so.
            np.copyto(sizes, stays)
            np.multiply(z, sizes, out=z)
            np.copyto(wide, z)
        made = torch.from_numpy(wide)
        yield part, made, Standardised(made).squares()


def _drop_ties(z: Numbers, sizes: Numbers, stays: Numbers, least: Numbers, count: int) -> None:
    """Zeroes the last of those that equal the k-th largest, where more than `count` are no smaller."""
    for row, kept in enumerate(stays):
        spare = np.count_nonzero(kept) - count
        if spare > 0:
            z[row, np.flatnonzero(sizes[row] == least[row])[-spare:]] = 0


def _kept_together(rows: Tensor, parts: Iterator[tuple[slice, Tensor, Tensor]]) -> Tensor:
    made = torch.empty(rows.shape, dtype=torch.float64)
    for part, z, _ in parts:
        made[part] = z
    return made


class Room:
    """What the selection from a few rows works in. Made once: new memory takes longer than the work done in it."""

    def __init__(self, rows: Tensor) -> None:
        shape = (_ROWS_AT_ONCE, rows.shape[1])
        z, sizes = np.empty((2, *shape), rows.numpy().dtype)
        self.buffers: tuple[Numbers, ...] = (z, sizes, np.empty(shape, bool), np.empty(shape))
