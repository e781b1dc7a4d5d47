"""Per-sample gradients, standardised, then measured and added up. Before the noise: sensitive in, sensitive out.

    z_i = m ⊙ (g_i − α) / scale,   optionally the top-k of each record,   then ‖z_i‖² and Σ_i factor_i z_i in float64

What is measured is what is added: the very same numbers, or a record could pass its bound. Of entries that equal the
k-th largest the first stay. A row keeps an entry that is no number: the clip finds and drops the record.
"""

import functools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadpigu.core import kernels
from adadpigu.core.side_stream import join
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from adadpigu.core.bounding import GradientSum

Numbers = npt.NDArray[Any]
_ROWS_OF_A_THREAD = 8  # rows a thread selects from at a time, so that threads seldom wait for the interpreter's lock
_WIDENED = 8  # rows of a `_Narrow` that are widened at once
_SAMPLED = 29  # of a row every so many-th entry is looked at, to know about where its k-th largest lies


class Standardiser:
    """z = m ⊙ (g − α) / scale, widened to float64, for some or all coordinates of a gradient.

    Frozen coordinates become zero; a record that is not finite there is dropped like any other such record.
    """

    def __init__(self, query: "GradientSum", size: int, *, device: torch.device, columns: Tensor | None = None) -> None:
        """Rows will hold these `columns` of a gradient of length `size` (None: all); with top-k, every active one."""
        if device.type == "cuda":
            join(device)  # a query's vectors may be in the making
        self._device = device
        self._kept: int | Tensor | None = None
        if query.top_k < 1:
            self._kept = _kept(query, size) if query.top_k_count is None else query.top_k_count
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
    def in_place(self) -> bool:
        """Whether rows of float32 are standardised where they lie, so that no copy of all is made in float64."""
        return self._kept is not None and self._device.type == "cpu"

    def __call__(self, rows: Tensor) -> "Standardised":
        """The rows [b, n], standardised. May overwrite them."""
        if (rows.is_cuda or kernels.INTERPRETED) and kernels.usable(rows) and rows.dtype == torch.float32:
            vectors = self._narrow or (self.center, self.weight)
            if self._kept is None:
                return _Fused(rows, None, *vectors)
            from adadpigu.core.kernels.top_k import measured_largest

            return _Fused(*measured_largest(rows, *vectors, self._kept))
        if self._kept is not None and self.in_place and rows.dtype == torch.float32:
            kept = min(int(self._kept), rows.shape[1])
            return _Narrow(largest_standardised(rows, self.center, self.weight, kept, rows))
        return Standardised(self.widened(rows))

    def widened(self, rows: Tensor) -> Tensor:
        """[b, n] -> [b, n] in float64, a new tensor."""
        # Standardised as the rows are, then widened: what is measured is what is added, and it is half the bytes.
        z = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        if self._kept is not None and z.device.type == "cpu" and int(self._kept) < z.shape[1]:
            made = torch.empty(z.shape, dtype=torch.float64)
            return largest_standardised(z, self.center, self.weight, int(self._kept), made)
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


class _Narrow(Standardised):
    """Rows that were standardised in float32, and are widened a few at a time in a buffer that stays in the cache."""

    def __init__(self, z: Tensor) -> None:
        self._z, self._wide = z, z.new_empty((_WIDENED, z.shape[1]), dtype=torch.float64)

    def _parts(self) -> Iterator[Tensor]:
        """The rows in float64; each part is gone when the next one is asked for."""
        for part in torch.split(self._z, _WIDENED):
            yield self._wide[: len(part)].copy_(part)

    def squares(self) -> Tensor:
        return torch.cat([Standardised(part).squares() for part in self._parts()])

    def total(self, factors: Tensor) -> Tensor:
        parts = zip(self._parts(), torch.split(factors, _WIDENED), strict=True)
        return functools.reduce(Tensor.add_, (weighted_total(part, some) for part, some in parts))


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


def _kept(query: "GradientSum", size: int) -> int:
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
        return largest_standardised(z, None, None, count, torch.empty_like(z))
    sizes = z.abs()
    least = torch.kthvalue(sizes, z.shape[1] - count + 1, dim=1, keepdim=True).values
    below, tied = sizes < least, sizes == least
    spare = z.shape[1] - below.sum(dim=1, keepdim=True) - count
    last_first = tied.flip(1).cumsum(dim=1).flip(1)  # how many equal ones there are from here on
    return z.masked_fill(below | (tied & (last_first <= spare)), 0.0)


def largest_standardised(
    rows: Tensor, center: Tensor | None, weight: Tensor | None, count: int, made: Tensor
) -> Tensor:
    """Writes `largest` of z = (g − α) · w to `made`, which may be the rows g, of float32 or float64 on a CPU."""
    threads = max(1, min(torch.get_num_threads(), len(rows)))
    alpha, w = (None if part is None else part.to(rows.dtype).numpy() for part in (center, weight))
    if threads == 1:
        _keep_largest(rows.numpy(), made.numpy(), alpha, w, count, 1)
        return made
    parts = (np.array_split(t.numpy(), threads) for t in (rows, made))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda some, kept: _keep_largest(some, kept, alpha, w, count, _ROWS_OF_A_THREAD), *parts))
    return made


def _keep_largest(
    rows: Numbers, made: Numbers, center: Numbers | None, weight: Numbers | None, count: int, at_once: int
) -> None:
    """A few rows at a time, which stay in the cache for all passes over them."""
    length = rows.shape[1]
    buffers, reached = np.empty((2, at_once, length), rows.dtype), np.empty((at_once, length), bool)
    with np.errstate(all="ignore"):
        for start in range(0, len(rows), at_once):
            some, kept = rows[start : start + at_once], made[start : start + at_once]
            (z, sizes), stays = buffers[:, : len(some)], reached[: len(some)]
            np.copyto(z, some) if center is None else np.subtract(some, center, out=z)
            if weight is not None:
                np.multiply(z, weight, out=z)
            np.abs(z, out=sizes)
            least = np.array([[_at_place(row, length - count)] for row in sizes])
            np.greater_equal(sizes, least, out=stays)
            for row, mask in enumerate(stays):
                spare = np.count_nonzero(mask) - count
                if spare > 0:
                    z[row, np.flatnonzero(sizes[row] == least[row])[-spare:]] = 0
            # As numbers of the same kind first: numpy would convert a mask piece by piece. What is no number stays so.
            np.copyto(sizes, stays)
            np.multiply(z, sizes, out=kept)


def _at_place(values: Numbers, place: int) -> Any:
    """The entry that stands at `place` when the values rise. A sample tells about where it lies, so few are ordered."""
    sample = np.sort(values[::_SAMPLED])
    middle, margin = place / _SAMPLED, 1.5 * math.sqrt(len(sample))
    low = sample[max(0, int(middle - margin))]
    high = sample[min(len(sample) - 1, int(middle + margin))]
    near = np.compress((values >= low) & (values <= high), values)
    left = place - int(np.count_nonzero(values < low))
    if not 0 <= left < len(near):  # the sample was unlucky, or there are numbers missing
        near, left = values.copy(), place
    near.partition(left)
    return near[left]
