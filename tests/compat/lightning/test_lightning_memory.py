"""What a training_step would keep or return of a batch is not there: told by name before anything is drawn."""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning_cases import STEPS, Classifier, loader, net, same, strategy, trainer
from torch import Tensor
from torch.nn import functional as F

import adadpigu as ad


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
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        return self.keep(self, loss)

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


def in_an_object(self: Any, loss: Tensor) -> Tensor:
    self.meter.update(loss.detach())
    return loss


def in_an_attribute(self: Any, loss: Tensor) -> Tensor:
    self.last = loss
    return loss


def in_a_new_attribute(self: Any, loss: Tensor) -> Tensor:
    self.newest = {"loss": loss}
    return loss


KEPT = {
    "losses": in_a_list,
    "recent": in_a_deque,
    "by_name.train": in_a_dict_of_lists,
    "meter.total', 'meter.seen.losses": in_an_object,
    "last": in_an_attribute,
    "newest": in_a_new_attribute,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_training_step_keeps_is_named_and_nothing_stays(name: str) -> None:
    module = Keeping(KEPT[name])
    with pytest.warns(UserWarning, match=f"'{name}': what Keeping.training_step keeps there is not kept.*diagnostics"):
        trainer(strategy()).fit(module, loader())
    assert (module.losses, [*module.recent], dict(module.by_name), module.last) == ([], [], {}, None)
    assert (module.meter.total, module.meter.seen) == (0.0, {"losses": []})
    assert not hasattr(module, "newest")
    assert not same(module.net, net())


def test_a_step_that_keeps_nothing_is_not_warned_of() -> None:
    """Numbers that it counts are public, and kept."""

    def counting(self: Any, loss: Tensor) -> Tensor:
        self.count += 1
        return loss

    module = Keeping(counting)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is not kept")
        trainer(strategy()).fit(module, loader())
    assert module.count == STEPS


def _mean_of_the_epoch(self: Any) -> None:
    self.log("train_loss_epoch", torch.stack(self.losses).mean())
    self.losses.clear()


def _by_a_function_within(self: Any) -> None:
    def mean() -> Any:
        return sum(each for each in self.losses) / len(self.losses)

    self.log("train_loss_epoch", mean())


@pytest.mark.parametrize("body", [_mean_of_the_epoch, _by_a_function_within])
@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_end", "on_validation_epoch_end"])
def test_a_hook_that_reads_what_training_step_keeps_is_refused_before_the_first_draw(hook: str, body: Any) -> None:
    kind = type("Averaging", (Keeping,), {hook: body, "on_train_batch_start": lambda *_: pytest.fail("drawn")})
    module = kind(in_a_list)
    with pytest.raises(ad.ModelError, match=rf"Averaging\.{hook} reads 'losses', in which training_step.*allowed: "):
        trainer(strategy()).fit(module, loader())
    assert same(module.net, net())
    assert module.losses == []


def test_a_hook_that_reads_something_else_is_not_refused() -> None:
    seen: list[int] = []

    class Counts(Keeping):
        def on_train_epoch_end(self) -> None:
            seen.append(self.count)

    with pytest.warns(UserWarning, match="'losses': what Counts"):
        trainer(strategy()).fit(Counts(in_a_list), loader())
    assert len(seen) == 2


def with_the_last(self: Any, loss: Tensor) -> Any:
    before, self.last = self.last, loss.detach()
    return loss if before is None else loss + 0.1 * before


def with_a_few(self: Any, loss: Tensor) -> Any:
    self.losses.append(loss.detach())
    return loss + sum(self.losses[:-4])


def by_their_number(self: Any, loss: Tensor) -> Any:
    self.losses.append(loss.detach())
    return loss * (2.0 if len(self.losses) > 3 else 1.0)


@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (with_the_last, r"its loss takes what an earlier step has kept of its batch \(last\)"),
        (with_a_few, r"its loss takes what an earlier step has kept of its batch \(losses\)"),
        (by_their_number, "its loss changes from step to step"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_loss_of_what_earlier_steps_kept_is_refused(keep: Any, told: str) -> None:
    module = Keeping(keep)
    with pytest.raises(ad.ModelError, match=told):
        trainer(strategy()).fit(module, loader())
    assert same(module.net, net())
    assert (module.last, module.losses) == (None, [])


class ReadsLoss(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        print(outputs["loss"])


class GetsLoss(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, out: Any, batch: Any, batch_idx: int) -> None:
        print(out.get("loss"))


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (ReadsLoss(), r"ReadsLoss\.on_train_batch_end reads 'outputs', which is empty in private training: a loss"),
        (GetsLoss(), r"GetsLoss\.on_train_batch_end reads 'out', which is empty"),
        (
            LambdaCallback(on_train_batch_end=lambda trainer, module, outputs, batch, index: print(outputs["loss"])),
            r"LambdaCallback\.on_train_batch_end reads 'outputs'.*allowed: metrics of validation_step",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_callback_that_reads_the_loss_of_a_batch_is_refused_before_the_first_draw(callback: Any, told: str) -> None:
    module = Classifier()
    module.on_train_batch_start = lambda *_: pytest.fail("a batch was drawn")  # type: ignore[method-assign]
    with pytest.raises(ad.ModelError, match=told):
        trainer(strategy(), callbacks=[callback]).fit(module, loader())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_module_that_reads_the_loss_of_a_batch_is_refused() -> None:
    def reads(self: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        print(outputs["loss"])

    kind = type("Reading", (Classifier,), {"on_train_batch_end": reads})
    with pytest.raises(ad.ModelError, match=r"Reading\.on_train_batch_end reads 'outputs'"):
        trainer(strategy()).fit(kind(), loader())
    module: Any = Classifier()
    module.on_train_batch_end = lambda outputs, batch, index: print(outputs["loss"])
    with pytest.raises(ad.ModelError, match=r"Classifier\.on_train_batch_end reads 'outputs'"):
        trainer(strategy()).fit(module, loader())


def test_a_callback_that_passes_outputs_on_is_warned_of_and_gets_none() -> None:
    seen: list[Any] = []

    class Passes(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(outputs)
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    with pytest.warns(UserWarning, match=r"Passes\.on_train_batch_end reads 'outputs', which is empty"):
        trainer(strategy(), callbacks=[Passes()]).fit(Classifier(), loader())
    assert len(seen) == STEPS
    assert not any(seen)


class Quiet(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Has "loss" in its text, and looks at nothing."""


def test_callbacks_that_do_not_look_are_not_warned_of(tmp_path: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*on_train_batch_end reads")
        kept = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2)
        trainer(strategy(), callbacks=[Quiet(), kept], enable_checkpointing=True).fit(Classifier(), loader())
