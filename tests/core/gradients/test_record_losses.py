"""What a loss of a batch is for a record by itself, and which losses have no such meaning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.errors import ModelError

WEIGHT = torch.tensor([1.0, 5.0, 50.0])


def test_class_weights_that_would_cancel_are_refused() -> None:
    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, weight=WEIGHT)

    with pytest.raises(ModelError, match="reduction='none' or 'sum'"):
        RecordLoss.of(weighted, torch.randn(4, 3), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("make", [nn.CrossEntropyLoss, partial(partial, F.cross_entropy)])
def test_class_weights_of_each_record_multiply_its_loss(
    make: Callable[..., Callable[[Tensor, Tensor], Tensor]], reduction: str
) -> None:
    outputs, targets = torch.randn(3, 3), torch.tensor([0, 1, 2])
    loss = RecordLoss.of(make(weight=WEIGHT, reduction=reduction), outputs, torch.zeros_like(targets))
    plain = F.cross_entropy(outputs, targets, reduction="none")
    assert loss.refusal is None
    assert torch.allclose(loss(outputs, targets), WEIGHT * plain)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_ignored_targets_count_for_nothing_and_a_record_of_none_but_them_has_loss_zero(weight: Tensor | None) -> None:
    outputs, targets = torch.randn(3, 3, 5), torch.randint(3, (3, 5))
    targets[0, 2:], targets[1] = -100, -100
    loss = RecordLoss.of(nn.CrossEntropyLoss(weight=weight), outputs, torch.zeros_like(targets))
    found = loss(outputs, targets)
    each = F.cross_entropy(outputs, targets, weight=weight, reduction="none")
    assert torch.allclose(found, torch.stack([each[0, :2].mean(), torch.zeros(()), each[2].mean()]))
