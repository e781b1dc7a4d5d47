"""Copies of a record: every engine's gradient is the mean over them, by the float64 oracle."""

from __future__ import annotations

import pytest
import torch
from gradient_oracle import oracle
from torch import nn
from torch.nn import functional as F

from adadpigu.core.gradients.engine import FunctionalEngine, GradientEngine, LoopEngine
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.sensitive import Records, unseal


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )


@pytest.mark.parametrize("kind", [RuleEngine, FunctionalEngine, LoopEngine])
@pytest.mark.parametrize("copies", [1, 2, 5])
def test_a_records_gradient_is_the_mean_over_its_copies(kind: type[GradientEngine], copies: int) -> None:
    model, generator = net(), torch.Generator().manual_seed(1)
    inputs = torch.randn(6 * copies, 1, 8, 8, generator=generator)
    targets = torch.randint(10, (6,), generator=generator)
    loss = RecordLoss.of(F.cross_entropy, torch.zeros(3, 10), torch.zeros(3, dtype=torch.long))
    engine = kind(model, loss, "")
    records = Records((inputs, targets), copies=copies)
    found = unseal(engine.per_sample_gradients(records))
    rows, losses = oracle(model, F.cross_entropy, inputs, targets.repeat_interleave(copies))
    expected = torch.cat([g.reshape(6, copies, -1).mean(dim=1) for g in rows.values()], dim=1)
    torch.testing.assert_close(found.gradients.double(), expected.double(), rtol=1e-4, atol=1e-6)
    means = losses.reshape(6, copies).mean(dim=1).float()
    torch.testing.assert_close(found.losses, means)
    torch.testing.assert_close(unseal(engine.per_record_losses(records)), means)
