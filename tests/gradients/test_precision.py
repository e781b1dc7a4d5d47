"""bf16 within the net: gradients near those of float32, the same for every engine, and the bound as tight as ever."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.bounding import GradientSum
from adadpigu.errors import InputError, ModelError
from adadpigu.gradients import GhostEngine, Precision, RuleEngine, choose_engine
from adadpigu.records import Records
from adadpigu.sensitive import unseal


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 5)
    )


def summed(engine: str, precision: Precision, inputs: Tensor, clip: float = 0.1) -> Tensor:
    example = torch.randn(3, 1, 8, 8), torch.arange(3)
    chosen = choose_engine(net(), F.cross_entropy, example, engine=engine, precision=precision)
    assert isinstance(chosen, RuleEngine)
    assert chosen.precision == precision
    targets = torch.arange(len(inputs)) % 5
    return unseal(chosen.clipped_sum(Records((inputs, targets)), GradientSum(clip_norm=clip)))


@pytest.mark.parametrize("engine", ["ghost", "materialised"])
def test_gradients_are_near_those_of_float32_and_not_the_same(engine: str) -> None:
    inputs = torch.randn(20, 1, 8, 8)
    short, long = summed(engine, "bf16", inputs), summed(engine, "float32", inputs)
    assert 1e-4 < float((short - long).norm() / long.norm()) < 0.03


def test_engines_agree_to_the_precision_of_float32() -> None:
    inputs = torch.randn(20, 1, 8, 8)
    torch.testing.assert_close(
        summed("ghost", "bf16", inputs), summed("materialised", "bf16", inputs), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 3e38])
def test_no_record_adds_more_than_the_bound(scale: float) -> None:
    inputs = torch.randn(6, 1, 8, 8) * scale
    for record in inputs:
        assert float(summed("ghost", "bf16", record[None]).norm()) <= 0.1


def test_a_model_without_rules_and_an_unknown_precision_are_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    example = torch.randn(3, 4), torch.arange(3)
    with pytest.raises(ModelError, match="bf16"):
        choose_engine(Scaled(), F.cross_entropy, example, precision="bf16")
    with pytest.raises(InputError, match="float16"):
        choose_engine(nn.Linear(4, 4), F.cross_entropy, example, precision="float16")  # type: ignore[arg-type]
    assert isinstance(choose_engine(nn.Linear(4, 4), F.cross_entropy, example), GhostEngine)
