"""What a model or a loss keeps of the records it saw is taken away again, or refused where it is out of reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.gradients import choose_engine
from adadpigu.core.sensitive import Records, unseal
from adadpigu.errors import ModelError
from adadpigu.training.distributed.sharded_training import ShardedEngine


class Diary(nn.Module):
    """Leaves what it saw in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.log: list[Tensor] = []
        self.largest = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x.detach())
        self.features = x
        self.largest = max(self.largest, float(x.detach().max()))
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("sharded", [False, True])
def test_what_a_forward_leaves_in_plain_attributes_does_not_stay(sharded: bool) -> None:
    model = Diary()
    engine: Any = choose_engine(model, nn.MSELoss(), (torch.zeros(4, 4), torch.zeros(4, 3)))
    if sharded:
        engine = ShardedEngine(engine, cast(Any, SimpleNamespace(layout=engine.layout)))
    with engine.watched():
        model(torch.full((5, 4), 777.25))
    assert model.log == []
    assert model.largest == 0.0
    assert not hasattr(model, "features")


class Holder(nn.Module):
    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.register_buffer("held", held)


class Growing(nn.Module):
    """Adds a layer at each forward, which holds what it saw; another one by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 3), nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(Holder(x.detach().clone()))
        self.latest = Holder(x.detach().mean(dim=0))
        out: Tensor = self.layer(x)
        return out


def test_layers_that_a_forward_adds_do_not_stay() -> None:
    model = Growing()
    engine = choose_engine(model, nn.MSELoss(), (torch.zeros(4, 4), torch.zeros(4, 3)))
    with engine.watched():
        model(torch.full((5, 4), 777.25))
    assert [name for name, _ in model.named_modules()] == ["", "layer", "seen"]


@pytest.mark.parametrize(
    "constant",
    [torch.eye(4).to_sparse(), torch.zeros(1).expand(4), torch.empty(3, device="meta"), np.arange(3.0)[0]],
    ids=["sparse", "expanded", "meta", "numpy scalar"],
)
def test_constants_of_any_kind_may_lie_in_a_list_of_the_model(constant: Any) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 3))
    model.constants = [constant]
    engine = choose_engine(model, nn.MSELoss(), (torch.zeros(4, 4), torch.zeros(4, 3)))
    with engine.watched():
        model(torch.ones(5, 4))
    assert model.constants[0] is constant


class LargestSoFar:
    """A loss that divides by the largest loss it has met."""

    def __init__(self) -> None:
        self.largest = 0.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        loss = (output - target).square().sum()
        self.largest = max(self.largest, float(loss.detach()))
        return loss / (self.largest + 1e-9)


def test_a_loss_forgets_each_record_before_the_next() -> None:
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(4, 4, generator=generator), torch.randn(4, 3, generator=generator)
    loss, model = LargestSoFar(), nn.Linear(4, 3)
    found = unseal(choose_engine(model, loss, example).per_record_losses(Records(example)))
    torch.testing.assert_close(found, torch.ones(4))
    assert loss.largest == 0.0


def test_a_loss_that_remembers_out_of_reach_is_refused() -> None:
    seen: list[float] = [0.0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = (output - target).square().sum()
        seen.append(max(seen[-1], float(value.detach())))
        return value / (seen[-1] + 1e-9)

    example = torch.arange(1.0, 5.0)[:, None].repeat(1, 4), torch.zeros(4, 3)
    model = nn.Linear(4, 3)
    nn.init.ones_(model.weight)
    with pytest.raises(ModelError, match=r"<loss>.*records before it"):
        choose_engine(model, loss, example)


@pytest.mark.parametrize("kind", ["each pair is compared", "every second record is punished"])
def test_a_memory_that_comes_round_within_the_example_is_refused(kind: str) -> None:
    """After an even number of records it is as before; only the order of records shows it."""
    seen: list[Tensor] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = (output - target).square().sum()
        if not seen:
            seen.append(output.detach() * float(output.detach().sum() != torch.inf))
            return value
        earlier = seen.pop() if kind == "each pair is compared" else seen.pop() * 0
        return value + 100 * (output - earlier).square().sum()

    generator = torch.Generator().manual_seed(0)
    example = torch.randn(4, 4, generator=generator), torch.randn(4, 3, generator=generator)
    with pytest.raises(ModelError, match=r"<loss>.*records before it"):
        choose_engine(nn.Linear(4, 3), loss, example)


class Hidden(nn.Module):
    """Keeps data where names begin with an underscore, in nested containers, in objects and in arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self._log: dict[str, list[Tensor]] = {"seen": []}
        self.meter = LargestSoFar()
        self.histogram = np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self._log["seen"].append(x.detach())
        self._last = x.detach()
        self.meter.largest = 5.0
        self.histogram += 1
        out: Tensor = self.layer(x)
        return out


