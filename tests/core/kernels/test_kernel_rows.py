"""Norms and weighted sums of rows by Triton: the same steps in torch, widened to float64, as oracle."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum, bounded_total, clip_factors, record_factors, total_of
from adadpigu.core.exact import grid_of
from adadpigu.core.kernels.rows import Blocks, squared_norms, weighted_sum, whole_sum
from adadpigu.core.standardising import Standardiser
from adadpigu.errors import InputError

SHAPES = [(1, 1), (1, 7), (3, 64), (5, 33), (9, 130), (70, 3)]
SMALL = Blocks(2, 16)
"""so small that there are several parts and a rest in both directions"""


Parts = tuple[Tensor | None, Tensor | None]


def drawn(b: int, n: int, seed: int = 0) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Rows, and a centre and weight for them in float64; some of the weights are zero."""
    generator = torch.Generator().manual_seed(seed)
    center = torch.randn(n, generator=generator, dtype=torch.float64)
    scale = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
    weight = torch.where(torch.rand(n, generator=generator) < 0.7, scale.reciprocal(), 0.0)
    return torch.randn(b, n, generator=generator), (center, weight)


def standardised(rows: Tensor, parts: Parts) -> Tensor:
    """z as torch computes it in float32, widened."""
    center, weight = parts
    z = rows.float()
    if center is not None:
        z = z - center.float()
    if weight is not None:
        z = z * weight.float()
    return z.double()


@pytest.mark.parametrize("blocks", [SMALL, Blocks(4, 1024)])
@pytest.mark.parametrize(("b", "n"), SHAPES)
def test_norms_are_those_of_the_standardised_rows(b: int, n: int, blocks: Blocks) -> None:
    rows, parts = drawn(b, n)
    found = squared_norms(rows, *parts, blocks=blocks)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, standardised(rows, parts).square().sum(dim=1), rtol=1e-13, atol=0)


@pytest.mark.parametrize("blocks", [SMALL, Blocks(8, 256)])
@pytest.mark.parametrize(("b", "n"), SHAPES)
def test_the_sum_is_that_of_the_standardised_rows(b: int, n: int, blocks: Blocks) -> None:
    rows, parts = drawn(b, n)
    factors = torch.rand(b, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = weighted_sum(rows, factors, *parts, blocks=blocks)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, standardised(rows, parts).mT @ factors, rtol=1e-12, atol=1e-13)


def test_what_is_normed_is_what_is_summed_to_the_last_bit() -> None:
    """One row alone, with factor 1: its sum is z itself, which must be torch's z and have the norm found."""
    rows, parts = drawn(1, 90)
    z = weighted_sum(rows, torch.ones(1, dtype=torch.float64), *parts)
    assert torch.equal(z, standardised(rows, parts)[0])
    norm = squared_norms(rows, *parts)
    assert norm.item() == pytest.approx(math.fsum(v * v for v in z.tolist()), rel=1e-14)


@pytest.mark.parametrize("missing", ["center", "weight", "both"])
def test_a_missing_centre_is_zero_and_a_missing_weight_is_one(missing: str) -> None:
    rows, parts = drawn(6, 40)
    kept: Parts = (None if missing != "weight" else parts[0], None if missing != "center" else parts[1])
    z = standardised(rows, kept)
    torch.testing.assert_close(squared_norms(rows, *kept), z.square().sum(dim=1), rtol=1e-13, atol=0)
    ones = torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(weighted_sum(rows, ones, *kept), z.sum(dim=0), rtol=1e-12, atol=1e-13)


def test_centre_and_weight_may_be_rounded_beforehand() -> None:
    rows, parts = drawn(4, 50)
    rounded = parts[0].float(), parts[1].float()
    factors = torch.rand(4, dtype=torch.float64)
    assert torch.equal(squared_norms(rows, *parts), squared_norms(rows, *rounded))
    assert torch.equal(weighted_sum(rows, factors, *parts), weighted_sum(rows, factors, *rounded))


def test_rows_may_lie_apart_and_what_lies_between_is_not_read() -> None:
    wide = torch.full((5, 50), math.nan)
    rows, parts = drawn(5, 33)
    wide[:, 8:41] = rows
    apart = wide[:, 8:41]
    factors = torch.rand(5, dtype=torch.float64)
    assert torch.equal(squared_norms(apart, *parts), squared_norms(rows, *parts))
    assert torch.equal(weighted_sum(apart, factors, *parts), weighted_sum(rows, factors, *parts))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 15, 16, 39])
