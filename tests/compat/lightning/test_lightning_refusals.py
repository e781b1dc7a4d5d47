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
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning_cases import Classifier, N, loader, net, records, same, strategy, trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

import adadpigu as ad
from adadpigu.training.own_loop import PrivateBatch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=2: releases are not added up"),
        ({"gradient_clip_val": 1.0}, r"gradient_clip_val=1\.0: each record's gradient is clipped already"),
        ({"precision": "bf16-mixed"}, "precision='bf16-mixed': bounds hold for float32"),
        ({"precision": "64-true"}, "precision='64-true': bounds hold for float32"),
        ({"limit_train_batches": 1}, "limit_train_batches=1: the plan has all steps"),
        ({"limit_train_batches": 0}, "limit_train_batches=0: the plan has all steps"),
        ({"limit_train_batches": 0.5}, r"limit_train_batches=0\.5"),
        ({"overfit_batches": 2}, "overfit_batches=2: batches are drawn afresh"),
        ({"fast_dev_run": True}, "fast_dev_run=True: it trains on other terms"),
        ({"num_nodes": 2}, "devices=2: one process trains on one device"),
        ({"devices": 2}, "devices=2: one process trains on one device; allowed: devices=1"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs=1: one data set"),
        ({"profiler": "simple"}, "profiler='SimpleProfiler': how long a step takes"),
        ({"max_time": {"hours": 1}}, "callback Timer: not with private training; allowed: max_steps"),
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
        (
            lambda: loader(drop_last=True),
            "drop_last=True, but Poisson batches have no last one; allowed: drop_last=False",
        ),
        (lambda: loader(sampler=WeightedRandomSampler([1.0] * N, N)), "sampler=WeightedRandomSampler chooses records"),
        (lambda: loader(sampler=RandomSampler(range(N), replacement=True)), "sampler=RandomSampler chooses records"),
        (lambda: loader(sampler=list(range(N))), "sampler=list chooses records"),
        (lambda: loader(batch_size=1, batch_sampler=[[0, 1], [2]]), "a batch_sampler of your own"),
        (lambda: loader(batch_size=None), "a batch_sampler of your own"),
        (lambda: loader(collate_fn=lambda items: items), "collate_fn='<lambda>' sees several records at once"),
        (lambda: DataLoader(Endless(), batch_size=4), "Endless has no length or no positions"),
        (lambda: [records()], "train_dataloader: a Tensor makes its own batches"),
        (lambda: OwnLoader(TensorDataset(*records())), "train_dataloader: a OwnLoader makes its own batches"),
        (lambda: [loader(), loader()], "several loaders; allowed: one DataLoader"),
        (lambda: [loader()], r"allowed: one DataLoader \(no list of them\)"),
        (lambda: DataLoader([{"x": object()}], batch_size=1), "an item of its data set cannot be collated"),  # type: ignore[arg-type]
    ],
)
def test_a_loader_that_would_decide_who_is_drawn_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises((ad.InputError, ad.PrivacyLineError), match=told):
        trainer(strategy()).fit(Classifier(), make())


def test_shuffling_and_workers_are_told_to_have_no_effect() -> None:
    with pytest.warns(UserWarning, match="shuffle=True has no effect"):
        trainer(strategy()).fit(Classifier(), loader(shuffle=True))
    with pytest.warns(UserWarning, match="num_workers=2 has no effect"):
        trainer(strategy()).fit(Classifier(), loader(num_workers=2))


def _by_hand(module: Classifier) -> None:
    module.automatic_optimization = False


def _two_optimizers(module: Any) -> None:
    halves = [torch.optim.SGD(module.net[part].parameters(), lr=0.1) for part in (0, 2)]
    module.configure_optimizers = lambda: halves


def _compiled_layer(module: Any) -> None:
    module.net[0] = torch.compile(module.net[0])


def _evaluating(module: Classifier) -> None:
    module.net[0].eval()


def _class_weights(module: Any) -> None:
    module.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    module.__class__ = type("Weighted", (Classifier,), {"training_step": _weighted_step})


def _weighted_step(self: Any, batch: Any, batch_idx: int) -> Any:
    return self.criterion(self(batch[0]), batch[1])


def _mixing_step(self: Any, batch: Any, batch_idx: int) -> Any:
    hidden = self.net[0](batch[0])
    return F.cross_entropy(self.net[2](torch.tanh(hidden - hidden.mean(0))), batch[1])


def _mixing_in_the_step(module: Any) -> None:
    module.__class__ = type("Centred", (Classifier,), {"training_step": _mixing_step})


def _batch_norm(module: Classifier) -> None:
    module.net.insert(1, nn.BatchNorm1d(4))


def _replaced_step(module: Any) -> None:
    module.training_step = lambda batch, batch_idx: module(batch[0]).sum()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_by_hand, "automatic_optimization=False optimises by hand; allowed: True"),
        (_two_optimizers, "configure_optimizers gives 2 optimizers|multiple optimizers"),
        (_compiled_layer, r"'net.0' is compiled"),
        (_evaluating, r"'net.0' is in evaluation mode"),
        (_batch_norm, r"'net.1' \(BatchNorm1d\): mixes records through batch statistics"),
        (_replaced_step, "training_step: replaced on the object"),
        (_class_weights, "neither the mean nor the sum of its records' losses, as with class weights"),
        (_mixing_in_the_step, r"<model> \(Centred\): mixes records"),
    ],
)
def test_a_module_that_would_go_around_is_refused(change: Callable[[Any], None], told: str) -> None:
    module = Classifier()
    change(module)
    with pytest.raises(Exception, match=told):
        trainer(strategy()).fit(module, loader())


