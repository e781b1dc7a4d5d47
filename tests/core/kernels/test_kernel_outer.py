"""Norms and sums of outer products by Triton: the rows built in torch and standardised by `Standardiser` as oracle."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.bounding import GradientSum, clip_factors
from adadpigu.core.gradients import choose_engine
from adadpigu.core.kernels.outer import Blocks, partial_norms, weighted_sum
from adadpigu.core.sensitive import Records, unseal
from adadpigu.core.standardising import Standardiser, weighted_total
from adadpigu.errors import InputError

CPU = torch.device("cpu")
SHAPES = [(1, 1, 1, 1), (1, 3, 5, 2), (3, 5, 16, 1), (5, 4, 9, 3), (5, 9, 17, 1), (3, 1, 20, 1), (3, 20, 1, 2)]
"""b, m, n and copies"""
SMALL = Blocks(2, 4, 8)
"""so small that there are several parts and a rest in every direction"""


class Drawn:
    """Factors, and a query with a centre, a scale and a mask for their products."""

    def __init__(self, b: int, m: int, n: int, copies: int = 1, *, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        self.copies = copies
        self.left = torch.randn(b * copies, m, generator=generator).to(dtype)
        self.right = torch.randn(b * copies, n, generator=generator).to(dtype)
        self.factors = torch.rand(b, generator=generator, dtype=torch.float64)
        self.query = GradientSum(
            clip_norm=1.0,
            center=torch.randn(m * n, generator=generator, dtype=torch.float64),
            scale=torch.rand(m * n, generator=generator, dtype=torch.float64) + 0.1,
            active=torch.rand(m * n, generator=generator) < 0.7,
        )

    @property
    def parts(self) -> tuple[Tensor | None, Tensor | None]:
        standardiser = Standardiser(self.query, self.left.shape[1] * self.right.shape[1], device=CPU)
        return standardiser.center, standardiser.weight

    def z(self) -> Tensor:
        """The rows, their copies added up in float32 one after the other, standardised and widened."""
        left, right = self.left.float(), self.right.float()
        each = (left[:, :, None] * right[:, None, :]).flatten(1)
        rows = each[:: self.copies].clone()
        for copy in range(1, self.copies):
            rows += each[copy :: self.copies]
        return Standardiser(self.query, rows.shape[1], device=CPU).widened(rows)

    def norms(self, blocks: Blocks | None = None) -> Tensor:
        return partial_norms(self.left, self.right, *self.parts, copies=self.copies, blocks=blocks).sum(dim=0)

    def total(self, factors: Tensor | None = None, blocks: Blocks | None = None) -> Tensor:
        factors = self.factors if factors is None else factors
        return weighted_sum(self.left, self.right, factors, *self.parts, copies=self.copies, blocks=blocks)


@pytest.mark.parametrize("blocks", [SMALL, None])
@pytest.mark.parametrize(("b", "m", "n", "copies"), SHAPES)
def test_norms_are_those_of_the_rows_when_built(b: int, m: int, n: int, copies: int, blocks: Blocks | None) -> None:
    drawn = Drawn(b, m, n, copies)
    found = drawn.norms(blocks)
    assert found.dtype == torch.float64
    expected = torch.linalg.vector_norm(drawn.z(), dim=1).square()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("blocks", [SMALL, None])
@pytest.mark.parametrize(("b", "m", "n", "copies"), SHAPES)
def test_the_sum_is_that_of_the_rows_when_built(b: int, m: int, n: int, copies: int, blocks: Blocks | None) -> None:
    drawn = Drawn(b, m, n, copies)
    found = drawn.total(blocks=blocks)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, weighted_total(drawn.z(), drawn.factors), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("copies", [1, 3])
def test_what_is_normed_is_what_is_summed_to_the_last_bit(copies: int) -> None:
    """One record alone with factor 1: its sum is z itself, which must be torch's z and have the norm found."""
    drawn = Drawn(4, 5, 9, copies)
    expected, norms = drawn.z(), drawn.norms()
    for record, one in enumerate(torch.eye(4, dtype=torch.float64)):
        z = drawn.total(one)
        assert torch.equal(z, expected[record])
        assert norms[record].item() == pytest.approx(math.fsum(v * v for v in z.tolist()), rel=1e-14)