def test_a_row_that_is_not_finite_has_no_finite_norm_and_no_other_row_is_touched(odd: float, column: int) -> None:
    rows, parts = drawn(4, 40)
    parts[1][column] = 0.0  # frozen, and yet inf times zero is no number
    before = squared_norms(rows, *parts, blocks=SMALL)
    rows[2, column] = odd
    found = squared_norms(rows, *parts, blocks=SMALL)
    assert not found[2].isfinite()
    assert torch.equal(found[[0, 1, 3]], before[[0, 1, 3]])


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_row_without_a_factor_is_left_out_whatever_it_holds(odd: float) -> None:
    rows, parts = drawn(5, 40)
    rows[[1, 4]] = odd
    norms = squared_norms(rows, *parts).sqrt()
    factors = clip_factors(norms, 1.0, length=40)
    assert (factors == 0).tolist() == [False, True, False, False, True]
    found = weighted_sum(rows, factors, *parts, blocks=SMALL)
    torch.testing.assert_close(
        found, standardised(rows[[0, 2, 3]], parts).mT @ factors[[0, 2, 3]], rtol=1e-12, atol=1e-13
    )


def test_a_row_that_is_not_finite_is_not_hidden_from_the_sum() -> None:
    rows, _ = drawn(3, 20)
    rows[1, 4] = math.nan
    found = weighted_sum(rows, torch.ones(3, dtype=torch.float64), None, None)
    assert found.isnan().nonzero().flatten().tolist() == [4]


def test_norms_far_beyond_float32_are_counted() -> None:
    rows = torch.tensor([[3e38, 3e38], [1e-30, 0.0], [1e-44, 0.0]])
    torch.testing.assert_close(squared_norms(rows, None, None), rows.double().square().sum(dim=1), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype: torch.dtype) -> None:
    rows, parts = drawn(4, 40)
    rows = rows.to(dtype)
    found = squared_norms(rows, *parts)
    torch.testing.assert_close(found, standardised(rows, parts).square().sum(dim=1), rtol=1e-13, atol=0)


@pytest.mark.parametrize(("b", "n"), [(0, 5), (4, 0), (0, 0)])
def test_nothing_adds_up_to_zero(b: int, n: int) -> None:
    rows, factors = torch.empty(b, n), torch.ones(b, dtype=torch.float64)
    assert torch.equal(squared_norms(rows, None, None), torch.zeros(b, dtype=torch.float64))
    assert torch.equal(weighted_sum(rows, factors, None, None), torch.zeros(n, dtype=torch.float64))


def test_what_would_be_misread_is_refused() -> None:
    rows, factors = torch.randn(4, 6), torch.ones(4, dtype=torch.float64)
    for odd in (rows.double(), rows.mT, rows[:, ::2], rows.int(), rows[0]):
        with pytest.raises(InputError, match="squared_norms"):
            squared_norms(odd, None, None)
    for part in (torch.ones(5), torch.ones(12)[::2], torch.ones(1, 6)):
        with pytest.raises(InputError, match="weighted_sum"):
            weighted_sum(rows, factors, None, part)
    with pytest.raises(InputError, match="factors"):
        weighted_sum(rows, factors[:3], None, None)


@pytest.mark.parametrize(("b", "n"), SHAPES)
def test_rounded_rows_are_added_exactly_and_those_beyond_the_bound_not_at_all(b: int, n: int) -> None:
    """In Python's whole numbers; some scales are zero, some rows no numbers, and about half lie beyond the bound."""
    rows, parts = drawn(b, n)
    scales = torch.rand(b, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 2.0**18
    scales[::4] = 0.0
    rows[::4] = math.nan
    whole = [
        [math.floor(v + 0.5) for v in row]
        for row in (scales[:, None] * standardised(rows, parts).nan_to_num()).tolist()
    ]
    squares = [sum(value * value for value in row) for row in whole]
    bound = math.isqrt(sorted(squares)[b // 2])
    taken = [
        row for row, square, scale in zip(whole, squares, scales.tolist(), strict=True) if square <= bound**2 and scale
    ]
    expected = [sum(column) for column in zip(*taken, strict=True)] if taken else [0] * n
    assert squared_norms(rows, *parts, scales=scales, blocks=SMALL).tolist() == squares
    assert whole_sum(rows, scales, *parts, bound=bound).tolist() == expected


@pytest.mark.parametrize("top_k", [1.0, 0.3])
def test_a_clipped_sum_in_whole_numbers_is_that_of_the_tier_exact(top_k: float) -> None:
    """As on a CPU, up to the steps of the grid by which float32 differs from float64 before the rounding."""
    rows, (center, weight) = drawn(9, 130)
    grid = grid_of(0.7)
    query = GradientSum(clip_norm=0.7, grid=grid, center=center, scale=weight + 1, top_k=top_k)
    expected = bounded_total(query.rows(rows.clone()), query)
    z = Standardiser(query, 130, device=rows.device)(rows.clone())
    assert type(z).__name__ == "_Fused"
    found = total_of(z, query, record_factors([z.squares()], query, None, length=130))
    assert torch.equal(torch.round(found / grid), found / grid)
    torch.testing.assert_close(found, expected, rtol=0, atol=40 * grid)
