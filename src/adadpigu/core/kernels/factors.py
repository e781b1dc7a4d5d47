"""What each record is multiplied with, from squared norms: `bounding.record_factors` in one kernel. Sensitive.

    f_i = min(1, C'/‖z_i‖), or C'/(‖z_i‖ + γ) with automatic clipping; 0 where that is not finite or no record is there

C' is `bounding.aimed_norm`, C less a margin for rounding. Step by step as `bounding.clip_factors`, in float64.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adadpigu.core.kernels._triton import check_contiguous, jit, tl

_AT_ONCE = 4  # how many tensors of squares the kernel takes

_RECORDS, _PARTS = 16, 16  # what one program holds at a time


def record_factors(
    squares: Sequence[Tensor], present: Tensor | None, *, aim: float, stability: float | None = None
) -> Tensor:
    """f_i for b records, [b] in float64: zero for a norm that is not finite, and where `present` [b] of bool is false.

    `squares`, each [b] or [parts, b] (as `outer.partial_norms` gives them) in float64, add up to the squared norms, in
    the order given. `aim` is C', `stability` γ.
    """
    b = squares[0].shape[-1]
    for part in squares:
        check_contiguous("record_factors: squares", part, (*part.shape[:-1][:1], b), torch.float64)
    check_contiguous("record_factors: present", present, (b,), torch.bool)
    factors = torch.empty(b, dtype=torch.float64, device=squares[0].device)
    if not b:
        return factors
    rows = [part.reshape(-1, b) for part in squares]
    if len(rows) > _AT_ONCE:
        rows = [*rows[: _AT_ONCE - 1], torch.cat(rows[_AT_ONCE - 1 :])]
    given = [*rows, *[None] * (_AT_ONCE - len(rows))]
    counts = [0 if part is None else len(part) for part in given]
    limits = torch.finfo(torch.float64)
    _factors[(-(-b // _RECORDS),)](
        *(*given, *counts, present, factors, b, aim, 0.0 if stability is None else stability),
        *(stability is not None, limits.max, limits.tiny, _RECORDS, _PARTS),
    )
    return factors


@jit()
def _added(squares, count, records, b, RECORDS: tl.constexpr, PARTS: tl.constexpr):
    """Σ over the `count` parts of some records' squares; zero where there are none."""
    total = tl.zeros((PARTS, RECORDS), tl.float64)
    if squares is not None:
        for start in range(0, count, PARTS):
            parts = start + tl.arange(0, PARTS)[:, None]
            here = squares + parts.to(tl.int64) * b + records[None, :]
            total += tl.load(here, mask=(parts < count) & (records < b)[None, :], other=0.0)
    return tl.sum(total, 0)


# Python's floats would be passed as float32, and C' might round up to more than C: hence the types.
@jit("b", "count0", "count1", "count2", "count3")
def _factors(
    squares0,
    squares1,
    squares2,
    squares3,
    count0,
    count1,
    count2,
    count3,
    present,
    factors,
    b,
    aim: tl.float64,
    stability: tl.float64,
    AUTOMATIC: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    RECORDS: tl.constexpr,
    PARTS: tl.constexpr,
):
    records = tl.program_id(0) * RECORDS + tl.arange(0, RECORDS)
    inside = records < b
    total = _added(squares0, count0, records, b, RECORDS, PARTS)
    total += _added(squares1, count1, records, b, RECORDS, PARTS)
    total += _added(squares2, count2, records, b, RECORDS, PARTS)
    total += _added(squares3, count3, records, b, RECORDS, PARTS)
    norm = tl.sqrt(total)
    if AUTOMATIC:  # a zero record times an infinite factor would be no number
        factor = 1.0 / (norm + stability) * aim  # two roundings, as torch divides a number by a tensor
        factor = tl.where(factor > LARGEST, LARGEST, factor)
    else:
        factor = 1.0 / norm * aim
        factor = tl.where(factor > 1.0, 1.0, factor)
    # A factor below the normal range would be rounded so coarsely that the norm could pass C.
    kept = (norm < float("inf")) & (factor >= SMALLEST) & inside
    if present is not None:
        kept &= tl.load(present + records, mask=inside, other=0).to(tl.int1)
    tl.store(factors + records, tl.where(kept, factor, 0.0), mask=inside)
