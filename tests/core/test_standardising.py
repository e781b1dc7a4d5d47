"""Which entries of a record stay, counted by hand; the rest of z is held to numpy in `test_bounding.py`."""

from __future__ import annotations

import pytest
import torch

from adadpigu.core.bounding import GradientSum
from adadpigu.core.standardising import Standardiser, largest
from adadpigu.errors import InputError

CPU = torch.device("cpu")


def test_top_k_keeps_exactly_k_of_the_active_coordinates_even_under_ties() -> None:
    rows = torch.ones(3, 10)
    kept = Standardiser(GradientSum(clip_norm=1.0, top_k=0.35), 10, device=CPU).widened(rows)
    assert (kept != 0).sum(dim=1).tolist() == [3, 3, 3]
    query = GradientSum(clip_norm=100.0, active=torch.arange(6) < 4, top_k=0.5)
    z = Standardiser(query, 6, device=CPU).widened(torch.tensor([[1.0, -9.0, 3.0, 2.0, 100.0, 100.0]]))
    assert z.tolist() == [[0.0, -9.0, 3.0, 0.0, 0.0, 0.0]]


def test_top_k_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"top_k=0.1 keeps none of 4"):
        Standardiser(GradientSum(clip_norm=1.0, top_k=0.1), 4, device=CPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_largest_of_short_numbers_are_selected_in_float32(dtype: torch.dtype) -> None:
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    standardiser = Standardiser(GradientSum(top_k=0.5, clip_norm=1.0), 40, device=torch.device("cpu"))
    found = torch.cat([z.clone() for _, z, _ in standardiser.selected(rows)])
    assert torch.equal(found, largest(rows.double(), 20))
