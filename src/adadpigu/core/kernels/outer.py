"""Norms and weighted sums of standardised outer products that are never in memory. Before the noise: sensitive.

    g_i = Σ_c a_ic b_icᵀ,   z_i = (g_i − α) · w in float32,   ‖z_i‖² and Σ_i f_i z_i in float64

a_ic and b_ic are the left and right factors of copy c of record i. Both kernels take z from one function, and neither
is compiled with fused multiply-adds of the compiler's choice: what is normed is what is summed, to the last bit, and is
what torch computes step by step. Sums are split in a fixed way and added up in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adadpigu.core.kernels._triton import check_contiguous, check_rows, jit, power_of_two, tl
from adadpigu.core.kernels.rows import added, load_column, standardised
from adadpigu.errors import InputError

_WARPS = 132 * 8  # how many warps are wanted at once: some for each multiprocessor of the largest GPUs

_A_WARP = 512  # entries of a matrix that one warp holds


class Blocks(NamedTuple):
    """What one program does: a tile of `left` by `right` entries of `records` records; powers of two."""

    records: int
    left: int
    right: int
    warps: int = 1


class _Sizes(NamedTuple):
    """b records, whose matrices are m by n."""

    b: int
    m: int
    n: int

    def grid(self, blocks: Blocks) -> tuple[int, int]:
        tiles = -(-self.m // blocks.left) * -(-self.n // blocks.right)
        return tiles, -(-self.b // blocks.records)


def partial_norms(
    left: Tensor,
    right: Tensor,
    center: Tensor | None,
    weight: Tensor | None,
    *,
    copies: int = 1,
    blocks: Blocks | None = None,
) -> Tensor:
    """‖z_i‖² of each record in parts, [parts, b] in float64, for `factors.record_factors` to add up.

    A record that is not finite gives inf or nan. left [b·copies, m] and right [b·copies, n] hold a record's copies side
    by side, `center` and `weight` are [m·n], None for 0 and 1. `blocks` change speed and rounding alone.
    """
    sizes = _sizes("partial_norms", left, right, center, weight, copies)
    if not all(sizes):
        return torch.zeros(1, sizes.b, dtype=torch.float64, device=left.device)
    blocks = blocks or _tile(sizes, 16)
    grid = sizes.grid(blocks)
    partial = torch.empty(grid[0], sizes.b, dtype=torch.float64, device=left.device)
    _norms[grid](
        *(left, right, center, weight, partial, *sizes, left.stride(0), right.stride(0), copies, *blocks[:3]),
        num_warps=blocks.warps,
        enable_fp_fusion=False,
    )
    return partial


def weighted_sum(
    left: Tensor,
    right: Tensor,
    factors: Tensor,
    center: Tensor | None,
    weight: Tensor | None,
    *,
    copies: int = 1,
    blocks: Blocks | None = None,
) -> Tensor:
    """Σ_i f_i z_i, factors [b] -> [m·n] in float64; a record whose factor is zero is left out, whatever it holds."""
    sizes = _sizes("weighted_sum", left, right, center, weight, copies)
    b, m, n = sizes
    check_contiguous("weighted_sum: factors", factors, (b,))
    if not all(sizes):
        return torch.zeros(m * n, dtype=torch.float64, device=left.device)
    if blocks is None:  # of many tiles each takes more records, so that there are one to two programs for one wanted
        tiles, _ = sizes.grid(_tile(sizes, b))
        blocks = _tile(sizes, max(16, power_of_two(b * tiles // _WARPS + 1) // 2))
    grid = sizes.grid(blocks)
    partial = torch.empty(grid[1], m * n, dtype=torch.float64, device=left.device)
    _sums[grid](
        *(left, right, factors, center, weight, partial, *sizes, left.stride(0), right.stride(0), copies, *blocks[:3]),
        num_warps=blocks.warps,
        enable_fp_fusion=False,
    )
    return added(partial)


def _sizes(name: str, left: Tensor, right: Tensor, center: Tensor | None, weight: Tensor | None, copies: int) -> _Sizes:
    """Refuses what the kernels would misread."""
    check_rows(f"{name}, left", left)
    check_rows(f"{name}, right", right)
    if copies < 1 or len(left) != len(right) or len(left) % copies:
        told = f"{name}: left {tuple(left.shape)}, right {tuple(right.shape)}, copies={copies}"
        raise InputError(f"{told}; allowed: [b·copies, m] and [b·copies, n] of one or more copies")
    m, n = left.shape[1], right.shape[1]
    for part in (center, weight):
        check_contiguous(f"{name}: center or weight", part, (m * n,))
    return _Sizes(len(left) // copies, m, n)


def _tile(sizes: _Sizes, records: int) -> Blocks:
    """A tile that one warp holds: 16 by 32 entries, or longer where the matrix is narrower.

    >>> [_tile(_Sizes(1, *shape), 16)[1:3] for shape in ((32, 512), (10, 32), (1, 900), (900, 3))]
    [(16, 32), (16, 32), (1, 512), (128, 4)]
    """
    right = min(32, power_of_two(sizes.n))
    left = min(_A_WARP // right, power_of_two(sizes.m))
    return Blocks(records, left, min(_A_WARP // left, power_of_two(sizes.n)))


@jit()
def _entries(n, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """The rows [LEFT, 1] and columns [1, RIGHT] of this program's tile."""
    across = tl.cdiv(n, RIGHT)
    rows = tl.program_id(0) // across * LEFT + tl.arange(0, LEFT)[:, None]
    columns = tl.program_id(0) % across * RIGHT + tl.arange(0, RIGHT)[None, :]
    return rows, columns


