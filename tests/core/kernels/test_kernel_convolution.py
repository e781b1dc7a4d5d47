"""Per-sample weight gradients of convolutions by Triton: autograd, one record at a time in float64, as oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adadpigu.core.kernels.convolution import Blocks, Geometry, Pair, Products
from adadpigu.errors import InputError


@dataclass(frozen=True)
class Case:
    channels: int
    outputs: int
    image: Pair
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    copies: int = 1
    records: int = 2

    def drawn(self) -> tuple[Tensor, Tensor]:
        """An input and a dℓ/dy."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.records * self.copies, self.channels, *self.image, generator=generator)
        weight = torch.zeros(self.outputs, self.channels, *self.kernel)
        y = F.conv2d(x, weight, stride=self.stride, padding=self.padding, dilation=self.dilation)
        return x, torch.randn(y.shape, generator=generator)

    def empty(self) -> Tensor:
        return torch.full((self.records, self.outputs * self.channels * math.prod(self.kernel)), math.nan)

    def found(self, x: Tensor, dy: Tensor, into: Tensor | None = None, blocks: Blocks | None = None) -> Tensor:
        into = self.empty() if into is None else into
        self.products(x, dy, blocks).write(into)
        return into

    def products(self, x: Tensor, dy: Tensor, blocks: Blocks | None = None) -> Products:
        walk = Geometry(self.kernel, self.stride, self.padding, self.dilation)
        return Products(x, dy, walk, self.copies, blocks=blocks)

    def expected(self, x: Tensor, dy: Tensor) -> Tensor:
        rows = []
        for record in range(self.records):
            its = slice(record * self.copies, (record + 1) * self.copies)
            weight = torch.zeros(self.outputs, self.channels, *self.kernel, dtype=torch.float64, requires_grad=True)
            y = F.conv2d(x[its].double(), weight, stride=self.stride, padding=self.padding, dilation=self.dilation)
            rows.append(torch.autograd.grad((y * dy[its].double()).sum(), weight)[0].flatten())
        return torch.stack(rows)


