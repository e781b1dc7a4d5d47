"""The optimiser behind the line: fed releases only, leaves no gradient behind, freezes state as well as weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from adadpigu.core.bounding import GradientSum
from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release
from adadpigu.errors import InputError
from adadpigu.training.optimiser import MaskedOptimiser, optimiser_factory
from trials import mask_of

MakeRelease = Callable[..., Release]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def flat(model: nn.Module) -> torch.Tensor:
    return Layout.of(model).read(model)


def test_a_step_equals_the_plain_torch_optimiser_on_the_active_coordinates(release: MakeRelease) -> None:
    ours, theirs = net(), net()
    optimiser = MaskedOptimiser(ours, Layout.of(ours), optimiser_factory("adam", lr=0.1))
    plain = torch.optim.Adam(theirs.parameters(), lr=0.1)
    active = torch.tensor([0, 3, 4, 7])
    for seed in range(4):
        g = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
        made = release(g, GradientSum(clip_norm=float("inf"), active=mask_of(active, 8)))
        optimiser.step(made)
        for parameter, (_, value) in zip(theirs.parameters(), Layout.of(theirs).split(made.value), strict=True):
            parameter.grad = value.clone()
        plain.step()
    assert torch.equal(flat(ours)[active], flat(theirs)[active])
    assert all(p.grad is None for p in ours.parameters())


def test_momentum_of_an_earlier_stage_does_not_move_a_frozen_weight(release: MakeRelease) -> None:
    model = net()
    optimiser = MaskedOptimiser(
        model, Layout.of(model), optimiser_factory("sgd", lr=1.0, momentum=0.9, weight_decay=0.1)
    )
    optimiser.step(release(torch.ones(1, 8)))
    before = flat(model)
    active = torch.tensor([1, 2])
    optimiser.step(release(torch.ones(1, 8), GradientSum(clip_norm=float("inf"), active=mask_of(active, 8))))
    frozen = torch.tensor([0, 3, 4, 5, 6, 7])
    assert torch.equal(flat(model)[frozen], before[frozen])
    assert (flat(model)[active] != before[active]).all()


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_all_layers_but_the_last_have_their_share_of_the_rate(name: str, release: MakeRelease) -> None:
    """The same step with the whole rate, a quarter of which is taken before the last layer; schedules scale both."""
    moved = {}
    for share in (1.0, 0.25):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 2))
        optimiser = MaskedOptimiser(model, Layout.of(model), optimiser_factory(name, lr=0.1, body_lr=share))
        optimiser.scale_lr(0.5)
        before = flat(model)
        optimiser.step(release(torch.arange(1.0, 19.0)[None]))
        moved[share] = flat(model) - before
    assert torch.allclose(moved[0.25][:12], moved[1.0][:12] / 4, rtol=1e-3)
    assert torch.allclose(moved[0.25][12:], moved[1.0][12:])
    with pytest.raises(InputError, match="body_lr=0"):
        optimiser_factory(name, lr=0.1, body_lr=0.0)


def test_p_grad_is_cleared_even_when_the_optimiser_fails(release: MakeRelease) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise RuntimeError("broken")

    model = net()
    optimiser = MaskedOptimiser(model, Layout.of(model), lambda p: Failing(p, lr=1.0))
    with pytest.raises(RuntimeError, match="broken"):
        optimiser.step(release(torch.ones(1, 8)))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["lbfgs", "sparseadam", "sdg"])
def test_optimisers_that_cannot_be_fed_are_refused_by_name(name: str) -> None:
    model = net()
    with pytest.raises(InputError, match="optimizer"):
        MaskedOptimiser(model, Layout.of(model), optimiser_factory(name, lr=0.1))


def test_a_coordinate_that_returns_finds_its_momentum_as_it_left_it(release: MakeRelease) -> None:
    """Steps: all, then without coordinate 0 twice, then all. Coordinate 0 behaves as if the middle never happened."""
    model, twin = net(), net()
    factory = optimiser_factory("sgd", lr=0.1, momentum=0.9, weight_decay=0.1)
    optimiser, plain = (MaskedOptimiser(m, Layout.of(m), factory) for m in (model, twin))
    active = GradientSum(clip_norm=float("inf"), active=mask_of(range(1, 8), 8))
    for m in (optimiser, plain):
        m.step(release(torch.ones(1, 8)))
    for _ in range(2):
        optimiser.step(release(torch.ones(1, 8), active))
    for m in (optimiser, plain):
        m.step(release(torch.ones(1, 8)))
    assert flat(model)[0] == flat(twin)[0]


def test_a_coordinate_frozen_from_the_start_has_no_momentum_when_it_returns(release: MakeRelease) -> None:
    model, twin = net(), net()
    factory = optimiser_factory("sgd", lr=0.1, momentum=0.9, weight_decay=0.1)
    optimiser, plain = (MaskedOptimiser(m, Layout.of(m), factory) for m in (model, twin))
    optimiser.step(release(torch.ones(1, 8), GradientSum(clip_norm=float("inf"), active=mask_of(range(1, 8), 8))))
    optimiser.step(release(torch.ones(1, 8)))
    plain.step(release(torch.ones(1, 8)))
    assert flat(model)[0] == flat(twin)[0]


def test_the_factory_passes_every_setting_on() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 2))]
    sgd = optimiser_factory("SGD", lr=0.3, momentum=0.7, weight_decay=0.01)(parameters)
    assert [sgd.param_groups[0][key] for key in ("lr", "momentum", "weight_decay")] == [0.3, 0.7, 0.01]
    adam = optimiser_factory("adamw", lr=0.2, momentum=0.7)(parameters)
    assert adam.param_groups[0]["lr"] == 0.2


@pytest.mark.parametrize(
    "bad", [{"lr": 0.0}, {"lr": float("nan")}, {"momentum": 1.0}, {"momentum": -0.1}, {"weight_decay": -1.0}]
)
def test_settings_out_of_range_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        optimiser_factory("sgd", **({"lr": 0.1} | bad))


def test_a_snapshot_is_not_moved_by_later_steps(release: MakeRelease) -> None:
    model = net()
    optimiser = MaskedOptimiser(model, Layout.of(model), optimiser_factory("sgd", lr=0.1, momentum=0.9))
    optimiser.step(release(torch.ones(1, 8)))
    state, before = optimiser.snapshot(), flat(model)
    moves = []
    for _ in range(2):
        Layout.of(model).write(model, before)
        optimiser.step(release(torch.ones(1, 8)))
        moves.append(flat(model))
        optimiser.load(state)
    assert torch.equal(moves[0], moves[1])
