"""A loss that is another one later, or that changes tensors in place, is followed rightly or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning_cases import EPOCHS, Classifier, loader, records, same, strategy, trained, trainer
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.compat.lightning.moments import moments_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Step(Classifier):
    """A Classifier whose loss is given, with attributes to count in."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.calls = 0
        self.average = torch.zeros(())
        self.shifted = nn.ReLU(inplace=True)
        self.register_buffer("centre", torch.ones(3))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.body(self, *batch, batch_idx)


def until(when: Any) -> Any:
    """The usual loss while a condition holds, none afterwards."""
    return lambda self, x, y, index: F.cross_entropy(self(x), y) * (1.0 if when(self, index) else 0.0)


@pytest.mark.parametrize(
    "when",
    [
        lambda self, _: self.global_step < 20,
        lambda self, _: self.current_epoch < 5,
        lambda self, _: self.trainer.current_epoch < self.trainer.max_epochs - 1,
        lambda _, index: index < 3,
        lambda self, _: self.global_step != 29,
    ],
)
def test_a_loss_that_changes_at_a_later_step_of_the_plan_is_refused_before_anything_is_drawn(when: Any) -> None:
    module = Step(until(when))
    module.on_train_batch_start = lambda *_: pytest.fail("a batch was drawn")  # type: ignore[method-assign]
    with pytest.raises(ad.ModelError, match="its loss changes from step to step"):
        trainer(strategy(), max_steps=30, max_epochs=8).fit(module, loader())


@pytest.mark.parametrize(
    ("when", "at"),
    [
        (lambda self, _: self.global_step != 5, r"step 5 \(batch 1 of epoch 1\)"),
        (lambda self, _: self.current_epoch != 3, r"step 12 \(batch 0 of epoch 3\)"),
        (lambda self, index: (self.current_epoch, index) != (3, 2), r"step 14 \(batch 2 of epoch 3\)"),
    ],
)
def test_a_loss_that_is_another_one_for_a_moment_is_refused_at_that_moment(when: Any, at: str) -> None:
    """None of these moments is among those that are looked at beforehand, and the weights go back."""
    module = Step(until(when))
    with pytest.raises(ad.ModelError, match=f"computes another loss at {at} than when fit began"):
        trainer(strategy(), max_epochs=10).fit(module, loader())
    assert same(module.net, Classifier().net)


