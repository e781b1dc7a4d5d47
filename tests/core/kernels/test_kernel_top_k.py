"""The largest entries of each row by Triton: numpy's stable sort and the torch version as oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from adadpigu.core.kernels import top_k
from adadpigu.core.kernels.top_k import measured_largest
from adadpigu.core.standardising import largest as torch_largest
from adadpigu.errors import InputError


@pytest.fixture(params=["narrow", "wide"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels on the same small rows: the one for long rows is told that none fits in registers."""
    if request.param == "wide":
        monkeypatch.setattr(top_k, "WIDEST", 0)
        monkeypatch.setattr(top_k, "CHUNK", 64)


pytestmark = pytest.mark.usefixtures("_kernel")


def sorted_largest(z: Tensor, count: int) -> Tensor:
    kept = z.numpy().copy()
    for row in kept:
        row[np.argsort(-np.abs(row), kind="stable")[count:]] = 0
    return torch.from_numpy(kept)


def largest(z: Tensor, count: int | Tensor) -> Tensor:
    """What the kernel leaves of rows as they are; what it has measured must be just that."""
    found, squares = measured_largest(z, None, None, count)
    expected = found.double().square().sum(dim=1)
    torch.testing.assert_close(squares, expected, rtol=1e-14, atol=0, equal_nan=True)
    return found


def drawn(b: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(b, n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("b", "n"), [(1, 1), (2, 33)])
def test_exactly_the_largest_stay(b: int, n: int) -> None:
    z = drawn(b, n)
    for count in {n // 3 + 1, n, n + 5}:
        found = largest(z, count)
        assert torch.equal(found, sorted_largest(z, count))
        assert torch.equal(found, torch_largest(z, count))


def test_of_equal_ones_the_first_stay() -> None:
    z = drawn(2, 50).mul(1.5).round().clamp(-2, 2)
    z[1] = 3.0
    for count in (1, 30):
        found = largest(z, count)
        assert torch.equal(found, sorted_largest(z, count))
        assert torch.equal(found, torch_largest(z, count))


def test_every_size_of_number_is_told_apart() -> None:
    z = torch.tensor([[1e-45, -3e-45, 1e-38, -1.0, 1.0000001, 3.4e38, math.inf, -0.0]])
    for count in (1, 4, 6):
        assert torch.equal(largest(z, count), sorted_largest(z, count))


@pytest.mark.parametrize("count", [2, 5])
def test_what_is_no_number_stays_and_no_other_row_is_touched(count: int) -> None:
    z = drawn(3, 40)
    z[0, [7, 39]], z[1, [0, 5, 20]] = -math.nan, math.nan
    found = largest(z, count)
    assert torch.equal(found.isnan(), z.isnan())
    assert torch.equal(found[2:3], sorted_largest(z[2:3], count))
    if count >= 3:
        torch.testing.assert_close(found, torch_largest(z, count), rtol=0, atol=0, equal_nan=True)


def test_what_is_infinite_stays() -> None:
    z = drawn(2, 40)
    z[0, 7], z[1, [0, 20]] = math.inf, -math.inf
    for count in (1, 30):
        assert torch.equal(largest(z, count), sorted_largest(z, count))


def test_the_count_may_lie_on_the_device() -> None:
    z, count = drawn(2, 40), torch.tensor(0)
    for wanted in (7, 41):
        assert torch.equal(largest(z, count.fill_(wanted)), largest(z, wanted))


def test_a_count_of_none_keeps_only_what_is_no_number() -> None:
    z = drawn(3, 40)
    z[1, 3] = math.nan
    found = largest(z, torch.tensor(0))
    assert found[1, 3].isnan()
    assert found.nan_to_num().count_nonzero() == 0


def test_rows_may_lie_apart_and_stay_as_they_are() -> None:
    wide = torch.full((3, 50), math.nan)
    z = drawn(3, 33)
    wide[:, 8:41] = z
    assert torch.equal(largest(wide[:, 8:41], 10), largest(z, 10))
    assert torch.equal(wide[:, 8:41], z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_kind_of_number_is_taken(dtype: torch.dtype) -> None:
    z = drawn(1, 40).to(dtype)
    found = largest(z, 11)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch_largest(z.float(), 11))


@pytest.mark.parametrize("masked", [True, False])
def test_standardising_on_the_way_is_standardising_before(masked: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    rows, center = drawn(2, 45), torch.randn(45, generator=generator, dtype=torch.float64)
    weight = (torch.rand(45, generator=generator, dtype=torch.float64) + 0.1).reciprocal()
    if masked:
        weight[torch.rand(45, generator=generator) < 0.8] = 0.0
    z = (rows - center.float()) * weight.float()
    assert torch.equal(measured_largest(rows, center, weight, 20)[0], torch_largest(z, 20))
    assert torch.equal(measured_largest(rows, None, weight, 20)[0], torch_largest(rows * weight.float(), 20))
    assert torch.equal(measured_largest(rows, center, None, 20)[0], torch_largest(rows - center.float(), 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_measured_is_what_stays(dtype: torch.dtype) -> None:
    rows, center, weight = drawn(2, 70), drawn(1, 70, 1)[0].to(dtype), drawn(1, 70, 2)[0].abs().to(dtype)
    weight[::3] = 0.0
    found, squares = measured_largest(rows, center, weight, 21)
    assert torch.equal(found, torch_largest((rows - center.float()) * weight.float(), 21))
    assert squares.dtype == torch.float64
    torch.testing.assert_close(squares, found.double().square().sum(dim=1), rtol=1e-14, atol=0)


def test_what_is_measured_shows_what_is_not_finite() -> None:
    rows = drawn(3, 40)
    rows[0, 7], rows[1, 3] = math.nan, -math.inf
    found, squares = measured_largest(rows, None, None, 2)
    assert squares[:2].isnan().tolist() == [True, False]
    assert squares[1] == math.inf
    torch.testing.assert_close(squares[2], found[2].double().square().sum(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("n", [127, 129, 1030])
def test_a_row_may_end_anywhere_in_its_words(n: int) -> None:
    """Four words of 32 threads are 128 entries; beyond 1024 there are 64 threads. There are ties in every word."""
    z = drawn(1, n, n).mul(3).round()
    assert torch.equal(largest(z, n // 2), sorted_largest(z, n // 2))


@pytest.mark.parametrize(("b", "n"), [(0, 5), (4, 0), (0, 0)])
def test_nothing_stays_nothing(b: int, n: int) -> None:
    assert largest(torch.empty(b, n), 3).shape == (b, n)
    found, squares = measured_largest(torch.empty(b, n), None, None, 3)
    assert found.shape == (b, n)
    assert torch.equal(squares, torch.zeros(b, dtype=torch.float64))


def test_what_would_be_misread_is_refused() -> None:
    z = drawn(3, 8)
    for odd in (z.double(), z.mT, z[:, ::2]):
        with pytest.raises(InputError, match="largest"):
            largest(odd, 2)
    with pytest.raises(InputError, match="center or weight"):
        measured_largest(z, torch.ones(7), None, 2)
