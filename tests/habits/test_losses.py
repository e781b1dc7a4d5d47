"""Habits of losses: class weights, ignored targets, compiled models; and what a loss may not do to records."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from record_oracle import N, assert_gradients, by_autograd, prepared, shown
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.core.bounding import GradientSum
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data import DataSet
from adadpigu.errors import ModelError
from adadpigu.methods import AdaDPIGU
from adadpigu.training import Preparation, TrainingOptions, prepare
from adadpigu.training.reporting import declared_by
from replays import replay
from trials import small_digits, small_net

WEIGHT = torch.tensor([1.0, 5.0, 50.0])


def points() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, 4), torch.arange(N) % 3


def test_class_weights_multiply() -> None:
    def weighted(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHT.to(batch[0]), reduction="none")

    torch.manual_seed(0)
    ready = prepared(nn.Linear(4, 3), points(), loss=nn.CrossEntropyLoss(weight=WEIGHT))
    assert_gradients(ready, weighted, points())
    assert any("weight of CrossEntropyLoss" in line for line in declared_by(ready))


class PerToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 5), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embed(ids)).transpose(1, 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["loss", "losses"])
def test_ignored_targets_count_for_nothing_and_a_record_of_none_but_them_adds_zero(form: str) -> None:
    torch.manual_seed(0)
    ids, targets = torch.randint(7, (N, 6)), torch.randint(3, (N, 6))
    targets[:, 4:], targets[3] = -100, -100

    def losses(model: nn.Module, batch: Any) -> Tensor:
        each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        loss: Tensor = each.sum(1) / (batch[1] != -100).sum(1).clamp(min=1)
        return loss

    how: dict[str, Any] = {"loss": F.cross_entropy} if form == "loss" else {"losses": losses}
    ready = prepared(PerToken(), (ids, targets), **how)
    assert_gradients(ready, losses, (ids, targets))
    assert not unseal(ready.engine.per_sample_gradients(shown(ready))).gradients[3].any()


def test_a_label_that_is_ignored_by_name_passes_the_check_of_labels() -> None:
    x, y = points()
    y = torch.where(y == 2, 9, y)
    torch.manual_seed(0)
    ready = prepared(nn.Linear(4, 3), (x, y), loss=nn.CrossEntropyLoss(ignore_index=9))
    found = unseal(ready.engine.per_sample_gradients(shown(ready))).gradients
    assert not found[y == 9].any()
    assert found[y != 9].any(dim=1).all()


def test_torchs_own_ignored_label_counts_for_nothing_with_one_label_a_record_too() -> None:
    weights = []
    x, y = points()
    for ignored in (-100, 9):
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
        loss = nn.CrossEntropyLoss(ignore_index=ignored)
        how: dict[str, Any] = {"batch_size": 20, "steps": 2, "noise_multiplier": 1.0, "device": "cpu"}
        how |= {"records": len(x), "method": "dpsgd", "randomness": ReproducibleRandomness(5), "seed": 3}
        ad.train(net, (x, torch.where(y == 2, ignored, y)), loss=loss, **how)
        weights.append([parameter.detach() for parameter in net.parameters()])
    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_trained_as_the_module_inside(in_place: bool) -> None:
    weights = []
    for compiled in (False, True):
        net: Any = small_net()
        model = net
        if compiled and in_place:
            net.compile(backend="eager")
        elif compiled:
            model = torch.compile(net, backend="eager")
        settings: dict[str, Any] = {"batch_size": 40, "steps": 2, "noise_multiplier": 1.0, "device": "cpu"}

        def train(model: Any = model, settings: dict[str, Any] = settings) -> ad.Run:
            return ad.train(model, small_digits(), randomness=ReproducibleRandomness(1), seed=0, **settings)

        if compiled:
            with pytest.warns(UserWarning, match="compiled"):
                run = train()
        else:
            run = train()
        assert run.model is net
        weights.append([parameter.detach().clone() for parameter in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def plain(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def sorted_by_size(model: nn.Module, batch: Any) -> Tensor:
    """Contrasts each record with the next larger one."""
    each = plain(model, batch)
    return each + torch.roll(each, 1)


REFUSED = {
    "a mean over the batch": (lambda m, b: plain(m, b).mean(), r"<losses>: \(\) of .*one loss a record"),
    "not reduced": (lambda m, b: m(b[0]), r"<losses>: \(4, 3\) of .*one loss a record"),
    "no tensor": (lambda m, b: plain(m, b).tolist(), "<losses>: a list for"),
    "centred": (lambda m, b: plain(m, b) - plain(m, b).mean(), "<losses>: mixes records"),
    "divided by the batch": (lambda m, b: plain(m, b) / len(b[1]), "<losses>: a record's output depends on the batch"),
    "contrast": (sorted_by_size, "<losses>: mixes records"),
    "batch statistics": (lambda m, b: plain(m, (b[0] / b[0].std(0), b[1])), "mixes records"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_not_one_a_record_is_refused_in_one_line(name: str) -> None:
    losses, words = REFUSED[name]
    with pytest.raises(ModelError, match=words) as refused:
        prepared(nn.Linear(4, 3), points(), losses=losses)
    assert "\n" not in str(refused.value)


def test_weights_that_a_loss_reaches_by_other_ways_are_differentiated_too() -> None:
    """A penalty on the weights themselves: layer rules would not see it."""

    def penalised(model: nn.Module, batch: Any) -> Tensor:
        return plain(model, batch) + 0.1 * model.weight.square().sum()  # type: ignore[operator]

    torch.manual_seed(0)
    ready = prepared(nn.Linear(4, 3), points(), losses=penalised)
    assert_gradients(ready, penalised, points())
    with pytest.raises(ModelError, match="the layer rules differ from autograd"):
        prepared(nn.Linear(4, 3), points(), losses=penalised, engine="ghost")


def test_a_loss_that_mixes_records_where_no_probe_looks_is_bounded_all_the_same() -> None:
    """Weights divided by their mean over the batch, of which only class 2 has another: a record alone sees none."""
    weight = torch.tensor([1.0, 1.0, 50.0])

    def losses(model: nn.Module, batch: Any) -> Tensor:
        each = weight[batch[1]]
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") * each / each.mean()

    torch.manual_seed(0)
    ready = prepared(nn.Linear(4, 3), points(), losses=losses)
    assert_gradients(ready, lambda model, batch: plain(model, batch), points())


@pytest.mark.parametrize("engine", ["auto", "functional"])
def test_one_record_changes_the_clipped_sum_by_at_most_its_bound(engine: str) -> None:
    torch.manual_seed(0)
    x, y = points()
    batch = {"x": x * torch.logspace(-3, 4, N).unsqueeze(1), "y": y}

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    ready = prepared(nn.Linear(4, 3), batch, losses=losses, engine=engine)
    query = GradientSum(clip_norm=0.7)

    def total(rows: Tensor) -> Tensor:
        return unseal(ready.engine.clipped_sum(Records(ready.data.train.take(rows)), query))

    everyone = torch.arange(N)
    norms = by_autograd(ready.model, losses, batch).norm(dim=1)
    assert norms.min() < 0.7 < norms.max()
    for record in range(N):
        moved = (total(everyone) - total(everyone[everyone != record])).norm()
        assert float(moved) <= 0.7 * (1 + 1e-9)
        assert float(moved) == pytest.approx(min(0.7, float(norms[record])), rel=1e-4)


@pytest.mark.parametrize("value", [0.0, 1e6])
def test_a_run_through_losses_is_moved_by_one_record_within_its_sensitivity(value: float) -> None:
    def on(data: DataSet) -> Preparation:
        options = TrainingOptions(batch_size=40, steps=8, noise_multiplier=1.5, device="cpu")
        return prepare(
            small_net(), data, method=AdaDPIGU(), budget=None, delta=1e-5, options=options, losses=plain, seed=0
        )

    added = torch.full((1, 8, 8), value), torch.tensor(1)
    found = replay(on, dataclasses.replace(small_digits(), test=None), added=added)
    assert found.breaches == ()
    assert found.largest <= 1 + 1e-5
