"""Hooks of the user's own are named before the first draw and in the statement, and none comes later unnamed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import spectral_norm
from torch.utils.data import Dataset, Subset, TensorDataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.training.guarding import hooks_of

SEEN: list[float] = []


def look(*_: object) -> None:
    """As users write them: what it sees stays."""
    SEEN.append(1.0)


class Looking:
    """A hook that is an object."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, *_: object) -> None:
        return None


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def loop_for(model: nn.Module, **changes: Any) -> tuple[ad.PrivateLoop, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(32, 5), torch.randint(3, (32,))
    settings: dict[str, Any] = {"records": 32, "batch_size": 8, "steps": 2, "method": "dpsgd", "noise_multiplier": 1.0}
    settings["randomness"] = ReproducibleRandomness(5)
    return ad.PrivateLoop(model, optimizer, data, **{**settings, **changes}), optimizer


def _parameter(model: nn.Sequential) -> Any:
    return model[0].weight


PUT: dict[str, Callable[[nn.Sequential], Any]] = {
    "forward hook look on '0'": lambda model: model[0].register_forward_hook(look),
    "forward pre-hook look on '2'": lambda model: model[2].register_forward_pre_hook(functools.partial(look, 1)),
    "forward hook Looking on the model": lambda model: model.register_forward_hook(Looking()),
    "backward hook look on '1'": lambda model: model[1].register_full_backward_hook(look),
    "gradient hook look on '0.weight'": lambda model: _parameter(model).register_hook(look),
    "forward hook look on all modules": lambda model: register_module_forward_hook(look),
}


@pytest.mark.parametrize("told", PUT)
def test_a_hook_is_warned_of_and_the_statement_says_that_it_is_not_covered(told: str) -> None:
    model = net()
    handle = PUT[told](model)
    try:
        with pytest.warns(UserWarning, match=f"hooks of the user's own keep or write.*: {told}; the statement says"):
            loop, optimizer = loop_for(model)
        for batch in loop:
            batch.backward()
            optimizer.step()
    finally:
        handle.remove()
    assert [text for text in loop.run.privacy.not_covered if text.endswith(told)]


def test_a_hook_of_the_loss_is_named_too() -> None:
    loss = nn.CrossEntropyLoss()
    loss.register_forward_hook(look)
    with pytest.warns(UserWarning, match="forward hook look on '<loss>'"):
        loop_for(net(), loss=loss)


def test_hooks_of_libraries_are_part_of_their_layers() -> None:
    model = net()
    spectral_norm(model[0])
    assert len(model[0]._forward_pre_hooks) == 1
    assert hooks_of(model) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop, _ = loop_for(net())
    assert not [text for text in loop.finish().privacy.not_covered if "hooks" in text]


@pytest.mark.parametrize("told", ["forward hook look on '0'", "gradient hook look on '0.weight'"])
def test_a_hook_that_is_put_on_during_the_run_is_named_from_then_on(told: str) -> None:
    model, handles = net(), list[Any]()
    loop, optimizer = loop_for(model)
    try:
        with pytest.warns(UserWarning, match=f"hooks of the user's own keep or write.*: {told}"):  # noqa: PT031
            for batch in loop:
                handles += [] if handles else [PUT[told](model)]
                batch.backward()
                optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert [text for text in loop.run.privacy.not_covered if text.endswith(told)]


class Noted(Dataset[tuple[Tensor, Tensor]]):
    """A data set of the user's own."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        SEEN.append(place)
        return torch.full((5,), float(place)), torch.tensor(place % 3)


def noting(output: Tensor, target: Tensor) -> Tensor:
    """A loss of the user's own."""
    loss = nn.functional.cross_entropy(output, target)
    look(loss)
    return loss


def test_the_statement_names_a_loss_and_a_data_set_of_the_users_own() -> None:
    how: dict[str, Any] = {"records": 32, "batch_size": 8, "steps": 1, "method": "dpsgd", "noise_multiplier": 1.0}
    told = "what code of your own keeps or writes of the records that it sees: "
    data = torch.randn(32, 5), torch.randint(3, (32,))
    own = ad.train(net(), Subset(Noted(), range(32)), loss=functools.partial(noting), **how).privacy.not_covered
    assert [line for line in own if line.startswith(told)] == [f"{told}loss noting, data set Noted"]
    plain = ad.train(net(), Subset(TensorDataset(*data), range(32)), loss=nn.CrossEntropyLoss(), **how)
    assert not [line for line in plain.privacy.not_covered if line.startswith(told)]


def test_train_names_hooks_in_its_statement_too() -> None:
    model = net()
    model[0].register_forward_hook(look)
    data = torch.randn(32, 5), torch.randint(3, (32,))
    with pytest.warns(UserWarning, match="forward hook look on '0'"):
        run = ad.train(model, data, records=32, batch_size=8, steps=2, method="dpsgd", noise_multiplier=1.0)
    assert any("forward hook look on '0'" in line for line in run.privacy.not_covered)
    loss = nn.CrossEntropyLoss()
    loss.register_forward_hook(look)
    with pytest.warns(UserWarning, match="forward hook look on '<loss>'"):
        ad.train(net(), data, loss=loss, records=32, batch_size=8, steps=2, method="dpsgd", noise_multiplier=1.0)
    plain = ad.train(net(), data, records=32, batch_size=8, steps=2, method="dpsgd", noise_multiplier=1.0)
    assert not any("hook" in line for line in plain.privacy.not_covered)