def test_a_product_is_rounded_before_the_centre_is_taken_off() -> None:
    """(1 + 2⁻¹²)² is 1 + 2⁻¹¹ when rounded to float32, and so exactly the centre; unrounded, 2⁻²⁴ would be left."""
    factor = torch.tensor([[1 + 2**-12]])
    center = torch.tensor([1 + 2**-11], dtype=torch.float64)
    assert partial_norms(factor, factor, center, None).item() == 0
    assert weighted_sum(factor, factor, torch.ones(1, dtype=torch.float64), center, None).item() == 0


@pytest.mark.parametrize("missing", ["center", "weight", "both"])
def test_a_missing_centre_is_zero_and_a_missing_weight_is_one(missing: str) -> None:
    drawn = Drawn(3, 4, 9)
    center, scale = drawn.query.center, drawn.query.scale
    drawn.query = GradientSum(
        clip_norm=1.0, center=center if missing == "weight" else None, scale=scale if missing == "center" else None
    )
    assert sum(part is None for part in drawn.parts) == 1 + (missing == "both")
    z = drawn.z()
    torch.testing.assert_close(drawn.norms(), z.square().sum(dim=1), rtol=1e-13, atol=0)
    torch.testing.assert_close(drawn.total(), weighted_total(z, drawn.factors), rtol=1e-12, atol=1e-13)


def test_centre_and_weight_may_be_rounded_beforehand() -> None:
    drawn = Drawn(4, 5, 9)
    rounded = [None if part is None else part.float() for part in drawn.parts]
    assert torch.equal(drawn.norms(), partial_norms(drawn.left, drawn.right, *rounded).sum(dim=0))
    assert torch.equal(drawn.total(), weighted_sum(drawn.left, drawn.right, drawn.factors, *rounded))


def test_factors_may_lie_apart_and_what_lies_between_is_not_read() -> None:
    drawn = Drawn(5, 6, 11)
    norms, total = drawn.norms(), drawn.total()
    for name in ("left", "right"):
        part = getattr(drawn, name)
        wide = torch.full((5, 40), math.nan)
        wide[:, 8 : 8 + part.shape[1]] = part
        setattr(drawn, name, wide[:, 8 : 8 + part.shape[1]])
    assert torch.equal(drawn.norms(), norms)
    assert torch.equal(drawn.total(), total)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_has_no_finite_norm_and_is_left_out_of_the_sum(odd: float, side: str) -> None:
    drawn = Drawn(5, 6, 11)
    before, kept = drawn.norms(SMALL), [0, 1, 3, 4]
    getattr(drawn, side)[2, 3] = odd
    norms = drawn.norms(SMALL)
    assert not norms[2].isfinite()
    assert torch.equal(norms[kept], before[kept])
    factors = clip_factors(norms.sqrt(), 1.0, length=66)
    assert factors[2] == 0
    expected = drawn.z()[kept].mT @ factors[kept]
    torch.testing.assert_close(drawn.total(factors, SMALL), expected, rtol=1e-12, atol=1e-13)
    assert drawn.total(torch.ones(5, dtype=torch.float64)).isnan().any()


def test_a_copy_that_is_not_finite_takes_its_record_with_it() -> None:
    drawn = Drawn(3, 4, 5, copies=2)
    drawn.left[3] = math.nan  # the second copy of record 1
    assert drawn.norms().isfinite().tolist() == [True, False, True]
    assert drawn.total(torch.tensor([1.0, 0.0, 1.0]).double()).isfinite().all()


def test_a_product_beyond_float32_is_infinite_as_in_torch() -> None:
    drawn = Drawn(2, 3, 4)
    drawn.left[0], drawn.right[0] = 1e30, 1e30
    assert drawn.norms().isfinite().tolist() == [False, True]
    assert drawn.total(torch.tensor([0.0, 1.0]).double()).isfinite().all()