@jit()
def _product(left, right, copy, left_stride, right_stride, rows, columns, m, n):
    """Some entries of a bᵀ for one copy of a record, rounded to float32."""
    a = tl.load(left + copy * left_stride + rows, mask=rows < m, other=0.0).to(tl.float32)
    b = tl.load(right + copy * right_stride + columns, mask=columns < n, other=0.0).to(tl.float32)
    return a * b


@jit()
def _record(left, right, record, left_stride, right_stride, rows, columns, m, n, alpha, w, COPIES: tl.constexpr):
    """z of one record; beyond the matrix zero, or no number where the record holds inf or nan anyway."""
    copy = tl.cast(record, tl.int64) * COPIES
    g = _product(left, right, copy, left_stride, right_stride, rows, columns, m, n)
    for more in range(1, COPIES):
        g += _product(left, right, copy + more, left_stride, right_stride, rows, columns, m, n)
    # Without `enable_fp_fusion=False` g − α could become one rounding of a·b − α here and two roundings there.
    return standardised(g, alpha, w)


@jit("b")
def _norms(
    left,
    right,
    center,
    weight,
    partial,
    b,
    m,
    n,
    left_stride,
    right_stride,
    COPIES: tl.constexpr,
    RECORDS: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """partial[tile, i] = Σ z_i² over one tile, for RECORDS records that share α and w."""
    rows, columns = _entries(n, LEFT, RIGHT)
    inside = (rows < m) & (columns < n)
    alpha = load_column(center, rows * n + columns, inside, 0.0)
    w = load_column(weight, rows * n + columns, inside, 1.0)
    first = tl.program_id(1) * RECORDS
    records = first + tl.arange(0, RECORDS)
    found = tl.zeros((RECORDS,), tl.float64)
    for record in tl.range(first, tl.minimum(first + RECORDS, b), loop_unroll_factor=4):
        z = _record(left, right, record, left_stride, right_stride, rows, columns, m, n, alpha, w, COPIES)
        wide = z.to(tl.float64)
        found = tl.where(records == record, tl.sum(wide * wide), found)
    # Stored once, after all loads: a store between them would hold the next ones up.
    tl.store(partial + tl.program_id(0).to(tl.int64) * b + records, found, mask=records < b)


@jit("b")
def _sums(
    left,
    right,
    factors,
    center,
    weight,
    partial,
    b,
    m,
    n,
    left_stride,
    right_stride,
    COPIES: tl.constexpr,
    RECORDS: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """partial[part, jk] = Σ f_i z_i[j, k] over the RECORDS records of one part, one after the other."""
    rows, columns = _entries(n, LEFT, RIGHT)
    inside = (rows < m) & (columns < n)
    alpha = load_column(center, rows * n + columns, inside, 0.0)
    w = load_column(weight, rows * n + columns, inside, 1.0)
    first = tl.program_id(1) * RECORDS
    total = tl.zeros((LEFT, RIGHT), tl.float64)
    for record in tl.range(first, tl.minimum(first + RECORDS, b), loop_unroll_factor=4):
        factor = tl.load(factors + record).to(tl.float64)
        z = _record(left, right, record, left_stride, right_stride, rows, columns, m, n, alpha, w, COPIES)
        total += factor * tl.where(factor != 0, z, 0.0).to(tl.float64)  # zero times nan is nan
    here = partial + tl.program_id(1).to(tl.int64) * m * n
    tl.store(here + rows * n + columns, total, mask=inside)
