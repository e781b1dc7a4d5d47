"""Settings of a Trainer and a LightningModule under which training would not be private, or not what was asked for.

Each refusal names the value and the remedy. All of it is public.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks as known
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden

from adadpigu.errors import InputError, ModelError, require

_CALLBACKS: dict[type[pl.Callback], str] = {
    known.GradientAccumulationScheduler: "accumulate_grad_batches of the Trainer, the same in all epochs",
    known.StochasticWeightAveraging: "PrivateStrategy(tail=0.5) or ema=, which average releases",
    known.BatchSizeFinder: "physical_batch_size='auto'; what fits must not depend on who was drawn",
    known.LearningRateFinder: "a learning rate found on public data; it would train on the records unaccounted",
}
"""callbacks that would change the plan or train beside it, with what is allowed instead"""


def check_trainer(trainer: Any) -> None:
    """Refuses settings that contradict the plan, the sampler or the bounds."""
    for setting, remedy in _contradictions(trainer):
        raise InputError(f"{setting}: {remedy}")


def _contradictions(trainer: Any) -> Iterator[tuple[str, str]]:
    devices = len(trainer.strategy.parallel_devices) * trainer.strategy.num_nodes
    if devices != 1:
        yield f"devices={devices}", "one process trains on one device; allowed: devices=1, num_nodes=1"
    if trainer.overfit_batches:
        yield f"overfit_batches={trainer.overfit_batches}", "batches are drawn afresh in every step; allowed: 0"
    if every := trainer.reload_dataloaders_every_n_epochs:
        yield f"reload_dataloaders_every_n_epochs={every}", "one data set is accounted for; allowed: 0"
    for callback in trainer.callbacks:
        for kind, remedy in _CALLBACKS.items():
            if isinstance(callback, kind):
                yield f"callback {type(callback).__name__}", f"not with private training; allowed: {remedy}"


def take_over_precision(strategy: Any, options: dict[str, Any], *, by_rules: bool) -> None:
    """Has the package compute products in bfloat16 if the Trainer asks for it and layer rules run; else warns."""
    asked, plain = strategy.precision_plugin, Precision()
    if type(asked) is Precision:
        return
    strategy.precision_plugin = plain
    if asked.precision == "bf16-mixed" and by_rules and strategy.root_device.type == "cuda":
        options.setdefault("precision", "bf16")
        return
    warnings.warn(
        f"precision={asked.precision!r} has no effect: the net is computed in float32; 'bf16-mixed' takes a GPU, "
        "private_losses(self, batch) and PrivateStrategy(engine='ghost')",
        stacklevel=2,
    )


def check_module(module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Refuses optimisation by hand and a hook that would need the batch; warns of hooks that are not called."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise ModelError(
            f"{name}: automatic_optimization=False optimises by hand; allowed: True, or adadpigu.PrivateLoop for a "
            "loop of your own"
        )
    for owner in (module, datamodule):
        if owner is not None and is_overridden("on_before_batch_transfer", owner):
            raise ModelError(
                f"{type(owner).__name__}.on_before_batch_transfer: batches are not seen before they are drawn; "
                "allowed: on_after_batch_transfer, which gets one record at a time"
            )
        for hook in ("backward", "transfer_batch_to_device"):
            if owner is not None and hasattr(owner, hook) and is_overridden(hook, owner):
                warnings.warn(
                    f"{type(owner).__name__}.{hook} has no effect: gradients are computed record by record",
                    stacklevel=2,
                )


def check_monitors(trainer: Any, logged: Iterable[str]) -> None:
    """Refuses decisions by what training_step logs: those values are withheld."""
    unknown = {name + suffix for name in logged for suffix in ("", "_step", "_epoch")}
    watching = [(type(each).__name__, getattr(each, "monitor", None)) for each in trainer.callbacks]
    watching += [(type(each.scheduler).__name__, each.monitor) for each in trainer.lr_scheduler_configs]
    for owner, monitor in watching:
        require(
            monitor not in unknown,
            f"{owner}(monitor={monitor!r}): training_step logs it, which would be an un-noised value of private "
            "records; allowed: a metric of validation_step, on records that are not private",
        )


def planned_steps(trainer: pl.Trainer) -> int:
    """T: what max_epochs, max_steps and limit_train_batches allow."""
    steps = trainer.estimated_stepping_batches
    endless = "max_epochs=-1, max_steps=-1: a run without end has no plan; allowed: give one of them"
    require(math.isfinite(steps), endless)
    return int(steps)


def caveats(trainer: Any, module: pl.LightningModule) -> Iterator[str]:
    """What the statement names as not covered."""
    yield (
        f"what {type(module).__name__}, its callbacks and profilers write by themselves of records, time and memory: "
        "they are the user's code"
    )
    if trainer.enable_validation:
        yield (
            "the validation records: metrics on them are exact, and so is what is chosen by them (stopping, "
            "checkpoints)"
        )