def test_a_centre_that_is_not_finite_leaves_nobody_in_the_sum() -> None:
    drawn = Drawn(3, 2, 4)
    assert drawn.query.center is not None
    drawn.query.center[5] = math.inf
    assert not drawn.norms().isfinite().any()
    assert torch.equal(drawn.total(torch.zeros(3, dtype=torch.float64)), torch.zeros(8, dtype=torch.float64))


def test_the_smallest_and_the_largest_products_are_counted() -> None:
    left, right = torch.tensor([[3e38], [1e-30], [1e-22]]), torch.tensor([[1.0], [1.0], [1e-22]])
    z = (left * right).double()
    norms = partial_norms(left, right, None, None).sum(dim=0)
    torch.testing.assert_close(norms, z.square().sum(dim=1), rtol=1e-15, atol=0)
    ones = torch.ones(3, dtype=torch.float64)
    for record in range(3):
        its = slice(record, record + 1)
        assert torch.equal(weighted_sum(left[its], right[its], ones[:1], None, None), z[record])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype: torch.dtype) -> None:
    drawn = Drawn(2, 4, 9, dtype=dtype)
    torch.testing.assert_close(drawn.norms(), drawn.z().square().sum(dim=1), rtol=1e-13, atol=0)
    assert torch.equal(drawn.total(torch.tensor([0.0, 1.0]).double()), drawn.z()[1])


def test_norms_come_in_one_part_a_tile() -> None:
    drawn = Drawn(5, 6, 11)
    parts = partial_norms(drawn.left, drawn.right, *drawn.parts, blocks=SMALL)
    assert parts.shape == (2 * 2, 5)
    tile = drawn.z().view(5, 6, 11)[:, 4:, :8]
    torch.testing.assert_close(parts[2], tile.square().sum(dim=(1, 2)), rtol=1e-13, atol=0)


@pytest.mark.parametrize(("b", "m", "n"), [(0, 2, 3), (4, 0, 3), (4, 2, 0), (0, 0, 0)])
def test_nothing_adds_up_to_zero(b: int, m: int, n: int) -> None:
    left, right, ones = torch.empty(b, m), torch.empty(b, n), torch.ones(b, dtype=torch.float64)
    assert torch.equal(partial_norms(left, right, None, None), torch.zeros(1, b, dtype=torch.float64))
    assert torch.equal(weighted_sum(left, right, ones, None, None), torch.zeros(m * n, dtype=torch.float64))


def test_a_layer_whose_outputs_are_summed_at_once_is_clipped() -> None:
    """autograd gives such a layer a dℓ/dy that is one number expanded, which the kernels cannot read as rows."""
    inputs, targets = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6, 0)
    model = nn.Linear(4, 5)
    engine = choose_engine(model, None, (inputs, targets), losses=lambda m, batch: m(batch).sum(1), engine="ghost")
    found = unseal(engine.clipped_sum(Records((inputs, targets)), GradientSum(clip_norm=1.0)))
    rows = torch.cat([inputs.repeat(1, 5), torch.ones(6, 5)], dim=1).double()
    expected = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_what_would_be_misread_is_refused() -> None:
    left, right = torch.ones(4, 2), torch.ones(4, 3)
    for odd in (torch.ones(2, 4).mT, left.double(), torch.ones(4), torch.ones(3, 2)):
        with pytest.raises(InputError, match="partial_norms"):
            partial_norms(odd, right, None, None)
    for copies in (0, 3):
        with pytest.raises(InputError, match=f"copies={copies}"):
            partial_norms(left, right, None, None, copies=copies)
    for part in (torch.ones(5), torch.ones(2, 3), torch.ones(12)[::2]):
        with pytest.raises(InputError, match="center or weight"):
            partial_norms(left, right, part, None)
    for factors in (torch.ones(3).double(), torch.ones(8).double()[::2]):
        with pytest.raises(InputError, match="factors"):
            weighted_sum(left, right, factors, None, None)
