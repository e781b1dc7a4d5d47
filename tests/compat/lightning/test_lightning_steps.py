"""What a training_step computes is taken from its code, and a step that cannot be followed is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning_cases import Classifier, loader, records, strategy, trainer
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.compat.lightning.moments import moments_of
from adadpigu.compat.lightning.splitting import PrivateStep, split
from adadpigu.compat.lightning.tracing import trace

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SAMPLE = [torch.zeros(1, 5), torch.zeros(1, dtype=torch.long)]


class Step(Classifier):
    """A Classifier whose training_step is given."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.other = nn.Linear(5, 3)
        self.heads = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        self.factor = 1.0
        self.drop = nn.Dropout(0.5)
        self.register_buffer("running", torch.zeros(3))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.body(self, *batch, batch_idx)


def followed(body: Any) -> PrivateStep:
    """The step as the strategy would have it."""
    module = Step(body)
    module.trainer = trainer(strategy())
    return split(module, trace(module, SAMPLE, moments_of(8, 4)))


def plain(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y)


def by_module(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return nn.CrossEntropyLoss(reduction="none")(self.net(x), y).mean()


def two_heads(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    hidden = torch.tanh(self.net[0](x))
    scores = torch.cat([self.heads[0](hidden), self.heads[1](hidden)], dim=1)
    return F.cross_entropy(scores[:, :3] + scores[:, 3:], y) * self.factor


def by_weight(self: Any, x: Tensor, y: Tensor, batch_idx: int) -> Any:
    scores = F.linear(x, self.other.weight, self.other.bias)
    loss = F.nll_loss(F.log_softmax(scores, dim=-1), y)
    if self.trainer.global_step % 2 == 0 and batch_idx % 2 == 0:
        self.log("now", loss.item())
    self.logger.experiment.add_scalar("loss", loss, self.current_epoch)
    return loss


@pytest.mark.parametrize("body", [plain, by_module, two_heads, by_weight])
def test_model_and_loss_together_are_the_training_step_of_a_batch_of_one(body: Any) -> None:
    """The oracle is training_step itself, run on one record, with its gradients by autograd."""
    step, module, (x, y) = followed(body), Step(body), records()
    module.load_state_dict(step.model.state_dict(), strict=False)
    module.trainer = trainer(strategy())
    object.__setattr__(module, "log", lambda *given: None)
    for i in range(3):
        found = step.loss(step.model(x[i : i + 1]), y[i : i + 1]).sum()
        if body is by_weight:
            expected = F.cross_entropy(module.other(x[i : i + 1]), y[i : i + 1])
        else:
            expected = module.training_step((x[i : i + 1], y[i : i + 1]), 0)
        torch.testing.assert_close(found, expected)
    assert (step.loss is F.cross_entropy) == (body is plain)
    names = [name for name, _ in module.named_parameters()]
    assert [name for name, _ in step.model.named_parameters()] == names


def branches(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    loss = F.cross_entropy(self(x), y)
    return loss * 2 if loss > 1 else loss


def numbers(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) * float(x.sum())


def by_step(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) * (1 + self.global_step)


def by_epoch(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) * (1 + self.trainer.current_epoch)


def by_index(self: Any, x: Tensor, y: Tensor, batch_idx: int) -> Any:
    return F.cross_entropy(self(x), y) * (1 + batch_idx)


def noisy(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x) + torch.randn(3), y)


def penalty(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) + sum(p.pow(2).sum() for p in self.parameters())


def two_losses(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) + F.cross_entropy(self.other(x), y)


def labels_in(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self.net(x + y.unsqueeze(1)), y)


def both_in_loss(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) * x.mean()


def no_parameter(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return x.sum()


def no_loss(self: Any, x: Tensor, y: Tensor, _: int) -> dict[str, Tensor]:
    return {"scores": self(x)}


def last_layer(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return self.net(x)


def elsewhere(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(nn.Linear(5, 3)(x), y)


def hand(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    loss = F.cross_entropy(self(x), y)
    self.manual_backward(loss)
    return loss


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (branches, r"Step\.training_step, line \d+: symbolically traced variables cannot be used"),
        (numbers, r"Step\.training_step, line \d+"),
        (by_step, "its loss changes from step to step"),
        (by_epoch, "its loss changes from step to step"),
        (by_index, "its loss changes from step to step"),
        (noisy, "its loss changes from step to step"),
        (penalty, "takes parameters directly.*weight_decay"),
        (two_losses, r"takes several results of modules with parameters \('net', 'other'\)"),
        (labels_in, r"modules with parameters take batch\[0\], batch\[1\] of the batch; allowed: one"),
        (both_in_loss, r"its loss takes, beside outputs, batch\[0\], batch\[1\]"),
        (no_parameter, "no parameter of the module takes part in its loss"),
        (no_loss, "returns no loss of the batch"),
        (last_layer, "its loss comes out of a module with parameters"),
        (elsewhere, "calls a Linear that is no part of the module"),
        (hand, "optimises by hand"),
    ],
)
def test_a_step_that_cannot_be_followed_is_refused_by_name(body: Any, told: str) -> None:
    with pytest.raises(ad.ModelError, match=told):
        followed(body)


def test_following_a_step_leaves_the_module_as_it_was() -> None:
    module = Classifier()
    module.trainer = trainer(strategy())
    before = {name: dict(vars(part)) for name, part in module.named_modules()}
    state = torch.get_rng_state()
    traced = trace(module, SAMPLE, moments_of(8, 4))
    assert traced.logged == ("train_loss", "train_accuracy", "step")
    assert type(module) is Classifier
    assert module.losses == []
    assert torch.equal(state, torch.get_rng_state())
    for name, part in module.named_modules():
        assert vars(part) == before[name]
    module.accuracy.update(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0]))
    assert module.accuracy.compute() == 1


def test_an_attribute_that_changes_the_loss_amid_a_fit_is_refused() -> None:
    module = Step(two_heads)
    module.on_train_epoch_end = lambda: setattr(module, "factor", 0.5)  # type: ignore[method-assign]
    with pytest.raises(
        ad.ModelError, match=r"computes another loss at step 4 \(batch 0 of epoch 1\) than when fit began"
    ):
        trainer(strategy()).fit(module, loader())


def keeps_count(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self.counting(self(x)), y)


class Counting(nn.Module):
    """Writes a value of the batch to a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, scores: Tensor) -> Tensor:
        self.seen.add_(scores.detach().sum(0))
        return scores


def test_a_loss_that_remembers_records_is_refused() -> None:
    module = Step(keeps_count)
    module.counting = Counting()
    with pytest.raises(ad.ModelError, match="changes buffer 'seen', which would carry data around the noise"):
        trainer(strategy()).fit(module, loader())
