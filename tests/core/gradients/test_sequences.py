"""Linear layers at many positions, never built: equal to built rows, and bounded where rounding could hide a record."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import ghost, rule_engine
from adadpigu.core.gradients.ghost import GhostEngine, SequenceLayer
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.layout import Slot
from adadpigu.core.sensitive import Presence, Records, unseal

LOSS = RecordLoss(F.cross_entropy, None)
POSITIONS, WIDTH = 5, 12


@pytest.fixture(autouse=True)
def every_weight_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ghost, "_WIDE", 1)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.deep, self.leave = nn.Linear(WIDTH, 20), nn.Linear(20, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(torch.tanh(self.deep(torch.tanh(self.enter(x)))).mean(1))
        return out


def net() -> nn.Module:
    torch.manual_seed(0)
    return Tokens()


def asked(size: int, kind: str) -> GradientSum:
    generator = torch.Generator().manual_seed(1)
    parts: dict[str, Any] = {
        "plain": {},
        "masked": {"active": torch.rand(size, generator=generator) < 0.6},
        "standardised": {
            "active": torch.rand(size, generator=generator) < 0.6,
            "center": 0.01 * torch.randn(size, generator=generator).double(),
            "scale": 0.1 + torch.rand(size, generator=generator).double(),
        },
    }
    return GradientSum(clip_norm=0.05, **parts[kind])


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "masked", "standardised"])
def test_the_sum_is_that_of_built_rows(kind: str, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    inputs, targets = torch.randn(9 * copies, POSITIONS, WIDTH), torch.arange(9)
    ghost, built = GhostEngine(model, LOSS, ""), RuleEngine(model, LOSS, "")
    query = asked(built.layout.size, kind)
    present = Presence(torch.arange(9) != 4)
    records = Records((inputs, targets), copies=copies, present=present)
    expected = unseal(built.clipped_sum(records, query))
    for size in (8 * 2**20, 3000, 1):
        monkeypatch.setattr(rule_engine, "_SLICE_BYTES", {"cpu": size})
        torch.testing.assert_close(unseal(ghost.clipped_sum(records, query)), expected, rtol=1e-4, atol=1e-7)


def test_large_nets_are_put_together_one_weight_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from adadpigu.core.gradients import rule_engine

    model, query = net(), asked(622 + 0, "plain")
    records = Records((torch.randn(6, POSITIONS, WIDTH), torch.arange(6)))
    engine = GhostEngine(model, LOSS, "")
    whole = unseal(engine.clipped_sum(records, query))
    monkeypatch.setattr(rule_engine, "LARGE", 1)
    assert torch.equal(unseal(engine.clipped_sum(records, query)), whole)


def cancelling(scale: float, wobble: float) -> tuple[Tensor, Tensor]:
    """Two positions whose gradients cancel but for rounding: norms in float32 could see nothing of them."""
    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn(20, generator=generator), torch.randn(WIDTH, generator=generator)
    left = torch.stack([a * scale, -a * scale * (1 + wobble)])[None]
    right = torch.stack([b * scale, b * scale])[None]
    return left, right


@pytest.mark.parametrize("kind", ["plain", "standardised"])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e15])
@pytest.mark.parametrize("wobble", [0.0, 1e-7, 3e-7, 1e-4])
def test_no_record_adds_more_than_the_bound_where_positions_cancel(wobble: float, scale: float, kind: str) -> None:
    left, right = cancelling(scale, wobble)
    weight = center = None
    if kind == "standardised":
        generator = torch.Generator().manual_seed(3)
        weight = (0.1 + 30 * torch.rand(20, WIDTH, generator=generator)).double()
        center = torch.randn(20, WIDTH, generator=generator).double()
    layer = SequenceLayer(Slot("w", torch.Size((20, WIDTH)), 0, 20 * WIDTH), left, right, weight, center)
    found = float(layer.squares().sqrt())
    exact = left[0].double().mT @ right[0].double()
    exact = exact if center is None else exact - center
    exact = exact if weight is None else exact * weight
    assert found >= float(exact.norm())
    factor = torch.tensor([0.5 / found], dtype=torch.float64)
    assert float(layer.total(factor).norm()) <= 0.5 * (1 + 1e-12)


def test_the_guard_is_what_keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: norms as they are rounded. A record that cancels in float32 then passes the clip."""
    monkeypatch.setattr(torch, "finfo", lambda _: type("Exact", (), {"eps": 0.0, "tiny": 0.0}))
    left, right = cancelling(1e4, 3e-7)
    ones = torch.ones(20, WIDTH, dtype=torch.float64)
    layer = SequenceLayer(Slot("w", torch.Size((20, WIDTH)), 0, 20 * WIDTH), left, right, ones, None)
    found = float(layer.squares().sqrt())
    exact = left[0].double().mT @ right[0].double()
    assert found < float(exact.norm())


def test_a_record_that_is_not_finite_is_dropped() -> None:
    model = net()
    inputs, targets = torch.randn(5, POSITIONS, WIDTH), torch.arange(5)
    engine = GhostEngine(model, LOSS, "")
    query = asked(engine.layout.size, "standardised")
    odd = inputs.clone()
    odd[2] = torch.nan
    keep = [0, 1, 3, 4]
    expected = unseal(engine.clipped_sum(Records((inputs[keep], targets[keep])), query))
    torch.testing.assert_close(unseal(engine.clipped_sum(Records((odd, targets)), query)), expected)