PLAIN = Case(3, 5, (7, 6), (3, 3))
CASES = {
    "plain": PLAIN,
    "mnist, first": Case(1, 16, (28, 28), (8, 8), stride=(2, 2), padding=(2, 2)),
    "mnist, second": Case(16, 32, (12, 12), (4, 4), stride=(2, 2), records=1),
    "cifar": Case(3, 16, (16, 16), (3, 3), padding=(1, 1), records=1),
    "more outputs and entries than a block": Case(9, 40, (5, 5), (3, 3), padding=(1, 1), records=1),
    "one of everything": Case(1, 1, (1, 1), (1, 1), records=1),
    "one pixel of output": Case(4, 3, (5, 4), (5, 4)),
    "pointwise": Case(6, 7, (4, 5), (1, 1)),
    "not square": Case(2, 3, (9, 12), (2, 5), stride=(3, 2), padding=(1, 2), dilation=(2, 1)),
    "dilated": Case(2, 3, (11, 11), (3, 3), padding=(2, 2), dilation=(2, 3)),
    "pixels left over by the stride": Case(2, 3, (8, 9), (2, 2), stride=(3, 4)),
    "padding beyond the kernel": Case(2, 3, (4, 4), (2, 2), padding=(1, 1), stride=(2, 2)),
    "padding met before the image alone": Case(2, 3, (6, 6), (3, 3), padding=(1, 1), stride=(2, 2)),
    "copies": Case(2, 5, (6, 6), (3, 3), padding=(1, 1), copies=3),
    "copies of one pixel": Case(2, 5, (3, 3), (3, 3), copies=20),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients_are_those_of_autograd(case: Case) -> None:
    x, dy = case.drawn()
    torch.testing.assert_close(case.found(x, dy).double(), case.expected(x, dy), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", [PLAIN, CASES["not square"], CASES["copies"]])
def test_memory_may_lie_in_any_order(case: Case) -> None:
    x, dy = case.drawn()
    expected = case.found(x, dy)
    last = x.contiguous(memory_format=torch.channels_last), dy.contiguous(memory_format=torch.channels_last)
    assert not last[0].is_contiguous()
    assert torch.equal(case.found(*last), expected)
    assert torch.equal(case.found(x, last[1]), expected)
    assert torch.equal(case.found(x.mT.contiguous().mT, dy.transpose(0, 1).contiguous().transpose(0, 1)), expected)
    assert torch.equal(case.found(x[:, :, None].expand(-1, -1, 2, -1, -1)[:, :, 1], dy), expected)


def test_a_gradient_that_is_the_same_everywhere_may_lie_in_one_place() -> None:
    x, dy = PLAIN.drawn()
    spread = dy[:, :, :1, :1].expand(dy.shape)
    torch.testing.assert_close(PLAIN.found(x, spread).double(), PLAIN.expected(x, spread), rtol=1e-5, atol=1e-4)


def test_only_the_rows_given_are_written() -> None:
    x, dy = PLAIN.drawn()
    length = PLAIN.empty().shape[1]
    wide = torch.full((2, length + 9), 7.0)
    PLAIN.found(x, dy, wide[:, 4 : 4 + length])
    assert torch.equal(wide[:, 4 : 4 + length], PLAIN.found(x, dy))
    assert (wide[:, :4] == 7).all()
    assert (wide[:, 4 + length :] == 7).all()


@pytest.mark.parametrize("blocks", [Blocks(16, 16, 16), Blocks(32, 64, 32), Blocks(64, 16, 64)])
@pytest.mark.parametrize("case", [PLAIN, CASES["not square"], CASES["copies"]])
def test_the_choice_of_blocks_changes_nothing_but_rounding(case: Case, blocks: Blocks) -> None:
    x, dy = case.drawn()
    found = case.found(x, dy, blocks=blocks)
    torch.testing.assert_close(found.double(), case.expected(x, dy), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype: torch.dtype) -> None:
    x, dy = (part.to(dtype) for part in PLAIN.drawn())
    torch.testing.assert_close(PLAIN.found(x, dy).double(), PLAIN.expected(x, dy), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kernel", [(4, 2), (2, 2), (2, 1), (1, 2)])
def test_a_kernel_with_unequal_padding_reads_zeros_below_and_right(kernel: Pair) -> None:
    """padding="same" with an even kernel: one more row and column after the image than before it."""
    generator = torch.Generator().manual_seed(0)
    before = (kernel[0] - 1) // 2, (kernel[1] - 1) // 2
    after = kernel[0] - 1 - before[0], kernel[1] - 1 - before[1]
    x, dy = torch.randn(2, 2, 6, 7, generator=generator), torch.randn(2, 3, 6, 7, generator=generator)
    found = Case(2, 3, (6, 7), kernel, padding=before).found(x, dy)
    expected = Case(2, 3, (9, 8), kernel).expected(F.pad(x, (before[1], after[1], before[0], after[0])), dy)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_record_that_is_not_finite_stays_so_and_touches_no_other(odd: float) -> None:
    x, dy = PLAIN.drawn()
    before = PLAIN.found(x, dy)
    for part in (x, dy):
        kept = part[1, 0, 2, 2].clone()
        part[1, 0, 2, 2] = odd
        found = PLAIN.found(x, dy)
        part[1, 0, 2, 2] = kept
        assert torch.equal(found[0], before[0])
        assert not found[1].isfinite().all()


def test_no_records_are_no_work() -> None:
    x, dy = PLAIN.drawn()
    assert PLAIN.found(x[:0], dy[:0], PLAIN.empty()[:0]).shape == (0, 135)


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    x, dy = PLAIN.drawn()
    for into in (torch.empty(3, 135), torch.empty(2, 134), torch.empty(2, 135).double(), torch.empty(135, 2).mT):
        with pytest.raises(InputError, match="products"):
            PLAIN.found(x, dy, into)
    with pytest.raises(InputError, match="products"):
        PLAIN.found(x[:1], dy, torch.empty(2, 135))
