"""What a training_step, a hook or a layer would log or keep of a batch is not there, and a warning names it."""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection

import adadpigu as ad
from adadpigu.export import write_card
from adadpigu.runs.run import weights_digest
from lightning_cases import STEPS, B, Classifier, loader, net, records, same, strategy, trainer

MARK = 12345.0


class Meter:
    """Averages, as people write them."""

    def __init__(self) -> None:
        self.total: Any = 0.0
        self.seen = {"losses": list[Any]()}

    def update(self, value: Any) -> None:
        self.total = self.total + value
        self.seen["losses"].append(value)


class Keeping(pl.LightningModule):
    """Keeps its losses in the place that it is given."""

    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.net = net()
        self.keep = keep
        self.losses: list[Any] = []
        self.recent: deque[Any] = deque(maxlen=3)
        self.by_name: defaultdict[str, list[Any]] = defaultdict(list)
        self.meter = Meter()
        self.last: Any = None
        self.count = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.keep(self, F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3)


def in_a_list(self: Any, loss: Tensor) -> Tensor:
    self.losses.append(loss.detach())
    return loss


def in_a_deque(self: Any, loss: Tensor) -> Tensor:
    self.recent.append(loss.item())
    return loss


def in_a_dict_of_lists(self: Any, loss: Tensor) -> Tensor:
    self.by_name["train"].append(loss)
    return loss


def in_an_attribute(self: Any, loss: Tensor) -> Tensor:
    self.last = loss
    return loss


def in_a_new_attribute(self: Any, loss: Tensor) -> Tensor:
    self.newest = {"loss": loss}
    return loss


def in_a_count(self: Any, loss: Tensor) -> Tensor:
    self.count += 1  # of records: how many were drawn is private
    return loss


def in_an_object(self: Any, loss: Tensor) -> Tensor:
    self.meter.update(loss.detach())
    return loss


KEPT = {
    "losses": in_a_list,
    "recent": in_a_deque,
    "by_name": in_a_dict_of_lists,
    "last": in_an_attribute,
    "newest": in_a_new_attribute,
    "count": in_a_count,
}


def assert_empty(module: Any) -> None:
    assert (module.losses, [*module.recent], dict(module.by_name), module.last) == ([], [], {}, None)
    assert (module.meter.total, module.meter.seen, module.count) == (0.0, {"losses": []}, 0)
    assert not hasattr(module, "newest")
    assert not same(module.net, net())


def everywhere(self: Any, loss: Tensor) -> Tensor:
    for keep in (*KEPT.values(), in_an_object):
        keep(self, loss)
    return loss


def test_what_training_step_keeps_is_named_and_nothing_stays() -> None:
    """In every place at once; what is kept within an object is not named."""
    module = Keeping(everywhere)
    with pytest.warns(UserWarning, match="what the loss of Keeping keeps there is not kept.*diagnostics") as told:
        trainer(strategy()).fit(module, loader())
    (line,) = [str(each.message) for each in told if "is not kept" in str(each.message)]
    assert [name for name in KEPT if f"'{name}'" not in line] == []
    assert_empty(module)


def test_a_step_that_keeps_nothing_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is not kept|.*not logged")
        trainer(strategy()).fit(Keeping(lambda _, loss: loss), loader())


def with_the_last(self: Any, loss: Tensor) -> Any:
    before, self.last = self.last, loss.detach()
    return loss if before is None else loss + 0.1 * before


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_loss_takes_what_an_earlier_one_has_kept() -> None:
    """So the weights are those of the loss alone."""
    module, plain = Keeping(with_the_last), Keeping(lambda _, loss: loss)
    trainer(strategy()).fit(module, loader())
    trainer(strategy()).fit(plain, loader())
    assert same(module.net, plain.net)
    assert_empty(module)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_callbacks_get_nan_in_the_place_of_the_loss() -> None:
    seen: list[Any] = []

    class Reads(pl.Callback):
        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
            seen.append(loss)
            assert all(parameter.grad is None for parameter in pl_module.parameters())

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(outputs["loss"])
            assert list(outputs) == ["loss"]

    trainer(strategy(), callbacks=[Reads()]).fit(Classifier(), loader())
    assert len(seen) == 2 * STEPS
    assert all(bool(value.isnan()) for value in seen)


Look = Callable[[Any, float], None]


