"""What a model or a loss keeps of the records it saw is taken away again, or refused where it is out of reach."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.gradients import choose_engine
from adadpigu.core.sensitive import Records, unseal
from adadpigu.errors import ModelError


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


def test_what_a_forward_leaves_in_plain_attributes_does_not_stay() -> None:
    model = Diary()
    engine = choose_engine(model, nn.MSELoss(), (torch.zeros(4, 4), torch.zeros(4, 3)))
    records = Records((torch.full((5, 4), 777.25), torch.zeros(5, 3)))
    engine.per_sample_gradients(records)
    engine.per_record_losses(records)
    assert model.log == []
    assert model.largest == 0.0
    assert not hasattr(model, "features")


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
