"""What a loss of a batch is for a record by itself, and which losses have no such meaning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import ModelError
from adadpigu.gradients.losses import RecordLoss

WEIGHT = torch.tensor([1.0, 5.0, 50.0])


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(weight=WEIGHT), partial(F.cross_entropy, weight=WEIGHT)])
def test_class_weights_that_would_cancel_are_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(ModelError, match="reduction='none' or 'sum'"):
        RecordLoss.of(loss, torch.randn(4, 3), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_class_weights_of_each_record_count(reduction: str) -> None:
    outputs, targets = torch.randn(3, 3), torch.tensor([0, 1, 2])
    loss = RecordLoss.of(nn.CrossEntropyLoss(weight=WEIGHT, reduction=reduction), outputs, torch.zeros_like(targets))
    plain = F.cross_entropy(outputs, targets, reduction="none")
    assert torch.allclose(loss(outputs, targets), WEIGHT * plain)