class Hooked(Classifier):
    """Looks at what comes out of its net while it is trained."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look, self.register = look, torch.zeros(1)
        self.kept, self.seen = SimpleNamespace(last=0.0), list[float]()
        self.net.register_forward_hook(self.hook)

    def hook(self, _: Any, __: Any, output: Tensor) -> None:
        if self.net.training:
            self.look(self, MARK + float(output.detach().mean()))

    def on_train_batch_end(self, *_: object) -> None:
        values = [float(getattr(self, "last", 0.0)), self.kept.last, *self.seen]
        self.log("at_the_end", max(values))


LOOKS: dict[str, Look] = {
    "log": lambda module, value: module.log("seen", value),
    "log_dict": lambda module, value: module.log_dict({"seen": value}),
    "print": lambda module, value: module.print(value),
    "logger": lambda module, value: module.logger.log_metrics({"seen": value}),
    "loggers": lambda module, value: module.trainer.loggers[0].log_hyperparams({"s": value}),
    "writer": lambda module, value: module.logger.experiment.log_metrics({"seen": value}),
    "metric": lambda module, value: module.accuracy.update(torch.ones(1), torch.ones(1)),
    "attribute": lambda module, value: setattr(module, "last", value),
    "list": lambda module, value: module.seen.append(value),
    "object": lambda module, value: setattr(module.kept, "last", value),
}


def _texts(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes().decode("latin-1")


def look_everywhere(module: Any, value: float) -> None:
    for look in LOOKS.values():
        look(module, value)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_a_hook_logs_or_keeps_is_withheld(tmp_path: Path, capsys: Any) -> None:
    private, module = strategy(out=tmp_path / "run"), Hooked(look_everywhere)
    run = trainer(private, logger=CSVLogger(tmp_path / "logs"), log_every_n_steps=1)
    run.fit(module, loader())
    assert private.run.steps_done == STEPS
    assert "seen" not in run.callback_metrics
    assert run.callback_metrics["at_the_end"] == 0.0
    assert not module.seen
    assert str(int(MARK)) not in capsys.readouterr().out
    assert not [text for text in _texts(tmp_path) if str(int(MARK)) in text]


def test_what_a_hook_writes_into_a_tensor_is_refused() -> None:
    module = Hooked(lambda module, value: module.register.fill_(value))
    with pytest.raises(ad.ModelError, match="changes the tensor 'register' in place"):
        trainer(strategy()).fit(module, loader())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_hook_that_keeps_elsewhere_is_named_and_the_statement_says_so() -> None:
    seen: list[float] = []
    private = strategy()
    with pytest.warns(UserWarning, match=r"hooks of the user's own.*forward hook Hooked\.hook on 'net'"):
        trainer(private).fit(Hooked(lambda _, value: seen.append(value)), loader())
    assert len(seen) > B  # that is what it says
    assert [text for text in private.privacy.not_covered if "forward hook Hooked.hook on 'net'" in text]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_metrics_of_validation_are_as_ever_beside_those_of_training() -> None:
    """The metric that training_step updates counts nothing of the training records."""

    class Scored(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.accuracy(self(batch[0]), batch[1])
            self.log("accuracy", self.accuracy)

    module, run = Scored(), trainer(strategy())
    run.fit(module, loader(), loader(records(2)))
    x, y = records(2)
    assert run.callback_metrics["accuracy"] == (module(x).argmax(1) == y).float().mean()


class Unregistered(Classifier):
    """Has metrics where Lightning does not see them, and logs what they say after an epoch."""

    def __init__(self) -> None:
        super().__init__()
        named = MetricCollection({"mean": MeanMetric()})
        self.metrics, self.meter = {"loss": MeanMetric(), "more": [named]}, SimpleNamespace(loss=MeanMetric())

    def held(self) -> tuple[Any, ...]:
        return self.metrics["loss"], self.metrics["more"][0]["mean"], self.meter.loss  # type: ignore[index]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        for metric in self.held():
            metric.update(loss["loss"].detach())
        return loss

    def on_train_epoch_end(self) -> None:
        for metric in self.held():
            assert metric.update_count == 0


def test_a_metric_in_a_container_or_an_object_counts_nothing_and_costs_no_vmap() -> None:
    """Lightning's own logger would be handed the exact loss of all records. Afterwards it counts as ever."""
    module, private = Unregistered(), strategy()
    trainer(private).fit(module, loader())
    assert private.run.gradients.startswith("one record at a time under vmap")
    for metric in module.held():
        metric.update(torch.tensor(2.0))
        assert metric.compute() == 2.0


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("place", ["dict", "object"])
def test_a_tensor_that_is_added_up_in_a_container_or_an_object_is_refused_before_a_draw(place: str) -> None:
    def added(self: Any, loss: Tensor) -> Tensor:
        (self.sums["loss"] if place == "dict" else self.of.loss).add_(loss.detach())
        return loss

    module: Any = Keeping(added)
    module.sums, module.of = {"loss": torch.zeros(())}, SimpleNamespace(loss=torch.zeros(()))
    module.on_train_batch_start = lambda *_: pytest.fail("a batch was drawn")
    with pytest.raises(ad.ModelError, match=r"its loss changes the tensor .(sums|of)\b.* in place"):
        trainer(strategy()).fit(module, loader())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_tensor_in_a_container_that_is_declared_public_may_change_between_steps() -> None:
    class Annealed(Keeping):
        schedule: Any

        def on_train_batch_end(self, *_: Any) -> None:
            self.schedule["temperature"].fill_(1 / (1 + self.global_step))

    module: Any = Annealed(lambda module, loss: loss * module.schedule["temperature"])
    module.schedule = {"temperature": ad.public(torch.ones(()))}
    private = strategy()
    trainer(private).fit(module, loader())
    assert private.run.steps_done == STEPS
    assert module.schedule["temperature"] == pytest.approx(1 / (1 + STEPS))


class Prior(Classifier):
    """Has a buffer that its training_step does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prior", torch.ones(3))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_whose_module_has_more_than_it_trains_can_be_exported(tmp_path: Path) -> None:
    private, module = strategy(randomness=None), Prior()
    trainer(private).fit(module, loader())
    assert private.run.weights == weights_digest(module)
    write_card(private.run, tmp_path / "README.md")
    with torch.no_grad():
        module.get_buffer("prior").add_(1)
    with pytest.raises(ad.InputError, match="changed after training"):
        write_card(private.run, tmp_path / "other.md")
