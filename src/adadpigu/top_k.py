"""The k largest magnitudes of each record's gradient, exactly k of them. Before the noise: sensitive in, sensitive out.

A threshold is selected (not sorted) for each row; entries above it stay, and of those equal to it the first ones, until
there are k. A row with an entry that is no number keeps it, so that the clip finds and drops the record.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor


def largest(z: Tensor, count: int) -> Tensor:
    """Zeroes all but the `count` largest magnitudes of each row; of equal ones the first stay.

    >>> largest(torch.tensor([[3.0, -4.0, 1.0, 2.0], [5.0, 5.0, -5.0, 5.0]]), 2)
    tensor([[ 3., -4.,  0.,  0.],
            [ 5.,  5.,  0.,  0.]])
    """
    if count >= z.shape[1] or not len(z):
        return z.clone()
    sizes = z.abs()
    least = _thresholds(sizes, count)
    below = sizes < least
    kept = z.shape[1] - below.sum(dim=1, keepdim=True)
    if z.device.type != "cpu" or bool((kept > count).any()):
        tied = sizes == least
        spare = kept - count
        last_first = tied.flip(1).cumsum(dim=1).flip(1)  # how many equal ones there are from here on
        below |= tied & (last_first <= spare)
    return z.masked_fill(below, 0.0)


def _thresholds(sizes: Tensor, count: int) -> Tensor:
    """[b, 1]: the `count`-th largest entry of each row."""
    place = sizes.shape[1] - count
    if sizes.device.type != "cpu" or sizes.dtype not in (torch.float32, torch.float64):
        return torch.kthvalue(sizes, place + 1, dim=1, keepdim=True).values
    threads = max(1, min(torch.get_num_threads(), len(sizes)))
    parts = np.array_split(sizes.numpy(), threads)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda part: np.partition(part, place, axis=1)[:, place], parts))
    return torch.from_numpy(np.concatenate(found))[:, None]
