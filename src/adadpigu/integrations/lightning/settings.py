"""Settings of a Trainer and a LightningModule under which training would not be private, or not what was asked for.

Each refusal names the value and the remedy. All of it is public.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks as known
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden

from adadpigu.errors import ModelError, require
from adadpigu.integrations.shared import Rule, refuse_settings, warn_of_no_effect

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "body_lr"), "configure_optimizers"),
    **dict.fromkeys(("optimizer", "lr_schedule", "warmup"), "configure_optimizers"),
    "batch_size": "the DataLoader's",
    "steps": "max_epochs and max_steps of the Trainer",
    "epochs": "max_epochs of the Trainer",
    "device": "accelerator and devices of the Trainer",
    "loss": "what training_step returns",
    "losses": "private_losses(self, batch) -> [n] of the LightningModule",
    "front": "a frozen module in the LightningModule",
    "test": "trainer.test",
    "execution": "none; steps are run as they are",
    "evaluate_every": "val_check_interval of the Trainer",
    "resume": "a new fit; a run in Lightning cannot go on (adadpigu.PrivateLoop can)",
}
"""options of `train` that Lightning or the module sets"""
_REFUSED: Mapping[str, Rule] = {
    "devices": ((1,), "one process trains on one device; allowed: devices=1, num_nodes=1"),
    "overfit_batches": ((0,), "batches are drawn afresh in every step; allowed: 0"),
    "reload_dataloaders_every_n_epochs": ((0,), "one data set is accounted for; allowed: 0"),
}
_CALLBACKS: Mapping[type[pl.Callback], str] = {
    known.GradientAccumulationScheduler: "accumulate_grad_batches of the Trainer, the same in all epochs",
    known.StochasticWeightAveraging: "PrivateStrategy(tail=0.5) or ema=, which average releases",
    known.BatchSizeFinder: "physical_batch_size='auto'; what fits must not depend on who was drawn",
    known.LearningRateFinder: "a learning rate found on public data; it would train on the records unaccounted",
}
"""callbacks that would change the plan or train beside it, with what is allowed instead"""


def check_trainer(trainer: Any) -> None:
    """Refuses settings that contradict the plan, the sampler or the bounds."""
    given = {name: getattr(trainer, name, None) for name in _REFUSED}
    given["devices"] = len(trainer.strategy.parallel_devices) * trainer.strategy.num_nodes
    refuse_settings(_REFUSED, given)
    for callback in trainer.callbacks:
        for kind, remedy in _CALLBACKS.items():
            refused = f"callback {type(callback).__name__}: not with private training; allowed: {remedy}"
            require(not isinstance(callback, kind), refused)


def take_over_precision(strategy: Any, options: dict[str, Any], *, by_rules: bool) -> None:
    """Has the package compute products in bfloat16 if the Trainer asks for it and layer rules run; else warns."""
    asked, strategy.precision_plugin = strategy.precision_plugin, Precision()
    if type(asked) is Precision:
        return
    if asked.precision == "bf16-mixed" and by_rules and strategy.root_device.type == "cuda":
        options.setdefault("precision", "bf16")
        return
    takes = "a GPU, private_losses(self, batch) and PrivateStrategy(engine='ghost')"
    why = f"the net is computed in float32; 'bf16-mixed' takes {takes}"
    warn_of_no_effect(f"precision={asked.precision!r}", why)


def check_module(module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Refuses optimisation by hand and a hook that would need the batch; warns of hooks that are not called."""
    if not module.automatic_optimization:
        fault = f"{type(module).__name__}: automatic_optimization=False optimises by hand"
        raise ModelError(f"{fault}; allowed: True, or adadpigu.PrivateLoop for a loop of your own")
    for owner in (module, datamodule):
        name = type(owner).__name__
        if owner is not None and is_overridden("on_before_batch_transfer", owner):
            fault = f"{name}.on_before_batch_transfer: batches are not seen before they are drawn"
            raise ModelError(f"{fault}; allowed: on_after_batch_transfer, which gets one record at a time")
        for hook in ("backward", "transfer_batch_to_device"):
            if hasattr(owner, hook) and is_overridden(hook, owner):
                warn_of_no_effect(f"{name}.{hook}", "gradients are computed record by record")


def check_monitors(trainer: Any, logged: Iterable[str]) -> None:
    """Refuses decisions by what training_step logs: those values are withheld."""
    unknown = {name + suffix for name in logged for suffix in ("", "_step", "_epoch")}
    watching = [(type(each).__name__, getattr(each, "monitor", None)) for each in trainer.callbacks]
    watching += [(type(each.scheduler).__name__, each.monitor) for each in trainer.lr_scheduler_configs]
    for owner, monitor in watching:
        fault = f"{owner}(monitor={monitor!r}): training_step logs it, an un-noised value of private records"
        remedy = "a metric of validation_step, on records that are not private"
        require(monitor not in unknown, f"{fault}; allowed: {remedy}")
