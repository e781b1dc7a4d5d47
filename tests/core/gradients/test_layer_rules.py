"""Every rule and every engine against the oracle, over shapes, options, batch sizes and reductions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_oracle import assert_matches, assert_matches_oracle, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adadpigu.core.gradients.engine import FunctionalEngine, GradientEngine, LoopEngine
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine

ENGINES: tuple[type[GradientEngine], ...] = (RuleEngine, FunctionalEngine, LoopEngine)
thorough = settings(max_examples=40, deadline=None, derandomize=True, database=None)

batches = st.sampled_from([0, 1, 2, 3, 5])
reductions = st.sampled_from(["mean", "sum", "none"])
dtypes = st.sampled_from([torch.float32, torch.float64])
seeds = st.integers(0, 2**31)


def check_engines(layer: nn.Module, shape: tuple[int, ...], reduction: str, dtype: torch.dtype, seed: int) -> None:
    """One layer, a curved loss on top (so that dy differs between positions), all three engines."""
    torch.manual_seed(seed)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    model = nn.Sequential(layer, nn.Tanh()).to(dtype)
    inputs = torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        targets = torch.randn_like(model(inputs)) if len(inputs) else torch.zeros(shape, dtype=dtype)
    loss = nn.MSELoss(reduction=reduction)
    truth = oracle(model, loss, inputs, targets)
    for engine in ENGINES:
        assert_matches(engine(model, RecordLoss(loss, None), ""), truth, inputs, targets)


@thorough
@given(
    batches,
    st.lists(st.integers(1, 4), max_size=3),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
    reductions,
    dtypes,
    seeds,
)
def test_linear_gradients_equal_the_oracle(
    b: int, middle: list[int], inside: int, outside: int, bias: bool, reduction: str, dtype: torch.dtype, seed: int
) -> None:
    check_engines(nn.Linear(inside, outside, bias=bias), (b, *middle, inside), reduction, dtype, seed)


@st.composite
def convolutions(draw: st.DrawFn, dimensions: int) -> tuple[dict[str, Any], tuple[int, ...]]:
    def several(low: int, high: int) -> tuple[int, ...]:
        return draw(st.tuples(*[st.integers(low, high)] * dimensions))

    kernel, dilation = several(1, 3), several(1, 2)
    padding: Any = draw(st.sampled_from(["number", "same", "valid"]))
    stride = (1,) * dimensions if padding == "same" else several(1, 3)
    if padding == "number":
        padding = several(0, 2)
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    options = {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_size": kernel,
        "dilation": dilation,
        "padding": padding,
        "stride": stride,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    }
    return options, several(5, 8)


@settings(thorough, max_examples=100)
@given(batches, convolutions(2), reductions, dtypes, seeds)
def test_conv2d_gradients_equal_the_oracle(
    b: int, convolution: tuple[dict[str, Any], tuple[int, ...]], reduction: str, dtype: torch.dtype, seed: int
) -> None:
    options, size = convolution
    check_engines(nn.Conv2d(**options), (b, options["in_channels"], *size), reduction, dtype, seed)


@settings(thorough, max_examples=80)
@given(batches, convolutions(1) | convolutions(3), reductions, dtypes, seeds)
def test_gradients_of_other_convolutions_equal_the_oracle(
    b: int, convolution: tuple[dict[str, Any], tuple[int, ...]], reduction: str, dtype: torch.dtype, seed: int
) -> None:
    options, size = convolution
    kind = nn.Conv1d if len(size) == 1 else nn.Conv3d
    check_engines(kind(**options), (b, options["in_channels"], *size), reduction, dtype, seed)


@thorough
@given(
    batches,
    st.lists(st.integers(1, 3), max_size=2),
    st.lists(st.integers(2, 4), min_size=1, max_size=2),
    st.booleans(),
    reductions,
    dtypes,
    seeds,
)
def test_layer_norm_gradients_equal_the_oracle(
    b: int, middle: list[int], shape: list[int], bias: bool, reduction: str, dtype: torch.dtype, seed: int
) -> None:
    check_engines(nn.LayerNorm(shape, bias=bias), (b, *middle, *shape), reduction, dtype, seed)


@thorough
@given(
    batches,
    st.lists(st.integers(1, 3), max_size=2),
    st.lists(st.integers(2, 4), min_size=1, max_size=2),
    st.sampled_from([None, 1e-5, 0.5]),
    reductions,
    dtypes,
    seeds,
)
def test_rms_norm_gradients_equal_the_oracle(
    b: int, middle: list[int], shape: list[int], eps: float | None, reduction: str, dtype: torch.dtype, seed: int
) -> None:
    check_engines(nn.RMSNorm(shape, eps=eps), (b, *middle, *shape), reduction, dtype, seed)


@thorough
@given(batches, st.integers(1, 3), st.lists(st.integers(2, 4), min_size=1, max_size=3), reductions, dtypes, seeds)
def test_instance_norm_gradients_equal_the_oracle(
    b: int, channels: int, size: list[int], reduction: str, dtype: torch.dtype, seed: int
) -> None:
    kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[len(size) - 1]
    check_engines(kind(channels, affine=True), (b, channels, *size), reduction, dtype, seed)


@thorough
@given(
    batches, st.integers(1, 3), st.integers(2, 3), st.lists(st.integers(1, 4), max_size=3), reductions, dtypes, seeds
)
def test_group_norm_gradients_equal_the_oracle(
    b: int, groups: int, per_group: int, size: list[int], reduction: str, dtype: torch.dtype, seed: int
) -> None:
    channels = groups * per_group
    check_engines(nn.GroupNorm(groups, channels), (b, channels, *size), reduction, dtype, seed)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_class_weights_do_not_mix_records(engine: type[GradientEngine], reduction: str) -> None:
    """A weighted mean over the batch divides by the weights of all its records; ours is over a batch of one."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 10.0]), reduction=reduction)
    inputs, targets = torch.randn(6, 4), torch.tensor([0, 1, 2, 2, 1, 0])
    assert_matches_oracle(engine(model, RecordLoss(loss, None), ""), model, loss, inputs, targets)


def test_a_loss_that_vmap_refuses_runs_record_by_record() -> None:
    def stubborn(output: Tensor, target: Tensor) -> Tensor:
        return output.square().sum() * (2.0 if target.sum().item() > 0 else 0.5)

    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    loss = RecordLoss.of(stubborn, model(inputs), targets)
    assert loss.refusal is not None
    assert_matches_oracle(RuleEngine(model, loss, ""), model, stubborn, inputs, targets)
