"""Clipped sums of large tables that are looked up: rows built by the layer rules as oracle, and the bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients.ghost import EmbeddingLayer, GhostEngine
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.layout import Slot
from adadpigu.core.sensitive import Records, unseal

IDS, WIDTH = 1100, 64


class Words(nn.Module):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.table, self.leave = nn.Embedding(IDS, WIDTH, padding_idx=padding), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.leave(torch.tanh(self.table(x)).mean(1))
        return found


def asked(size: int, kind: str) -> GradientSum:
    if kind == "plain":
        return GradientSum(clip_norm=0.1)
    generator = torch.Generator().manual_seed(1)
    return GradientSum(
        clip_norm=0.1,
        center=0.001 * torch.randn(size, generator=generator, dtype=torch.float64) if "α" in kind else None,
        scale=torch.rand(size, generator=generator, dtype=torch.float64) + 0.5 if "w" in kind else None,
        active=torch.rand(size, generator=generator) < 0.6 if "m" in kind else None,
    )


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("kind", ["plain", "α", "w", "αwm"])
def test_sums_are_those_of_the_rows(kind: str, padding: int | None, copies: int) -> None:
    torch.manual_seed(0)
    model = Words(padding)
    inputs, targets = torch.randint(0, 9, (4 * copies, 7)), torch.tensor([0, 1, 2, 0])
    query = asked(sum(parameter.numel() for parameter in model.parameters()), kind)
    loss = RecordLoss.of(nn.CrossEntropyLoss(), torch.zeros(2, 3), torch.tensor([0, 1]))
    records = Records((inputs, targets), copies=copies)
    engines = [kind(model, loss, "") for kind in (GhostEngine, RuleEngine)]
    found, expected = [unseal(engine.clipped_sum(records, query)) for engine in engines]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def layer(ids: Tensor, rows: Tensor, weight: Tensor | None, center: Tensor | None) -> EmbeddingLayer:
    return EmbeddingLayer(Slot("w", torch.Size((5, 3)), 0, 15), ids, rows, weight, center)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_no_record_adds_more_than_the_bound_where_its_rows_cancel_the_centre(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    center = scale * torch.randn(5, 3, generator=generator).double()
    weight = torch.rand(5, 3, generator=generator, dtype=torch.float64) + 0.1
    ids = torch.arange(5)[None]
    rows = (center * (1 + 1e-8)).float()[None]
    made = layer(ids, rows, weight, center)
    exact = (rows[0].numpy().astype(np.longdouble) - center.numpy()) * weight.numpy()
    found = float(made.squares().sqrt())
    assert found >= float(np.sqrt((exact**2).sum()))
    assert float(made.total(torch.tensor([0.5 / found]).double()).norm()) <= 0.5 * (1 + 1e-12)


def test_ids_that_stand_again_are_added_before_they_are_measured() -> None:
    ids, rows = torch.tensor([[2, 2, 4, -1]]), torch.tensor([[[3.0, 0, 0], [1.0, 0, 0], [0, 3.0, 0], [9.0, 9, 9]]])
    made = layer(ids, rows, None, None)
    assert float(made.squares()) == pytest.approx(16 + 9)
    total = made.total(torch.ones(1).double()).view(5, 3)
    assert total[2].tolist() == [4, 0, 0]
    assert total[4].tolist() == [0, 3, 0]
    assert total.count_nonzero() == 2


def test_a_record_that_is_not_finite_is_left_out() -> None:
    rows = torch.ones(2, 2, 3)
    rows[1, 0, 0] = torch.nan
    made = layer(torch.tensor([[0, 1], [1, 1]]), rows, None, None)
    assert made.squares().isfinite().tolist() == [True, False]
    assert made.total(torch.tensor([1.0, 0.0]).double()).isfinite().all()
