"""Habits of options: optimiser classes, devices as objects, nothing but data and model; what has no effect is told."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from record_oracle import N
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness


def points(count: int = N) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 4), torch.arange(count) % 3


def trained(net: nn.Module, **options: Any) -> Tensor:
    net = copy.deepcopy(net)
    settings: dict[str, Any] = {"records": N, "batch_size": 8, "steps": 3, "noise_multiplier": 1.0, "method": "dpsgd"}
    ad.train(net, points(), randomness=ReproducibleRandomness(1), quiet=True, **{**settings, **options})
    return torch.cat([parameter.detach().cpu().flatten() for parameter in net.parameters()])


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
@pytest.mark.parametrize("given", [{}, {"lr": 0.5}, {"lr": 1.0, "weight_decay": 0.1}])
def test_an_optimizer_class_is_made_with_the_options_given_and_its_own_defaults(kind: Any, given: Any) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    asked = trained(net, optimizer=lambda parameters: kind(parameters, **given))
    assert torch.equal(trained(net, optimizer=kind, **given), asked)


def test_momentum_reaches_a_class_that_takes_it_and_is_refused_by_one_that_does_not() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    asked = trained(net, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    assert torch.equal(trained(net, optimizer=torch.optim.SGD, lr=0.1, momentum=0.9), asked)
    with pytest.raises(ad.InputError, match="momentum"):
        trained(net, optimizer=torch.optim.Adam, momentum=0.9)


IDLE: dict[str, dict[str, Any]] = {
    "lr=0.5 does nothing with optimizer=": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "lr": 0.5},
    "momentum=0.5 does nothing with optimizer='adam'": {"optimizer": "adam", "lr": 0.1, "momentum": 0.5},
    "clip_stability=0.5 does nothing with clipping='flat'": {"clip_stability": 0.5},
    "shift_step=2 does nothing with shift=0": {"shift_step": 2},
    "evaluate_every=1 does nothing with test=None": {"evaluate_every": 1},
    "diagnostics=True does nothing with out=None": {"diagnostics": True},
}


@pytest.mark.parametrize("words", IDLE)
def test_an_option_without_effect_warns_in_one_line(words: str) -> None:
    with pytest.warns(UserWarning, match="does nothing with") as told:
        trained(nn.Linear(4, 3), **IDLE[words])
    (line,) = [str(each.message) for each in told]
    assert line.startswith(words)
    assert "; allowed with " in line
    assert "\n" not in line


@pytest.mark.filterwarnings("error::UserWarning")
def test_options_that_something_looks_at_and_those_that_are_off_do_not_warn() -> None:
    trained(nn.Linear(4, 3), optimizer="rmsprop", lr=0.01, momentum=0.5, clipping="automatic", clip_stability=0.1)
    trained(nn.Linear(4, 3), optimizer="adam", lr=0.01, momentum=0.0, diagnostics=False, evaluate_every=None)
    trained(nn.Linear(4, 3), optimizer=torch.optim.SGD, lr=0.1, momentum=0.5, weight_decay=0.1)


def test_a_device_may_be_an_object() -> None:
    net = nn.Linear(4, 3)
    assert trained(net, device=torch.device("cpu")).isfinite().all()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    given: dict[str, Any] = {"records": N, "batch_size": 8, "steps": 1, "method": "dpsgd"}
    assert len(ad.PrivateLoop(net, optimizer, points(), device=torch.device("cpu"), **given)) == 1


@pytest.mark.parametrize(("records", "batch"), [(3, 1), (200, 50), (4000, 512)])
def test_data_and_a_record_count_are_enough_with_the_defaults_of_the_command_line(records: int, batch: int) -> None:
    run = ad.train(nn.Linear(4, 3), points(records), records=records, quiet=True, method="dpsgd", device="cpu")
    assert run.privacy.expected_batch_size == batch
    assert run.steps == -(-20 * records // batch)


def test_few_epochs_of_few_records_need_no_batch_size() -> None:
    assert ad.train(nn.Linear(4, 3), points(200), records=200, epochs=2, quiet=True, device="cpu").steps == 8


@pytest.mark.parametrize("method", ["adadpigu", "dpsgd"])
def test_a_batch_above_the_records_is_named_before_the_method_speaks(method: str) -> None:
    with pytest.raises(ad.InputError, match=r"^batch_size=500 is not between 1 and the declared record count 200$"):
        ad.train(nn.Linear(4, 3), points(200), records=200, epochs=2, batch_size=500, method=method)


def test_parts_of_a_default_batch_are_parts_of_that_batch() -> None:
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = ad.PrivateLoop(net, optimizer, points(40), records=40, steps=1, method="dpsgd", accumulate=5)
    assert loop._session.draws.micro_batches._at_once == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_is_handed_back_where_it_was_unless_a_device_was_named() -> None:
    inputs, _ = points()
    for given, place in (({}, "cpu"), ({"device": "cuda"}, "cuda")):
        net, front = nn.Linear(4, 3), nn.Linear(4, 4).requires_grad_(False)
        settings: dict[str, Any] = {"records": N, "steps": 1, "method": "dpsgd", "quiet": True, **given}
        run = ad.train(net, points(), front=front, **settings)
        assert {parameter.device.type for parameter in run.model.parameters()} == {place}
        assert net.weight.device.type == place
        assert run.model(inputs.to(place)).shape == (N, 3)
