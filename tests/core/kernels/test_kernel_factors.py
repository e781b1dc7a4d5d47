"""Clip factors by Triton: `bounding.clip_factors` as oracle, and the bound in exact fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from adadpigu.core import kernels
from adadpigu.core.bounding import GradientSum, aimed_norm, clip_factors, record_factors
from adadpigu.core.kernels import factors as kernel
from adadpigu.core.kernels.outer import Blocks, partial_norms
from adadpigu.core.standardising import where_or_zero
from adadpigu.errors import InputError

CLIPS = [1e-30, 1e-3, 0.1, 1.0, 1 / 3, 7.3, 1e6]
STABILITIES = [None, 5e-324, 1e-310, 1e-9, 0.01, 1e3]
LENGTH = 26_010


def squares() -> Tensor:
    """Ordinary squared norms, each of `CLIPS` just reached, passed and missed, and the ends of the range."""
    generator = torch.Generator().manual_seed(0)
    some = torch.randn(40, generator=generator, dtype=torch.float64).exp()
    ends = [0.0, 5e-324, 1e-310, 2.3e-308, 1e-300, 1e-90, 1e300, 1.7e308, math.inf, math.nan, -1.0]
    edges = torch.tensor(CLIPS, dtype=torch.float64).square()
    up, down = torch.tensor(math.inf, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    return torch.cat([some, torch.tensor(ends).double(), edges, edges.nextafter(up), edges.nextafter(down)])


def by_torch(squares: Tensor, query: GradientSum, present: Tensor | None, *, length: int) -> Tensor:
    """The definition, in torch's operations."""
    factors = clip_factors(squares.sqrt(), query.clip_norm, query.stability, length=length)
    return factors if present is None else where_or_zero(present, factors)


@pytest.mark.parametrize("stability", STABILITIES)
@pytest.mark.parametrize("clip", [*CLIPS, math.inf])
def test_factors_are_those_of_torch_and_no_record_passes_the_clip_norm(clip: float, stability: float | None) -> None:
    if stability is not None and math.isinf(clip):
        return
    given = squares()
    finite = given.isfinite() & (given >= 0)
    assert kernels.usable(given)
    present = torch.arange(len(given)) % 3 > 0
    query = GradientSum(clip_norm=clip, stability=stability)
    for there in (None, present):
        found = record_factors([given], query, there, length=LENGTH)
        expected = by_torch(given, query, there, length=LENGTH)
        assert torch.equal(found == 0, expected == 0)
        torch.testing.assert_close(found, expected, rtol=4e-16, atol=0)  # processors differ in a product's last bit
        assert found.isfinite().all()
        assert (found[~finite] == 0).all()
        for factor, square in zip(found[finite].tolist(), given[finite].tolist(), strict=True):
            assert math.isinf(clip) or Fraction(factor) ** 2 * Fraction(square) <= Fraction(clip) ** 2


@pytest.mark.parametrize("stability", [None, 1.0])
def test_a_factor_below_the_normal_range_is_zero(stability: float | None) -> None:
    given = torch.tensor([1e300, 1e290], dtype=torch.float64)
    found = kernel.record_factors([given], None, aim=aimed_norm(1e-158, 2), stability=stability)
    assert found[0] == 0
    assert found[1] > 0


@pytest.mark.parametrize("count", range(1, 9))
def test_squares_of_several_layers_and_parts_are_added_up(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    shapes = itertools.islice(itertools.cycle([(21,), (5, 21), (40, 21), (1, 21)]), count)
    each = [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    whole = torch.cat([part.reshape(-1, 21) for part in each]).sum(dim=0)
    found = kernel.record_factors(each, None, aim=aimed_norm(1.5, 1000))
    expected = by_torch(whole, GradientSum(clip_norm=1.5), None, length=1000)
    torch.testing.assert_close(found, expected, rtol=1e-15 * 8, atol=0)
    each[-1].view(-1, 21)[-1, 3] = math.nan
    again = kernel.record_factors(each, None, aim=aimed_norm(1.5, 1000))
    others = torch.arange(21) != 3
    assert again[3] == 0
    assert torch.equal(again[others], found[others])


def test_partial_norms_are_taken_as_they_come() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(3, 5, generator=generator), torch.randn(3, 9, generator=generator)
    parts = partial_norms(left, right, None, None, blocks=Blocks(2, 2, 4))
    assert len(parts) == 9
    found = kernel.record_factors([parts], None, aim=aimed_norm(0.5, 45))
    rows = (left[:, :, None] * right[:, None, :]).flatten(1).double()
    expected = by_torch(rows.square().sum(dim=1), GradientSum(clip_norm=0.5), None, length=45)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_no_records_have_no_factors() -> None:
    for empty in (torch.empty(0).double(), torch.empty(3, 0).double()):
        found = kernel.record_factors([empty], torch.empty(0, dtype=torch.bool), aim=aimed_norm(1.0, 3))
        assert found.shape == (0,)
        assert found.dtype == torch.float64


def test_what_would_be_misread_is_refused() -> None:
    good = torch.ones(4).double()
    for odd in ([torch.ones(4)], [good, good[:3]], [good, good[None, None]], [torch.ones(8).double()[::2]]):
        with pytest.raises(InputError, match="record_factors: squares"):
            kernel.record_factors(odd, None, aim=aimed_norm(1.0, 1))
    for present in (torch.ones(4), torch.ones(3, dtype=torch.bool), torch.ones(8, dtype=torch.bool)[::2]):
        with pytest.raises(InputError, match="record_factors: present"):
            kernel.record_factors([good], present, aim=aimed_norm(1.0, 1))