@pytest.mark.parametrize(
    "hook", ["backward", "configure_gradient_clipping", "on_after_batch_transfer", "transfer_batch_to_device"]
)
def test_a_hook_that_would_see_records_or_their_gradients_is_refused(hook: str) -> None:
    kind = type("Hooked", (Classifier,), {hook: lambda self, *args, **kwargs: None})
    with pytest.raises(ad.ModelError, match=rf"Hooked\.{hook}: not with private training; allowed"):
        trainer(strategy()).fit(kind(), loader())


def test_a_compiled_module_is_refused() -> None:
    with pytest.raises(ad.ModelError, match="Classifier is compiled"):
        trainer(strategy()).fit(torch.compile(Classifier()), loader())  # type: ignore[arg-type]


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


Attack = Callable[[Any, Any], None]


def _plain_steps(trainer: Any, module: Any) -> None:
    plain = SingleDeviceStrategy
    trainer.strategy.training_step = lambda *given: module.training_step(*given)
    trainer.strategy.backward = lambda *given: plain.backward(trainer.strategy, *given)
    trainer.strategy.optimizer_step = lambda *given, **more: plain.optimizer_step(trainer.strategy, *given, **more)


def _plain_optimizer_step(trainer: Any, module: Any) -> None:
    plain = SingleDeviceStrategy.optimizer_step
    trainer.strategy.optimizer_step = lambda *given, **more: plain(trainer.strategy, *given, **more)


def _no_step(trainer: Any, module: Any) -> None:
    trainer.strategy.optimizer_step = lambda optimizer, closure, **more: closure()


def _no_release(trainer: Any, module: Any) -> None:
    trainer.strategy.optimizer_step = lambda optimizer, closure, **more: (closure(), optimizer.step())


def _raw_loader(trainer: Any, module: Any) -> None:
    trainer.strategy.process_dataloader = lambda given: given


def _raw_everything(trainer: Any, module: Any) -> None:
    _plain_steps(trainer, module)
    _raw_loader(trainer, module)
    trainer.strategy.on_train_start = lambda: None


def _raw_and_quiet(trainer: Any, module: Any) -> None:
    _raw_everything(trainer, module)
    module.requires_grad_(False)  # no hook of a parameter's would fire
    trainer.strategy.backward = lambda *given: None
    trainer.strategy.on_train_end = lambda: None


def _another_strategy(trainer: Any, module: Any) -> None:
    plain = SingleDeviceStrategy(accelerator=trainer.accelerator)
    plain.connect(module)
    plain.optimizers = trainer.strategy.optimizers
    trainer._accelerator_connector.strategy = plain


def _stop_at_once(trainer: Any, module: Any) -> None:
    trainer.should_stop = True


def _step_of_its_own(trainer: Any, module: Any) -> None:
    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        trainer.optimizers[0].step()

    module.on_train_batch_end = lambda *given: step()


def _skipped_batches(trainer: Any, module: Any) -> None:
    module.on_train_batch_start = lambda *given: -1


@pytest.mark.parametrize("hook", ["setup", "on_fit_start"])
@pytest.mark.parametrize(
    ("attack", "told"),
    [
        (_plain_steps, r"optimizer\.step\(closure\)"),
        (_plain_optimizer_step, r"optimizer\.step\(closure\)"),
        (_no_step, r"backward\(\) was not called"),
        (_no_release, "there is no release to step along"),
        (_raw_loader, "training begins without the strategy's loader"),
        (_raw_everything, "a backward pass reached a parameter's grad"),
        (_raw_and_quiet, "nothing was charged"),
        (_another_strategy, "a backward pass reached a parameter's grad"),
        (_stop_at_once, "nothing was charged"),
        (_step_of_its_own, "twice on one release"),
        (_skipped_batches, r"backward\(\) was not called"),
    ],
)
def test_a_fit_that_was_not_charged_for_its_steps_cannot_succeed(attack: Attack, told: str, hook: str) -> None:
    module, private = Classifier(), strategy()

    class Attacker(pl.Callback):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if hook == "setup":
                attack(trainer, pl_module)

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            if hook == "on_fit_start":
                attack(trainer, pl_module)

    with pytest.raises((ad.InputError, ad.PrivacyLineError), match=told):
        trainer(private, callbacks=[Attacker()]).fit(module, loader())
    with pytest.raises(ad.InputError, match="this strategy has finished no fit"):
        _ = private.run
    assert same(module.net, net())  # nothing that was not paid for is left in the weights


def test_a_fit_that_is_stopped_before_its_first_step_cannot_succeed() -> None:
    class Stops(pl.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = True

    with pytest.raises(ad.PrivacyLineError, match="0 optimizer steps were made, 0 were charged"):
        trainer(strategy(), callbacks=[Stops()]).fit(Classifier(), loader())


@pytest.mark.parametrize("setting", [{"max_epochs": 0}, {"max_steps": 0}])
def test_a_fit_without_steps_cannot_succeed(setting: dict[str, Any]) -> None:
    with pytest.raises((ad.InputError, ad.PrivacyLineError), match=r"nothing was charged|no step"):
        trainer(strategy(), **setting).fit(Classifier(), loader())


def test_batches_are_handles_without_records() -> None:
    seen: list[Any] = []

    class Looks(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((outputs, batch))

    trainer(strategy(), callbacks=[Looks()]).fit(Classifier(), loader())
    assert all(isinstance(batch, PrivateBatch) and not outputs for outputs, batch in seen)


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


def test_without_lightning_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['lightning'] = None\n"
        "import adadpigu\n"
        "try:\n    import adadpigu.compat.lightning\n"
        "except adadpigu.InputError as error:\n    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'adadpigu[lightning]'" in told
