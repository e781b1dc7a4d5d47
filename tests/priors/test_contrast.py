"""The contrastive loss equals its sum written out, and falls when partners meet."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adadpigu.errors import InputError
from adadpigu_paper.contrast import contrastive_loss


def by_hand(first: np.ndarray, second: np.ndarray, temperature: float) -> float:
    views = np.concatenate([first, second]).astype(np.float64)
    views /= np.linalg.norm(views, axis=1, keepdims=True)
    count, total = len(views), 0.0
    for i in range(count):
        partner = (i + count // 2) % count
        others = sum(math.exp(views[i] @ views[j] / temperature) for j in range(count) if j != i)
        total -= math.log(math.exp(views[i] @ views[partner] / temperature) / others)
    return total / count


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_the_loss_equals_its_definition(temperature: float) -> None:
    chance = torch.Generator().manual_seed(0)
    first, second = (torch.randn(5, 7, generator=chance) for _ in range(2))
    expected = by_hand(first.numpy(), second.numpy(), temperature)
    assert contrastive_loss(first, second, temperature).item() == pytest.approx(expected, rel=1e-5)


def test_length_does_not_matter() -> None:
    first, second = torch.randn(4, 3), torch.randn(4, 3)
    found = contrastive_loss(first, second, 0.3), contrastive_loss(5 * first, 0.1 * second, 0.3)
    assert found[0].item() == pytest.approx(found[1].item(), rel=1e-4)


def test_views_that_are_all_alike_cost_the_logarithm_of_their_number() -> None:
    same = torch.ones(8, 3)
    assert contrastive_loss(same, same, 0.2).item() == pytest.approx(math.log(15), rel=1e-5)


def test_what_cannot_be_compared_is_named() -> None:
    with pytest.raises(InputError, match=r"\[3, 2\] and \[4, 2\]"):
        contrastive_loss(torch.ones(3, 2), torch.ones(4, 2), 0.1)
    with pytest.raises(InputError, match=r"2 images"):
        contrastive_loss(torch.ones(1, 2), torch.ones(1, 2), 0.1)
    with pytest.raises(InputError, match="temperature=0"):
        contrastive_loss(torch.ones(2, 2), torch.ones(2, 2), 0)
