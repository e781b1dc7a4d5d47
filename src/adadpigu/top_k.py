"""The k largest magnitudes of each record's gradient, exactly k of them. Before the noise: sensitive in, sensitive out.

On a CPU a threshold is searched for each row by counting what reaches it, a pass that is far cheaper than a selection:
it starts from a quantile of every 31st entry and goes on by interpolation until few are left, which are sorted. Of
those that equal the k-th largest the first ones stay. A row with an entry that is no number keeps it, so that the clip
finds and drops the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[Any]
_STRIDE = 31
"""a prime: layers are often as wide as a power of two, and a sample should not see one of their columns only"""
_SHORT = 1024
"""entries below which a selection costs less than the search"""
_ROUNDS = 12
"""counts after which the search gives up"""
_FEW = 128
"""entries between two thresholds that are sorted rather than searched"""


def largest(z: Tensor, count: int) -> Tensor:
    """Zeroes all but the `count` largest magnitudes of each row; of equal ones the first stay.

    >>> largest(torch.tensor([[3.0, -4.0, 1.0, 2.0], [5.0, 5.0, -5.0, 5.0]]), 2)
    tensor([[ 3., -4.,  0.,  0.],
            [ 5.,  5.,  0.,  0.]])
    """
    if count >= z.shape[1] or not len(z):
        return z.clone()
    if z.device.type == "cpu" and z.dtype in (torch.float32, torch.float64):
        return _searched(z, count)
    sizes = z.abs()
    least = torch.kthvalue(sizes, z.shape[1] - count + 1, dim=1, keepdim=True).values
    below, tied = sizes < least, sizes == least
    spare = z.shape[1] - below.sum(dim=1, keepdim=True) - count
    last_first = tied.flip(1).cumsum(dim=1).flip(1)  # how many equal ones there are from here on
    return z.masked_fill(below | (tied & (last_first <= spare)), 0.0)


def _searched(z: Tensor, count: int) -> Tensor:
    return largest_standardised(z, None, None, count, dtype=z.dtype)


def largest_standardised(
    rows: Tensor, center: Tensor | None, weight: Tensor | None, count: int, *, dtype: torch.dtype = torch.float64
) -> Tensor:
    """`largest` of z = (g − α) · w for rows g of float32 or float64 on a CPU, as `dtype`; z is of the rows' own."""
    made, threads = torch.empty(rows.shape, dtype=dtype), max(1, min(torch.get_num_threads(), len(rows)))
    alpha, w = (None if part is None else part.to(rows.dtype).numpy() for part in (center, weight))
    if threads == 1:
        _keep_largest(rows.numpy(), made.numpy(), alpha, w, count)
        return made
    parts = (np.array_split(t.numpy(), threads) for t in (rows, made))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda some, kept: _keep_largest(some, kept, alpha, w, count), *parts))
    return made


def _keep_largest(rows: Numbers, made: Numbers, center: Numbers | None, weight: Numbers | None, count: int) -> None:
    """Row by row, so that a row stays in the cache for all the passes over it."""
    length = rows.shape[1]
    z, sizes, masks = (
        np.empty(length, rows.dtype),
        np.empty(length, rows.dtype),
        [np.empty(length, bool) for _ in range(3)],
    )
    with np.errstate(all="ignore"):
        for row, kept in zip(rows, made, strict=True):
            np.copyto(z, row) if center is None else np.subtract(row, center, out=z)
            if weight is not None:
                np.multiply(z, weight, out=z)
            np.abs(z, out=sizes)
            stays = _search(sizes, np.sort(sizes[::_STRIDE]), count, masks) if length >= _SHORT else None
            if stays is None:
                kept[:] = np.where(_selected(sizes, count), z, 0)
            else:
                kept[:] = np.multiply(z, stays, out=z)


def _search(sizes: Numbers, sample: Numbers, count: int, masks: Sequence[Numbers]) -> Numbers | None:
    """Who is among the `count` largest, in one of three masks to write to; None where the search has found no end.

    `more` at or above `low` are too many, `-less` at or above `high` too few: estimates, until a count replaces them.
    Each guess aims a little past the middle of what is left, on the side of the further end, so that both come in.
    """
    total, length = len(sizes), len(sample)
    share = 1 - count / total
    place, margin = share * length - 0.5, 3 * math.sqrt(length * share * (1 - share)) + 1
    first, last = max(0, int(place - margin)), min(length - 1, math.ceil(place + margin))
    low, high = float(sample[first]), float(sample[last])
    more, less = total * (1 - (first + 0.5) / length) - count, total * (1 - (last + 0.5) / length) - count
    guess, counted = sample[min(length - 1, max(0, round(place)))], [False, False]
    if guess == 0 and np.count_nonzero(sizes) <= count:  # then all that there is stays
        masks[0].fill(True)
        return masks[0]
    reached, from_low, from_high = masks
    for _ in range(_ROUNDS):
        np.greater_equal(sizes, guess, out=reached)
        over = int(np.count_nonzero(reached)) - count
        if over == 0:
            return reached
        counted[over < 0] = True
        if over > 0:
            low, more, reached, from_low = float(guess), over, from_low, reached
        else:
            high, less, reached, from_high = float(guess), over, from_high, reached
        width = more - less
        if width <= _FEW and all(counted):
            between = np.flatnonzero(from_low ^ from_high)
            from_high[between[np.argsort(-sizes[between], kind="stable")[: -int(less)]]] = True
            return from_high
        past = min(width / 4, 2 * math.sqrt(max(width, 0.0)))
        part = (more - past if more > -less else more + past) / width if width > 0 else 0.5
        guess = sizes.dtype.type(low + (high - low) * min(max(part, 0.0), 1.0))
    return None


def _selected(sizes: Numbers, count: int) -> Numbers:
    """Who is among the `count` largest, of equal ones the first; what is no number always is."""
    place = len(sizes) - count
    least = np.partition(sizes, place)[place]
    stays: Numbers = ~(sizes < least)
    spare = np.count_nonzero(stays) - count
    if spare > 0:
        stays[np.flatnonzero(sizes == least)[-spare:]] = False
    return stays