def counting(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    self.calls += 1
    return F.cross_entropy(self(x), y) * (1.0 if self.calls <= 21 else 0.0)


def test_a_count_of_calls_is_kept_and_a_loss_by_it_refused() -> None:
    module = Step(counting)
    with pytest.raises(ad.ModelError, match="computes another loss at step 21 "):
        trainer(strategy(), max_epochs=10).fit(module, loader())
    quiet = Step(counting)
    trainer(strategy()).fit(quiet, loader())
    assert quiet.calls == 8


def test_moments_of_a_plan_are_those_that_a_fit_has() -> None:
    """The oracle is the Trainer: step, batch and epoch as its hooks read them."""
    seen: list[tuple[int, int, int]] = []
    module = Classifier()

    def look(batch: Any, batch_idx: int) -> None:
        seen.append((module.global_step, batch_idx, module.current_epoch))

    module.on_train_batch_start = look  # type: ignore[method-assign]
    trainer(strategy()).fit(module, loader())
    planned = [(moment.step, moment.batch, moment.epoch) for moment in moments_of(len(seen), len(seen) // EPOCHS)]
    assert len(planned) > 4
    assert set(planned) <= set(seen)
    assert {seen[0], seen[-1]} <= set(planned)


def through_a_view(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    x.view(-1, 5).clamp_(-0.1, 0.1)
    return F.cross_entropy(self(x), y)


def less_its_mean(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    v = x.view(-1, 5)
    v -= v.mean(0)
    return F.cross_entropy(self(x), y)


def by_transposed(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    v = x.T
    v *= 0
    return F.cross_entropy(self(x), y)


def unused(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    scores = self(x)
    scores.mul_(0.5)
    return F.cross_entropy(scores, y)


def by_function(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    scores = self(x)
    F.relu(scores, True)
    return F.cross_entropy(scores, y)


def by_module(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    scores = self(x)
    self.shifted(scores)
    return F.cross_entropy(scores, y)


def by_out(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    scores = self(x)
    torch.mul(scores, 0.5, out=scores)
    return F.cross_entropy(scores, y)


def of_the_loss(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    loss = F.cross_entropy(self(x), y)
    loss.mul_(0.0)
    return loss


def of_a_copy_of_the_name(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    total = loss = F.cross_entropy(self(x), y)
    loss += 1.0
    return total * loss


def of_the_batch(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x.mul_(0.5)), y)


def of_its_data(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    x.data = x / 2
    return F.cross_entropy(self(x), y)


def of_an_item(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    x[0] = 0.0
    return F.cross_entropy(self(x), y)


def of_a_buffer(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    scores = self(x)
    self.centre.add_(scores.mean(0))
    return F.cross_entropy(scores - self.centre, y)


def of_a_buffer_by_numbers(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    self.centre.mul_(0.9)
    return F.cross_entropy(self(x) - self.centre, y)


def of_an_average(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    loss = F.cross_entropy(self(x), y)
    self.average = 0.9 * self.average + 0.1 * loss.detach()
    return loss + self.average


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (through_a_view, "'clamp_' changes a tensor in place that its loss needs elsewhere, also through a view"),
        (less_its_mean, "'sub' changes a tensor in place that its loss needs elsewhere"),
        (by_transposed, "'mul' changes a tensor in place that its loss needs elsewhere"),
        (unused, "'mul_' changes a tensor in place that its loss needs elsewhere"),
        (by_function, "'relu' changes a tensor in place that its loss needs elsewhere"),
        (by_module, "'shifted' changes a tensor in place that its loss needs elsewhere"),
        (by_out, "'mul' changes a tensor in place that its loss needs elsewhere"),
        (of_the_loss, "'mul_' changes a tensor in place that its loss needs elsewhere"),
        (of_a_copy_of_the_name, "'add' changes a tensor in place that its loss needs elsewhere"),
        (of_the_batch, "'mul_' changes the batch in place; allowed: the same with a result of its own"),
        (of_its_data, r"line \d+: \.data of a tensor of the batch is set"),
        (of_an_item, r"line \d+: 'StandIn' object does not support item assignment"),
        (of_a_buffer, "'add_' changes a tensor of the module's in place|'add_' changes a tensor in place"),
        (of_a_buffer_by_numbers, "changes the tensor 'centre' in place"),
        (of_an_average, "puts a value of the batch in place of the tensor 'average'"),
    ],
)
def test_a_change_in_place_that_the_graph_does_not_show_is_refused(body: Any, told: str) -> None:
    module = Step(body)
    with pytest.raises(ad.ModelError, match=told):
        trainer(strategy()).fit(module, loader())
    assert same(module.net, Classifier().net)


def harmless(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    x = x * 1.0
    x += 0.25
    x /= 2
    scores = self(x)
    scores.detach().clone().mul_(3.0)
    loss = F.cross_entropy(scores, y)
    self.losses.append(loss.detach())
    loss *= torch.ones_like(loss).mul_(2.0)
    return loss


class Halved(nn.Module):
    """The net, given what `harmless` makes of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Classifier().net

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.net((x + 0.25) / 2)
        return made


def test_changes_in_place_that_nobody_else_sees_are_followed() -> None:
    """The oracle is `train` with the same function written without them."""
    module, plain, data = Step(harmless), Halved(), records()
    trainer(strategy()).fit(module, loader())
    trained(plain, data, loss=lambda scores, y: 2.0 * F.cross_entropy(scores, y, reduction="none"))
    for one, other in zip(module.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(one, other)
