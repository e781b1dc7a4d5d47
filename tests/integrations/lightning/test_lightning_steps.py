"""What is trained is training_step of each record alone, whatever it does; the oracle is looped autograd."""

from __future__ import annotations

import copy
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import adadpigu as ad
from lightning_cases import Classifier, N, loader, net, records, same, strategy, trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CLIP, LR = 0.5, 0.3
WEIGHT = torch.tensor([1.0, 5.0, 50.0])


class Step(Classifier):
    """A Classifier whose training_step is given."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.other = nn.Linear(5, 3)
        self.drop = nn.Dropout(0.5).eval()
        self.factor = 1.0
        self.scores = torchmetrics.MetricCollection([torchmetrics.Accuracy(task="multiclass", num_classes=3)])
        self.weighted = nn.CrossEntropyLoss(weight=WEIGHT)
        self.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3]))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.body(self, *batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LR)


def usual(self: Any, x: Tensor, y: Tensor, batch_idx: int) -> Any:
    return Classifier.training_step(self, (x, y), batch_idx)


def two_losses(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) + F.cross_entropy(self.other(x), y)


def labels_in(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self.net(x + y.unsqueeze(1)), y) * x.mean()


def penalty(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y) + 0.01 * sum(p.pow(2).sum() for p in self.parameters())


def by_weight(self: Any, x: Tensor, y: Tensor, batch_idx: int) -> Any:
    scores = F.linear(x, self.other.weight, self.other.bias) + self.shift
    loss = F.nll_loss(F.log_softmax(scores, dim=-1), y)
    self.log_dict(self.scores(scores, y))
    self.print(f"loss {loss:.3f}")
    return {"loss": loss, "scores": scores.detach()}


def weighted(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return self.weighted(self(x), y)


def in_place(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    x = x.clone()
    x.view(-1, 5).clamp_(-0.5, 0.5)
    scores = self(x)
    scores += self.shift
    loss = F.cross_entropy(scores, y)
    loss *= 2.0
    return loss


def in_eval(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(self.drop(x)), y)


def branches(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    loss = F.cross_entropy(self(x), y)
    return loss * 2 if loss.item() > 1 else loss


def mean_of_one(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self(x), y, reduction="sum") / len(x)


def weighted_oracle(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return WEIGHT.to(x)[y] * F.cross_entropy(self(x), y)


def moved(module: nn.Module, before: nn.Module) -> Tensor:
    pairs = zip(module.parameters(), before.parameters(), strict=True)
    return torch.cat([(p - q).detach().flatten() for p, q in pairs]).double()


def clipped_mean(module: Any, body: Any) -> Tensor:
    """Σ clip(g_i)/N in float64, by autograd on one record after the other."""
    module, (x, y) = copy.deepcopy(module).double(), records()
    module.log = module.log_dict = module.print = lambda *_, **__: None
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for i in range(N):
        found = body(module, x[i : i + 1].double(), y[i : i + 1], 0)
        loss = found["loss"] if isinstance(found, dict) else found
        rows = torch.autograd.grad(loss.sum(), parameters, allow_unused=True, materialize_grads=True)
        g = torch.cat([row.flatten() for row in rows])
        total += g * min(1.0, CLIP / float(g.norm()))
    return total / N


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (usual, "under vmap"),
        (two_losses, "under vmap"),
        (labels_in, "under vmap"),
        (penalty, "under vmap"),
        (by_weight, "under vmap"),
        (weighted, "under vmap"),
        (in_place, "under vmap"),
        (in_eval, "under vmap"),
        (mean_of_one, "under vmap"),
        (branches, "in a loop, because vmap refuses"),
    ],
)
def test_a_step_follows_the_clipped_mean_of_looped_autograd(body: Any, path: str) -> None:
    """One step at a sampling rate of one, σ next to nothing: θ − lr·Σ clip(g_i)/B."""
    module = Step(body)
    before, private = copy.deepcopy(module), strategy(noise_multiplier=1e-6)
    trainer(private, max_epochs=1).fit(module, loader(batch_size=N))
    expected = -LR * clipped_mean(before, weighted_oracle if body is weighted else body)
    assert float(expected.norm()) > 0.01
    torch.testing.assert_close(moved(module, before), expected, rtol=1e-4, atol=2e-6)
    assert path in private.run.gradients


def annealed(self: Any, x: Tensor, y: Tensor, batch_idx: int) -> Any:
    assert batch_idx == self.global_step % 4
    return F.cross_entropy(self(x), y) * min(1.0, self.global_step / 4) * (self.trainer.current_epoch == 0)


def test_a_loss_may_change_with_the_step_and_the_epoch() -> None:
    """At step 0 and in the second epoch it is zero; the weights move by what the other three steps release."""
    seen: list[bool] = []
    module = Step(annealed)
    last = copy.deepcopy(module)

    def moves(*_: object) -> None:
        seen.append(bool(moved(module, last).abs().max() > 1e-4))
        last.load_state_dict(module.state_dict())

    module.on_train_batch_end = moves  # type: ignore[method-assign, assignment]
    trainer(strategy(noise_multiplier=1e-6)).fit(module, loader())
    assert seen == [False, True, True, True, False, False, False, False]


class PerToken(pl.LightningModule):
    """Two inputs, two heads, padded targets: a dict batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.age = nn.Embedding(7, 5), nn.Linear(1, 5)
        self.tokens, self.kind = nn.Linear(5, 3), nn.Linear(5, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        hidden = self.embed(batch["ids"]) + self.age(batch["age"]).unsqueeze(1)
        tokens = F.cross_entropy(self.tokens(hidden).transpose(1, 2), batch["targets"], ignore_index=-1)
        return tokens + F.cross_entropy(self.kind(hidden.mean(1)), batch["kind"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LR)


def test_two_inputs_two_heads_and_ignored_targets_in_dict_batches() -> None:
    """A record whose targets are all ignored has the loss of the other head alone."""
    generator = torch.Generator().manual_seed(1)
    rows = [
        {
            "ids": torch.randint(7, (6,), generator=generator),
            "age": torch.rand(1, generator=generator),
            "targets": torch.full((6,), -1) if i % 3 == 0 else torch.randint(3, (6,), generator=generator),
            "kind": i % 2,
            "name": f"person {i}",
        }
        for i in range(N)
    ]
    module = PerToken()
    before = copy.deepcopy(module)
    trainer(strategy(noise_multiplier=1e-6), max_epochs=1).fit(module, DataLoader(rows, batch_size=N))  # type: ignore[arg-type]
    total = torch.zeros(sum(p.numel() for p in before.parameters()))
    for row in rows:
        batch = {key: torch.as_tensor(value).unsqueeze(0) for key, value in row.items() if key != "name"}
        parts = {**batch, "targets": batch["targets"] * 0} if bool((batch["targets"] < 0).all()) else batch
        loss = before.training_step(parts, 0)
        if parts is not batch:
            hidden = before.embed(batch["ids"]) + before.age(batch["age"]).unsqueeze(1)
            loss = F.cross_entropy(before.kind(hidden.mean(1)), batch["kind"])
        found = torch.autograd.grad(loss, [*before.parameters()], allow_unused=True, materialize_grads=True)
        g = torch.cat([each.flatten() for each in found])
        total += g * min(1.0, CLIP / float(g.norm()))
    torch.testing.assert_close(moved(module, before), (-LR * total / N).double(), rtol=1e-3, atol=2e-6)


class Doubled(Classifier):
    """Works on batches when they are on the device, as augmentation on a GPU does."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        assert len(batch[0]) == 1 or not self.trainer.training  # one record at a time
        return batch[0] * 2, batch[1]


def padded(items: list[Any]) -> Any:
    return torch.stack([item[0] * 2 for item in items]), torch.stack([item[1] for item in items])


def test_a_hook_after_the_transfer_and_a_collator_see_one_record_at_a_time() -> None:
    x, y = records()
    plain, hooked, collated = Classifier(), Doubled(), Classifier()
    trainer(strategy()).fit(plain, loader((2 * x, y)))
    trainer(strategy()).fit(hooked, loader())
    trainer(strategy()).fit(collated, loader(collate_fn=padded))
    assert same(plain.net, hooked.net)
    assert same(plain.net, collated.net)


class OfSequences(Classifier):
    """Adds up the rows of a record; padding of zeros changes nothing."""

    def forward(self, x: Tensor) -> Any:
        return self.net(x.sum(1))


def to_the_longest(items: list[Any]) -> Any:
    return pad_sequence([x for x, _ in items], batch_first=True), torch.stack([y for _, y in items])


def to_length_three(items: list[Any]) -> Any:
    blank = torch.zeros(3, 5), torch.tensor(0)
    x, y = to_the_longest([*items, blank])
    return x[:-1], y[:-1]


def of_several_lengths() -> list[Any]:
    x, y = records()
    return [(x[i].repeat(1 + i % 2, 1) / (1 + i % 2), y[i]) for i in range(N)]


def test_a_collator_that_pads_to_a_fixed_length_takes_records_of_several_and_declares_none() -> None:
    plain, sequences, private = Classifier(), OfSequences(), strategy()
    rows: Any = of_several_lengths()
    trainer(strategy()).fit(plain, loader())
    trainer(private).fit(sequences, DataLoader(rows, batch_size=16, collate_fn=to_length_three))
    assert same(plain.net, sequences.net)
    assert not any("longest" in line for line in private.privacy.not_covered)


def test_a_collator_that_pads_to_the_longest_of_a_batch_is_refused_with_the_remedy() -> None:
    """The longest of all is private: nothing reads it, and nothing declares it public for its holder."""
    rows: Any = of_several_lengths()
    with pytest.raises(ad.InputError, match="pad each record to a public length in the Dataset or in collate_fn"):
        trainer(strategy()).fit(OfSequences(), DataLoader(rows, batch_size=16, collate_fn=to_the_longest))


class Pretrained(pl.LightningModule):
    """A backbone with batch norms in eval, frozen, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout())
        with torch.no_grad():
            self.backbone(torch.randn(64, 5) * 3 + 1)
        self.backbone.requires_grad_(False).eval()
        self.head = nn.Linear(8, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.head.parameters(), lr=LR)


def test_a_frozen_backbone_stays_in_evaluation_mode() -> None:
    """Its batch norms use stored statistics and its dropout is off: as a head trained on its features."""
    module, (x, y) = Pretrained(), records()
    before = copy.deepcopy(module)
    trainer(strategy(noise_multiplier=1e-6), max_epochs=1).fit(module, loader(batch_size=N))
    features = before.backbone(x)
    wrong = torch.softmax(before.head(features), 1) - F.one_hot(y, 3)
    rows = torch.cat([(wrong.unsqueeze(2) * features.unsqueeze(1)).flatten(1), wrong], dim=1)
    mean = (rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)).mean(0)
    torch.testing.assert_close(moved(module.head, before.head), (-LR * mean).double(), rtol=1e-4, atol=2e-6)
    assert all(torch.equal(a, b) for a, b in zip(module.backbone.buffers(), before.backbone.buffers(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("part", [False, True])
def test_a_compiled_module_is_trained_uncompiled(part: bool) -> None:
    plain, module = Classifier(), Classifier()
    trainer(strategy()).fit(plain, loader())
    compiled: Any = module
    if part:
        module.net[0] = torch.compile(module.net[0])  # type: ignore[assignment]
    else:
        compiled = torch.compile(module)
    with pytest.warns(UserWarning, match="the model is compiled: training runs it uncompiled"):
        trainer(strategy()).fit(compiled, loader())
    assert same(module.net, plain.net)


def no_loss(self: Any, x: Tensor, y: Tensor, _: int) -> dict[str, Tensor]:
    return {"scores": self(x)}


def fails(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    return F.cross_entropy(self.net(x[:, :4]), y)


def of_a_buffer(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    self.shift.mul_(0.9)
    return F.cross_entropy(self(x) - self.shift, y)


def of_a_tensor(self: Any, x: Tensor, y: Tensor, _: int) -> Any:
    loss = F.cross_entropy(self(x), y)
    self.average.copy_(0.9 * self.average + 0.1 * loss.detach())
    return loss + self.average


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (no_loss, "Step.training_step gives a NoneType; allowed: its loss, or a dict that has it as 'loss'"),
        (fails, r"net.0' \(Linear\): forward fails on an example.*mat1 and mat2"),
        (of_a_buffer, "a training forward changes buffer 'shift', which would carry data around the noise"),
        (of_a_tensor, "its loss changes the tensor 'average' in place, which would carry data around the noise"),
    ],
)
def test_a_step_that_cannot_be_trained_is_refused_before_anything_is_drawn(body: Any, told: str) -> None:
    module = Step(body)
    module.average = torch.zeros(())
    module.on_train_batch_start = lambda *_: pytest.fail("a batch was drawn")  # type: ignore[method-assign]
    with pytest.raises(ad.ModelError, match=told):
        trainer(strategy()).fit(module, loader())
    assert same(module.net, net())


@pytest.mark.parametrize("engine", ["ghost", "materialised"])
def test_layer_rules_need_declared_losses(engine: str) -> None:
    with pytest.raises(ad.InputError, match=rf"engine='{engine}': training_step.*declare private_losses"):
        trainer(strategy(engine=engine)).fit(Classifier(), loader())
