"""Norms and weighted sums of standardised rows, each in one read of the rows. Before the noise: sensitive.

    z_ij = (g_ij − α_j) · w_j in float32,   ‖z_i‖² and Σ_i f_i z_i in float64

Both take z from the same function, step by step as `standardising.Standardiser` does: what is normed is what is summed.
Sums are split in a fixed way and added up in a fixed order, so that a result can be repeated to the last bit.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adadpigu.core.kernels._triton import check_contiguous, check_rows, jit, tl

_PROGRAMS = 132 * 8  # how many programs are wanted at once: some for each multiprocessor of the largest GPUs


class Blocks(NamedTuple):
    """What one program holds at a time: `rows` by `columns`, powers of two."""

    rows: int
    columns: int
    warps: int = 4


def squared_norms(
    rows: Tensor,
    center: Tensor | None,
    weight: Tensor | None,
    *,
    scales: Tensor | None = None,
    blocks: Blocks = Blocks(1, 2048),  # noqa: B008
) -> Tensor:
    """‖z_i‖² of rows [b, n], as [b] in float64; a row that is not finite gives inf or nan.

    `center` and `weight` are [n] (float64, or float32 already), None for 0 and 1. With `scales` [b] the squared norm of
    round(scale_i z_i), exactly up to 2⁵³; zero for a scale of zero.
    """
    check_standardised("squared_norms", rows, center, weight)
    check_contiguous("squared_norms: scales", scales, rows.shape[:1], torch.float64)
    b, n = rows.shape
    if not b or not n:
        return torch.zeros(b, dtype=torch.float64, device=rows.device)
    groups = -(-b // blocks.rows)
    parts = _parts(n, blocks.columns, _PROGRAMS // groups)
    width = -(-n // (parts * blocks.columns)) * blocks.columns
    partial = torch.empty(parts, b, dtype=torch.float64, device=rows.device)
    _norms[(groups, parts)](
        *(rows, scales, center, weight, partial, b, n, rows.stride(0), width, *blocks[:2]),
        **{"num_warps": blocks.warps, "enable_fp_fusion": scales is None},
    )
    return added(partial)


def weighted_sum(
    rows: Tensor,
    factors: Tensor,
    center: Tensor | None,
    weight: Tensor | None,
    *,
    whole: bool = False,
    blocks: Blocks = Blocks(8, 128),  # noqa: B008
) -> Tensor:
    """Σ_i f_i z_i of rows [b, n], as [n] in float64; a row whose factor is zero is left out, whatever it holds.

    Where it is to be `whole`, Σ_i round(f_i z_i).
    """
    check_standardised("weighted_sum", rows, center, weight)
    b, n = rows.shape
    check_contiguous("weighted_sum: factors", factors, (b,))
    if not b or not n:
        return torch.zeros(n, dtype=torch.float64, device=rows.device)
    groups = -(-n // blocks.columns)
    parts = _parts(b, blocks.rows, _PROGRAMS // groups)
    height = -(-b // (parts * blocks.rows)) * blocks.rows
    partial = torch.empty(parts, n, dtype=torch.float64, device=rows.device)
    _sums[(groups, parts)](
        *(rows, factors, center, weight, partial, b, n, rows.stride(0), height, *blocks[:2]),
        **{"WHOLE": whole, "num_warps": blocks.warps, "enable_fp_fusion": not whole},
    )
    return added(partial)


def whole_sum(rows: Tensor, scales: Tensor, center: Tensor | None, weight: Tensor | None, *, bound: int) -> Tensor:
    """Σ_i round(scale_i z_i) over the rows in which that has a norm of at most `bound`: all sums are exact."""
    squares = squared_norms(rows, center, weight, scales=scales)
    within = torch.where(squares <= bound**2, scales, torch.zeros_like(scales))
    return weighted_sum(rows, within, center, weight, whole=True)


def check_standardised(name: str, rows: Tensor, center: Tensor | None, weight: Tensor | None) -> None:
    """Refuses rows, or a centre and weight for them, that the kernels would misread."""
    check_rows(name, rows)
    for part in (center, weight):
        check_contiguous(f"{name}: center or weight", part, rows.shape[1:])


def _parts(length: int, block: int, wanted: int) -> int:
    """In how many parts to split a length of several blocks: about `wanted`, none of them less than four blocks.

    >>> _parts(1107, 8, 10), _parts(1107, 8, 0), _parts(1107, 8, 1000), _parts(7, 8, 10)
    (10, 1, 34, 1)
    """
    return max(1, min(wanted, length // (4 * block)))


def added(partial: Tensor) -> Tensor:
    """The sum of a kernel's parts, [parts, n] -> [n]."""
    return partial[0] if len(partial) == 1 else partial.sum(dim=0)


@jit()
def load_column(part, columns, inside, neutral: tl.constexpr):
    """α or the weight of some columns in float32; `neutral` where there is none."""
    if part is None:
        column = tl.full(columns.shape, neutral, tl.float32)
    else:
        column = tl.load(part + columns, mask=inside, other=0.0).to(tl.float32)
    return column


@jit()
def standardised(g, center, weight):
    """z = (g − α) · w: two roundings to float32, as torch does it."""
    return (g.to(tl.float32) - center) * weight


@jit()
def _rounded(value):
    """The nearest whole number; the upper one of two. The same in both kernels, so that what is measured is added."""
    return tl.floor(value + 0.5)


@jit("b", "width")
def _norms(rows, scales, center, weight, partial, b, n, stride, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """partial[part, i] = Σ z_ij² over the columns of one part, for ROWS rows that share α and w."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    first = tl.program_id(1) * width
    here = rows + row.to(tl.int64) * stride
    total = tl.zeros((ROWS, COLUMNS), tl.float64)
    inside_rows = row < b
    if scales is not None:
        scale = tl.load(scales + row, mask=inside_rows, other=0.0)
        inside_rows &= scale != 0
    for start in range(first, tl.minimum(first + width, n), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)[None, :]
        inside = columns < n
        alpha, w = load_column(center, columns, inside, 0.0), load_column(weight, columns, inside, 1.0)
        g = tl.load(here + columns, mask=inside_rows & inside, other=0.0)  # beyond the row z is zero
        z = standardised(g, alpha, w).to(tl.float64)
        if scales is not None:
            z = tl.where(inside_rows, _rounded(scale * z), 0.0)
        total += z * z
    tl.store(partial + tl.program_id(1) * b + row, tl.sum(total, 1, keep_dims=True), mask=row < b)


@jit("b", "height")
def _sums(
    rows,
    factors,
    center,
    weight,
    partial,
    b,
    n,
    stride,
    height,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """partial[part, j] = Σ f_i z_ij over the rows of one part."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = columns < n
    alpha, w = load_column(center, columns, inside, 0.0), load_column(weight, columns, inside, 1.0)
    first = tl.program_id(1) * height
    total = tl.zeros((ROWS, COLUMNS), tl.float64)
    for start in range(first, tl.minimum(first + height, b), ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        factor = tl.load(factors + row, mask=row < b, other=0.0).to(tl.float64)
        taken = factor != 0
        g = tl.load(rows + row.to(tl.int64) * stride + columns, mask=taken & inside, other=0.0)
        scaled = factor * standardised(g, alpha, w).to(tl.float64)
        if WHOLE:
            scaled = _rounded(scaled)
        total += tl.where(taken, scaled, 0.0)
    part = tl.program_id(1).to(tl.int64)
    tl.store(partial + part * n + columns, tl.sum(total, 0, keep_dims=True), mask=inside)
