"""The largest entries of each row: exactly k, the right ones, by sorting in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adadpigu.core.standardising import largest

rows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 5), st.integers(1, 12)),
    elements=st.floats(-3, 3, width=32) | st.sampled_from([0.0, 1.0, -1.0, np.inf, -np.inf]),
)


@given(values=rows, data=st.data())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_exactly_k_of_the_largest_stay_and_of_equal_ones_the_first(values: np.ndarray, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, values.shape[1]))
    found = largest(torch.from_numpy(values), count).numpy()
    for row, kept in zip(values, found, strict=True):
        order = np.argsort(-np.abs(row), kind="stable")
        expected = row.copy()
        expected[order[count:]] = 0
        np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_kind_of_number_is_taken(dtype: torch.dtype) -> None:
    values = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = largest(values, 20)
    assert found.dtype == dtype
    assert (found != 0).sum(dim=1).tolist() == [20] * 3
    assert (found.abs().sum(dim=1) >= torch.topk(values.abs(), 20, dim=1).values.sum(dim=1) - 1e-2).all()


def test_what_is_no_number_stays_so_that_the_clip_can_drop_its_record() -> None:
    values = torch.arange(12.0).reshape(2, 6)
    values[0, 0] = float("nan")
    found = largest(values, 2)
    assert found[0].isnan().any()
    assert found[1].tolist() == [0.0, 0.0, 0.0, 0.0, 10.0, 11.0]


def test_ties_are_dropped_beside_a_row_that_has_too_few_numbers() -> None:
    """A record's own entries alone decide which of them stay."""
    tied, odd = torch.ones(1, 8), torch.full((1, 8), float("nan"))
    assert largest(torch.cat([odd, tied]), 4)[1].tolist() == largest(tied, 4)[0].tolist() == [1.0] * 4 + [0.0] * 4


def test_the_rows_given_are_left_alone() -> None:
    values = torch.randn(4, 9)
    before = values.clone()
    for count in (3, 9, 12):
        largest(values, count)[:] = 7.0
        assert torch.equal(values, before)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.6, 0.999])
@pytest.mark.parametrize("kind", ["normal", "few values", "half zeros", "one column in 29 is large", "constant"])
def test_long_rows_are_searched_to_the_same_end_as_sorted(kind: str, share: float) -> None:
    """Where thresholds are found by counting: with ties, with zeros, and where the sample misleads."""
    values = np.random.default_rng(0).normal(size=(4, 5000)).astype(np.float32)
    if kind == "few values":
        values = np.round(4 * values)
    elif kind == "half zeros":
        values[:, ::2] = 0
    elif kind == "one column in 29 is large":
        values[:, ::29] *= 100
    elif kind == "constant":
        values[:] = 1
    count = int(share * 5000)
    found = largest(torch.from_numpy(values), count).numpy()
    for row, kept in zip(values, found, strict=True):
        expected = row.copy()
        expected[np.argsort(-np.abs(row), kind="stable")[count:]] = 0
        np.testing.assert_array_equal(kept, expected)