def test_nothing_stays_in_nested_or_underscored_places() -> None:
    model = Hidden()
    engine = choose_engine(model, nn.MSELoss(), (torch.zeros(4, 4), torch.zeros(4, 3)))
    engine.per_sample_gradients(Records((torch.full((5, 4), 777.25), torch.zeros(5, 3))))
    assert model._log == {"seen": []}
    assert not hasattr(model, "_last")
    assert model.meter.largest == 0.0
    assert not model.histogram.any()


@dataclass(slots=True)
class Meter:
    """As users write them."""

    total: float
    seen: Tensor


class Keeper(nn.Module):
    """Writes what it sees to a tensor that is no buffer of its own, where that is larger than what stands there."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.least = least
        self.maps, self.running, self.pair = {"h": torch.zeros(())}, [torch.zeros(())], (torch.zeros(()),)
        self.object, self.slots = SimpleNamespace(seen=torch.zeros(())), Meter(0.0, torch.zeros(()))
        self.hidden = [nn.BatchNorm1d(1)]
        self.kept: Callable[[Keeper], Tensor] = lambda net: net.maps["h"]

    def forward(self, x: Tensor) -> Tensor:
        largest = x.detach().max()
        self.slots.total += 1
        if largest > max(self.least, float(self.kept(self))):
            self.kept(self).copy_(largest.reshape(self.kept(self).shape))
        out: Tensor = self.layer(x)
        return out


KEPT: dict[str, Callable[[Keeper], Tensor]] = {
    "maps['h']": lambda net: net.maps["h"],
    "running[0]": lambda net: net.running[0],
    "pair[0]": lambda net: net.pair[0],
    "object.seen": lambda net: cast(Tensor, net.object.seen),
    "slots.seen": lambda net: net.slots.seen,
    "hidden[0].running_mean": lambda net: cast(Tensor, net.hidden[0].running_mean),
}


@pytest.mark.parametrize("place", KEPT)
def test_a_forward_may_not_write_to_a_tensor_wherever_the_model_holds_it(place: str) -> None:
    """Neither on an example, however far its numbers go, nor once private records come."""
    example = torch.randn(4, 4), torch.zeros(4, 3)
    for least in (-1e9, 1e3):
        model = Keeper(least)
        model.kept = KEPT[place]
        with pytest.raises(ModelError, match="a training forward changes") as refused:
            choose_engine(model, nn.MSELoss(), example)
        assert place in str(refused.value)
        assert KEPT[place](model) == 0
    model = Keeper(1e6)
    model.kept = KEPT[place]
    engine = choose_engine(model, nn.MSELoss(), example)
    engine.per_sample_gradients(Records((torch.full((5, 4), 777.25), torch.zeros(5, 3))))
    assert model.slots.total == 0.0
    with pytest.raises(ModelError, match="a training forward changes"):
        engine.per_sample_gradients(Records((torch.full((5, 4), 1e7), torch.zeros(5, 3))))


def test_a_loss_may_not_write_to_its_buffers() -> None:
    class Smoothed(nn.Module):
        total: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            loss = (output - target).square().mean()
            self.total.copy_(0.9 * self.total + 0.1 * loss.detach())
            return loss

    with pytest.raises(ModelError, match=r"^'<loss>' \(Smoothed\): a training forward changes buffer 'total'"):
        choose_engine(nn.Linear(4, 3), Smoothed(), (torch.zeros(4, 4), torch.ones(4, 3)))
