"""bf16 within the net: gradients near those of float32, the same for every engine, and the bound as tight as ever.

A CPU need not have bf16 products (some only claim to), so they are float32 products here, rounded to bf16.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import Precision, choose_engine
from adadpigu.core.gradients.ghost import GhostEngine
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.sensitive import Records, unseal
from adadpigu.errors import ModelError


@pytest.fixture(autouse=True)
def rounded_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within what would be autocast, a linear layer gives bf16."""
    inside, product = [False], F.linear

    @contextlib.contextmanager
    def autocast(*_: Any, dtype: torch.dtype = torch.bfloat16, enabled: bool = True) -> Any:
        assert dtype == torch.bfloat16
        inside[0] = enabled
        yield
        inside[0] = False

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x.float(), weight, bias).bfloat16() if inside[0] else product(x, weight, bias)

    monkeypatch.setattr(torch, "autocast", autocast)
    monkeypatch.setattr(F, "linear", linear)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 5))


def summed(engine: str, precision: Precision, inputs: Tensor, clip: float = 0.1) -> Tensor:
    example = torch.randn(3, 1, 8, 8), torch.arange(3)
    chosen = choose_engine(net(), F.cross_entropy, example, engine=engine)
    assert isinstance(chosen, RuleEngine)
    chosen.precision = precision
    targets = torch.arange(len(inputs)) % 5
    return unseal(chosen.clipped_sum(Records((inputs, targets)), GradientSum(clip_norm=clip)))


@pytest.mark.parametrize("engine", ["ghost", "materialised"])
def test_gradients_are_near_those_of_float32_and_not_the_same(engine: str) -> None:
    inputs = torch.randn(20, 1, 8, 8)
    short, long = summed(engine, "bf16", inputs), summed(engine, "float32", inputs)
    assert 1e-4 < float((short - long).norm() / long.norm()) < 0.03


def test_engines_agree_to_the_precision_of_float32() -> None:
    inputs = torch.randn(20, 1, 8, 8)
    ghost, built = summed("ghost", "bf16", inputs), summed("materialised", "bf16", inputs)
    torch.testing.assert_close(ghost, built, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 3e38])
def test_no_record_adds_more_than_the_bound(scale: float) -> None:
    inputs = torch.randn(6, 1, 8, 8) * scale
    for record in inputs:
        assert float(summed("ghost", "bf16", record[None]).norm()) <= 0.1


def test_a_cpu_and_an_unknown_precision_are_refused() -> None:
    example = torch.randn(3, 4), torch.arange(3)
    with pytest.raises(ModelError, match="precision='bf16' needs a GPU"):
        choose_engine(nn.Linear(4, 4), F.cross_entropy, example, precision="bf16")
    assert isinstance(choose_engine(nn.Linear(4, 4), F.cross_entropy, example), GhostEngine)
