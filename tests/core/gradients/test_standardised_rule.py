"""The rule of standardised convolutions against the oracle: alone, called twice, with copies, and in a ResNet."""

from __future__ import annotations

import pytest
import torch
from gradient_oracle import assert_matches_oracle, oracle
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_layer_rules import batches, check_engines, dtypes, reductions, seeds, thorough
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.gradients import choose_engine
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine, ruled
from adadpigu.core.gradients.rules import RULES
from adadpigu.core.sensitive import Records, unseal
from adadpigu.models import StandardisedConv2d, make_model
from adadpigu.models.wide_resnet import wide_resnet

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(thorough, max_examples=80)
@given(
    batches,
    st.tuples(st.integers(1, 5), st.integers(1, 4)),
    pairs,
    pairs,
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.booleans(), st.booleans()),
    st.tuples(st.integers(3, 7), st.integers(3, 7)),
    reductions,
    dtypes,
    seeds,
)
def test_standardised_convolution_gradients_equal_the_oracle(
    b: int,
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    options: tuple[bool, bool],
    size: tuple[int, int],
    reduction: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    assume(channels[0] * kernel[0] * kernel[1] >= 4)  # two entries make ±(1, −1)/√2 whatever they are: gradient 0
    gain, bias = options
    layer = StandardisedConv2d(*channels, kernel, stride=stride, padding=padding, gain=gain, bias=bias)
    check_engines(layer, (b, channels[0], *size), reduction, dtype, seed)


class Twice(nn.Module):
    """One layer called twice, so that contributions have to be added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = StandardisedConv2d(3, 3, 3, padding=1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x))).flatten(1)  # type: ignore[no-any-return]


def test_contributions_of_repeated_calls_are_added() -> None:
    torch.manual_seed(0)
    model, inputs = Twice(), torch.randn(4, 3, 5, 5)
    targets = torch.randn(4, 75)
    loss = nn.MSELoss()
    assert_matches_oracle(RuleEngine(model, RecordLoss(loss, None), ""), model, loss, inputs, targets)


@pytest.mark.parametrize("frozen", ["weight", "gain", "bias"])
def test_frozen_parameters_are_left_out(frozen: str) -> None:
    torch.manual_seed(0)
    layer = StandardisedConv2d(2, 3, 3, bias=True)
    layer.get_parameter(frozen).requires_grad_(False)
    model, loss = nn.Sequential(layer, nn.Flatten()), nn.MSELoss()
    inputs, targets = torch.randn(4, 2, 4, 4), torch.randn(4, 12)
    assert_matches_oracle(RuleEngine(model, RecordLoss(loss, None), ""), model, loss, inputs, targets)


def test_a_records_gradient_is_the_mean_over_its_copies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(StandardisedConv2d(2, 4, 3, bias=True), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    inputs, targets = torch.randn(12, 2, 4, 4), torch.tensor([0, 1, 2, 0])
    engine = RuleEngine(model, RecordLoss(F.cross_entropy, None), "")
    found = unseal(engine.per_sample_gradients(Records((inputs, targets), copies=3))).gradients
    rows, _ = oracle(model, F.cross_entropy, inputs, targets.repeat_interleave(3))
    expected = torch.cat([g.reshape(4, 3, -1).mean(dim=1) for g in rows.values()], dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", [1, 3])
def test_filters_have_no_mean_and_norm_one_whatever_the_weights_are(kernel: int) -> None:
    layer = StandardisedConv2d(5, 4, kernel)
    with torch.no_grad():
        layer.weight.mul_(torch.tensor([0.1, 1.0, 10.0, 100.0]).view(4, 1, 1, 1)).add_(3)
    x = torch.rand(2, 5, 8, 8)
    expected = torch.stack(
        [(w - w.mean()) / (w.std(unbiased=False) * w.numel() ** 0.5) for w in layer.weight.detach().double()]
    )
    assert (layer.filters()[0].double() - expected).flatten(1).norm(dim=1).max() < 1e-3
    assert torch.allclose(layer(x).double(), F.conv2d(x.double(), expected), atol=1e-2)


def test_a_narrow_wide_resnet_is_trained_by_layer_rules() -> None:
    torch.manual_seed(0)
    model = wide_resnet(10, 1)((3, 8, 8), 10, nn.Tanh)
    inputs, targets = torch.randn(4, 3, 8, 8), torch.tensor([3, 1, 4, 1])
    engine = choose_engine(model, F.cross_entropy, (inputs, targets))
    assert engine.name == "ghost"
    assert_matches_oracle(engine, model, F.cross_entropy, inputs, targets, tolerance=1e-4)


def test_every_trained_layer_of_the_wide_resnet_has_a_rule() -> None:
    model = make_model("wrn-16-4")
    assert {type(module) for _, module in ruled(model)} == {StandardisedConv2d, nn.GroupNorm, nn.Linear}
    assert all(type(module) in RULES for _, module in ruled(model))
