"""What would not be private is refused by name with its remedy, and a fit that was not charged cannot succeed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import callbacks as known
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

import adadpigu as ad
from adadpigu.training.own_loop import PrivateBatch
from lightning_cases import Classifier, N, loader, net, records, same, strategy, trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"overfit_batches": 2}, "overfit_batches=2: batches are drawn afresh"),
        ({"num_nodes": 2}, "devices=2: one process trains on one device"),
        ({"devices": 2}, "devices=2: one process trains on one device; allowed: devices=1"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs=1: one data set"),
        ({"max_epochs": -1}, "a run without end has no plan"),
        ({"callbacks": [known.StochasticWeightAveraging(swa_lrs=0.1)]}, r"StochasticWeightAveraging.*tail=0\.5"),
        ({"callbacks": [known.GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler"),
        ({"callbacks": [known.LearningRateFinder()]}, "LearningRateFinder: not with private training"),
        ({"callbacks": [known.BatchSizeFinder()]}, "BatchSizeFinder: not with private training"),
        ({"callbacks": [known.EarlyStopping("train_loss")]}, r"EarlyStopping\(monitor='train_loss'\): training_step"),
        ({"callbacks": [known.EarlyStopping("train_loss_epoch")]}, "monitor='train_loss_epoch'"),
    ],
)
def test_a_setting_of_the_trainer_is_refused_by_name(setting: dict[str, Any], told: str) -> None:
    private, module = strategy(), Classifier()
    with pytest.raises(ad.InputError, match=told):
        trainer(private, **setting).fit(module, loader())
    assert same(module.net, net())
    with pytest.raises(ad.InputError, match="this strategy has finished no fit"):
        _ = private.run


class Endless(IterableDataset[Any]):
    """No length, no positions."""

    def __iter__(self) -> Any:
        return iter(())


class OwnLoader(DataLoader[Any]):
    """Chooses by itself."""

    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: loader(sampler=WeightedRandomSampler([1.0] * N, N)), "sampler=WeightedRandomSampler chooses records"),
        (lambda: loader(sampler=RandomSampler(range(N), replacement=True)), "sampler=RandomSampler chooses records"),
        (lambda: loader(sampler=list(range(N))), "sampler=list chooses records"),
        (lambda: loader(batch_size=1, batch_sampler=[[0, 1], [2]]), "a batch_sampler of your own"),
        (lambda: loader(batch_size=None), "a batch_sampler of your own"),
        (lambda: DataLoader(Endless(), batch_size=4), "Endless has no length or no positions"),
        (lambda: [records()], "train_dataloader: a Tensor makes its own batches"),
        (lambda: OwnLoader(TensorDataset(*records())), "train_dataloader: a OwnLoader makes its own batches"),
        (lambda: [loader(), loader()], "several loaders; allowed: one DataLoader"),
        (lambda: DataLoader([{"x": object()}], batch_size=1), "items cannot be put into a batch"),  # type: ignore[arg-type]
    ],
)
def test_a_loader_that_would_decide_who_is_drawn_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises((ad.InputError, ad.PrivacyLineError), match=told):
        trainer(strategy()).fit(Classifier(), make())


def test_a_list_of_one_loader_is_taken_and_its_order_is_told_to_have_no_effect() -> None:
    with pytest.warns(UserWarning, match="shuffle=True and drop_last=True and num_workers=2 has no effect"):
        trainer(strategy()).fit(Classifier(), [loader(shuffle=True, drop_last=True, num_workers=2)])


def _by_hand(module: Classifier) -> None:
    module.automatic_optimization = False


def _two_optimizers(module: Any) -> None:
    halves = [torch.optim.SGD(module.net[part].parameters(), lr=0.1) for part in (0, 2)]
    module.configure_optimizers = lambda: halves


def _batch_norm(module: Classifier) -> None:
    module.net.insert(1, nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_by_hand, "automatic_optimization=False optimises by hand; allowed: True"),
        (_two_optimizers, "configure_optimizers gives 2 optimizers|multiple optimizers"),
        (_batch_norm, r"'net.1' \(BatchNorm1d\): mixes records through batch statistics"),
    ],
)
def test_a_module_that_would_go_around_is_refused(change: Callable[[Any], None], told: str) -> None:
    module = Classifier()
    change(module)
    with pytest.raises(Exception, match=told):
        trainer(strategy()).fit(module, loader())


@pytest.mark.parametrize("place", ["module", "data"])
def test_a_hook_that_would_need_the_batch_is_refused(place: str) -> None:
    def hook(self: Any, batch: Any, dataloader_idx: int) -> Any:
        return batch

    module, data = Classifier(), pl.LightningDataModule.from_datasets(TensorDataset(*records()), batch_size=16)
    owner: Any = module if place == "module" else data
    owner.__class__ = type("Hooked", (type(owner),), {"on_before_batch_transfer": hook})
    with pytest.raises(ad.ModelError, match=r"Hooked\.on_before_batch_transfer.*allowed: on_after_batch_transfer"):
        trainer(strategy()).fit(module, datamodule=data)


def test_a_hook_that_is_not_called_is_told() -> None:
    kind = type("Hooked", (Classifier,), {"backward": lambda self, *_: pytest.fail("called")})
    with pytest.warns(UserWarning, match=r"Hooked\.backward has no effect"):
        trainer(strategy()).fit(kind(), loader())


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("batch_size", "the DataLoader's"),
        ("epochs", "max_epochs of the Trainer"),
        ("resume", r"a new fit; a run in Lightning cannot go on \(adadpigu.PrivateLoop can\)"),
        ("device", "accelerator and devices of the Trainer"),
    ],
)
def test_what_lightning_settles_is_no_option(option: str, told: str) -> None:
    with pytest.raises(ad.InputError, match=rf"{option}=1: not an option of PrivateStrategy; allowed: {told}"):
        strategy(**{option: 1})


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"noise_multiplyer": 2.0}, "unknown option of PrivateStrategy 'noise_multiplyer'; did you mean 'noise_mult"),
        ({"ema": 2.0}, r"ema=2\.0 is not in \(0, 1\)"),
        ({"engine": "gohst"}, "unknown engine 'gohst'; did you mean 'ghost'"),
        ({"lr": 0.1}, r"lr=0\.1: not an option of PrivateStrategy; allowed: configure_optimizers"),
    ],
)
def test_an_option_that_is_none_is_refused_when_the_strategy_is_made(option: dict[str, Any], told: str) -> None:
    with pytest.raises(ad.InputError, match=told):
        strategy(**option)


def test_checkpoints_of_lightnings_are_no_way_to_go_on(tmp_path: Path) -> None:
    first = trainer(strategy())
    first.fit(Classifier(), loader())
    first.save_checkpoint(tmp_path / "kept.ckpt")
    with pytest.raises(ad.InputError, match=r"kept\.ckpt': a checkpoint of Lightning's holds no ledger"):
        trainer(strategy()).fit(Classifier(), loader(), ckpt_path=tmp_path / "kept.ckpt")
    with pytest.raises(ad.InputError, match="a PrivateStrategy is charged for one fit"):
        first.fit(Classifier(), loader())


def test_a_batch_that_a_hook_skips_is_refused() -> None:
    """Its draw is part of the plan."""
    module = Classifier()
    module.on_train_batch_start = lambda *_: -1  # type: ignore[method-assign]
    with pytest.raises(ad.InputError, match=r"backward\(\) was not called"):
        trainer(strategy()).fit(module, loader())
    assert same(module.net, net())


@pytest.mark.parametrize(
    ("again", "told"), [("step", "twice on one release"), ("backward", "a backward pass of your own reached")]
)
def test_a_step_that_was_not_charged_is_refused(again: str, told: str) -> None:
    class Goes(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: object) -> None:
            if again == "step":
                trainer.optimizers[0].step()
            else:
                F.cross_entropy(pl_module(records()[0]), records()[1]).backward()  # type: ignore[no-untyped-call]

    module = Classifier()
    with pytest.raises(ad.PrivacyLineError, match=told):
        trainer(strategy(), callbacks=[Goes()]).fit(module, loader())
    assert same(module.net, net())


class StopsAtOnce(pl.Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize("setting", [{"max_epochs": 0}, {"max_steps": 0}, {"callbacks": [StopsAtOnce()]}])
def test_a_fit_without_steps_trains_nothing_and_claims_no_finished_run(setting: dict[str, Any]) -> None:
    module, private = Classifier(), strategy()
    trainer(private, **setting).fit(module, loader())
    assert same(module.net, net())
    if "callbacks" in setting:
        assert (private.run.steps_done, private.run.interrupted) == (0, True)
    else:
        with pytest.raises(ad.InputError, match="has finished no fit"):
            _ = private.run


def test_a_plan_is_not_made_longer_amid_a_fit() -> None:
    class Extends(pl.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.fit_loop.max_epochs = 3

    with pytest.raises(ad.InputError, match="the plan of 8 steps is used up"):
        trainer(strategy(), callbacks=[Extends()]).fit(Classifier(), loader())


def test_batches_are_handles_without_records() -> None:
    seen: list[Any] = []

    class Looks(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(batch)

    trainer(strategy(), callbacks=[Looks()]).fit(Classifier(), loader())
    assert all(isinstance(batch, PrivateBatch) for batch in seen)


def test_an_error_amid_a_fit_leaves_the_weights_as_they_were(tmp_path: Path) -> None:
    class Fails(pl.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            raise RuntimeError("of the user's own")

    module, private = Classifier(), strategy(out=tmp_path / "run")
    with pytest.raises(RuntimeError, match="of the user's own"):
        trainer(private, callbacks=[Fails()]).fit(module, loader())
    assert same(module.net, net())
    assert (tmp_path / "run" / "privacy.json").exists()
    loss: Any = F.cross_entropy(module(records()[0]), records()[1])
    loss.backward()  # the watch is off again


def test_ctrl_c_ends_the_run_as_interrupted() -> None:
    class Interrupts(pl.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            raise KeyboardInterrupt

    private = strategy()
    with pytest.raises(SystemExit):
        trainer(private, callbacks=[Interrupts()]).fit(Classifier(), loader())
    assert private.run.interrupted
    assert private.run.steps_done == 4


@pytest.mark.slow
def test_without_lightning_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['lightning'] = None\n"
        "import adadpigu\n"
        "try:\n    import adadpigu.integrations.lightning\n"
        "except adadpigu.InputError as error:\n    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'adadpigu[lightning]'" in told
