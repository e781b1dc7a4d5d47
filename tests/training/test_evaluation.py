"""Accuracy is right wherever it is reported, and does not depend on how many records a device has room for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.data import TensorRecords
from adadpigu.training.evaluation import accuracy, predict

CPU = torch.device("cpu")


class Cramped(nn.Module):
    """Stands for a GPU with room for `fits` records at once."""

    def __init__(self, fits: int) -> None:
        super().__init__()
        self.fits, self.sizes = fits, list[int]()

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append(len(inputs))
        if len(inputs) > self.fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return inputs * 2


@pytest.mark.parametrize("fits", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 10, 33])
def test_fewer_at_once_gives_the_same_outputs(fits: int, count: int) -> None:
    inputs = torch.randn(count, 3)
    assert torch.equal(predict(Cramped(fits), inputs, device=CPU, chunk=16), inputs * 2)


def test_a_size_that_failed_is_not_tried_again() -> None:
    model = Cramped(fits=4)
    predict(model, torch.zeros(32, 1), device=CPU, chunk=16)
    assert model.sizes == [16, 8] + [4] * 8


def test_no_room_for_one_record_is_an_error_and_leaves_the_mode() -> None:
    model = Cramped(fits=0).train()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        predict(model, torch.zeros(4, 1), device=CPU)
    assert model.training


def one_label() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    train, test = torch.randn(60, 3), torch.randn(40, 3) + 5
    return (train, (train[:, 0] > 0).float()), (test, (test[:, 0] > 5).float())


LOSSES: dict[str, Any] = {
    "module": nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)),
    "function": F.binary_cross_entropy_with_logits,
    "lambda of whole labels": lambda o, t: F.softplus(torch.where(t > 0, -o, o)).mean(),
}


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_accuracy_of_one_logit_is_the_share_of_records_on_its_side_of_0(loss: str, column: bool) -> None:
    train, test = one_label()
    if column:
        train, test = (train[0], train[1][:, None]), (test[0], test[1][:, None])
    if loss == "lambda of whole labels":
        train, test = (train[0], train[1].long()), (test[0], test[1].long())
    net = nn.Linear(3, 1) if column else nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    run = ad.train(net, train, records=60, test=test, loss=LOSSES[loss], steps=3, device="cpu", quiet=True)
    expected = float(((run.model(test[0]) > 0) == (test[1] > 0)).double().mean())
    assert run.accuracy == pytest.approx(expected)
    assert run.metrics[-1].test_accuracy == pytest.approx(expected)
    assert 0 < expected < 1


UNKNOWN: dict[str, tuple[Any, Any]] = {  # what the labels are, and the loss; models have as many outputs as labels
    "several labels": (lambda x: (x > 0).float(), nn.BCEWithLogitsLoss()),
    "regression": (lambda x: x[:, :1], nn.MSELoss()),
    "regression on 0 and 1": (lambda x: (x[:, :1] > 0).float(), nn.MSELoss()),
    "shares of classes": (lambda x: x.softmax(dim=1), nn.CrossEntropyLoss()),
    "counts": (lambda x: (x[:, :1] > 0).long(), nn.PoissonNLLLoss()),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_where_no_accuracy_is_known_none_is_reported_and_one_line_says_so_before_the_run(case: str) -> None:
    labels, loss = UNKNOWN[case]
    train, test = torch.randn(60, 3), torch.randn(40, 3) + 5
    net = nn.Linear(3, labels(train).shape[1])
    given: dict[str, Any] = {"records": 60, "test": (test, labels(test)), "loss": loss, "steps": 3, "quiet": True}
    with pytest.warns(UserWarning, match=r"test: accuracy is of labels and outputs \[n, classes\]") as told:
        run = ad.train(net, (train, labels(train)), device="cpu", **given)
    assert [each for each in told if "\n" in str(each.message)] == []
    assert run.accuracy is None
    assert run.steps_done == 3
    assert all(metrics.test_accuracy is None for metrics in run.metrics)


def test_outputs_that_are_probabilities_are_no_logits() -> None:
    train, test = one_label()
    net = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0), nn.Sigmoid())
    with pytest.warns(UserWarning, match="run.accuracy is None"):
        run = ad.train(net, train, records=60, test=test, loss=nn.BCELoss(), steps=2, device="cpu", quiet=True)
    assert run.accuracy is None


def test_a_loop_of_ones_own_is_told_the_same_and_records_of_other_kinds_are_trained_on() -> None:
    train, test = torch.randn(60, 3), torch.randn(40, 3) + 5
    net = nn.Linear(3, 3)

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return torch.as_tensor(model(batch["x"]) - batch["x"]).square().mean(1)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="run.accuracy is None"):
        loop = ad.PrivateLoop(net, optimizer, {"x": train}, records=60, test={"x": test}, losses=losses, steps=2)
    for batch in loop:
        batch.backward()
        optimizer.step()
    assert loop.run.accuracy is None


def test_the_accuracy_of_a_stored_model_of_one_logit_is_right_too() -> None:
    inputs, labels = torch.tensor([[-1.0], [2.0], [3.0], [-4.0]]), torch.tensor([0, 1, 1, 1])
    assert accuracy(nn.Identity(), TensorRecords(inputs, labels), device=CPU) == 0.75


def test_labels_may_be_truths() -> None:
    """The loss makes numbers of them; the accuracy does too, once steps are charged."""
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    run = ad.train(
        nn.Linear(3, 2),
        (x, x[:, 0] > 0),
        records=60,
        test=(x + 1e-3, x[:, 0] > 0),
        loss=lambda outputs, targets: nn.functional.cross_entropy(outputs, targets.long()),
        method="dpsgd",
        noise_multiplier=0.5,
        batch_size=30,
        steps=20,
        lr=1.0,
    )
    assert run.accuracy is not None
    assert run.accuracy > 0.6
