"""Settings of a Trainer and habits of a LightningModule under which training would not be private: refused by name.

Each check names the value and the remedy. What is not refused here is stopped by the guard of the private loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks as known
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.utilities.model_helpers import is_overridden

from adadpigu.errors import InputError, ModelError

_CALLBACKS: dict[type[pl.Callback], str] = {
    known.GradientAccumulationScheduler: "a larger batch_size in the DataLoader, and physical_batch_size for memory",
    known.StochasticWeightAveraging: "PrivateStrategy(tail=0.5) or ema=, which average releases",
    known.BatchSizeFinder: "physical_batch_size='auto'; what fits must not depend on who was drawn",
    known.LearningRateFinder: "a learning rate found on public data; it would train on the records unaccounted",
    known.Timer: "max_steps; how long a step takes tells how many records it drew",
    known.DeviceStatsMonitor: "none; memory and load tell how many records a step drew",
    known.ThroughputMonitor: "none; it counts the records of a batch",
    known.ModelPruning: "a method that freezes or prunes, such as AdaDPIGU(mode='prune')",
}
"""callbacks that cannot be, with what is allowed instead"""
_HOOKS = {
    "backward": "none; gradients are computed record by record",
    "configure_gradient_clipping": "none; each record's gradient is clipped (clip_norm of the method)",
    "on_before_backward": "on_after_backward, where gradients are releases",
    "on_before_batch_transfer": "the same work in the data set's __getitem__",
    "on_after_batch_transfer": "the same work in the data set's __getitem__",
    "transfer_batch_to_device": "the default one",
}
"""hooks that would see records or gradients of theirs, with what is allowed instead"""


def check_trainer(trainer: pl.Trainer) -> None:
    """Refuses what the Trainer was made with, as far as that can be said before training."""
    for name, value, remedy in _odd_settings(trainer):
        raise InputError(f"{name}={value!r}: {remedy}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for kind, remedy in _CALLBACKS.items():
            if isinstance(callback, kind):
                raise InputError(f"callback {type(callback).__name__}: not with private training; allowed: {remedy}")
        if is_overridden("on_before_backward", callback, pl.Callback):
            remedy = _HOOKS["on_before_backward"]
            raise InputError(f"callback {type(callback).__name__}: on_before_backward gets a loss; allowed: {remedy}")
    if type(trainer.precision_plugin) is not Precision:
        raise InputError(
            f"precision={trainer.precision!r}: bounds hold for float32; allowed: precision='32-true' (on a GPU "
            "PrivateStrategy(precision='bf16'))"
        )


def _odd_settings(trainer: Any) -> Iterator[tuple[str, object, str]]:
    devices = len(trainer.strategy.parallel_devices) * trainer.strategy.num_nodes
    if devices != 1:
        yield "devices", devices, "one process trains on one device; allowed: devices=1, num_nodes=1"
    if (kind := trainer.strategy.root_device.type) not in ("cpu", "cuda"):
        yield "accelerator", kind, "not supported; allowed: accelerator='cpu' or 'gpu' (CUDA)"
    if trainer.fast_dev_run:
        yield "fast_dev_run", trainer.fast_dev_run, "it trains on other terms; allowed: max_steps for a short run"
    if trainer.overfit_batches:
        yield "overfit_batches", trainer.overfit_batches, "batches are drawn afresh in every step; allowed: 0"
    if not (isinstance(trainer.limit_train_batches, float) and trainer.limit_train_batches == 1.0):
        yield "limit_train_batches", trainer.limit_train_batches, "the plan has all steps; allowed: 1.0, and max_steps"
    if trainer.accumulate_grad_batches != 1:
        remedy = "releases are not added up; allowed: 1, a larger batch_size, and physical_batch_size for memory"
        yield "accumulate_grad_batches", trainer.accumulate_grad_batches, remedy
    if trainer.gradient_clip_val:
        remedy = "each record's gradient is clipped already, by clip_norm of the method; allowed: None"
        yield "gradient_clip_val", trainer.gradient_clip_val, remedy
    if trainer.reload_dataloaders_every_n_epochs:
        remedy = "one data set is accounted for; allowed: 0"
        yield "reload_dataloaders_every_n_epochs", trainer.reload_dataloaders_every_n_epochs, remedy
    if not isinstance(trainer.profiler, PassThroughProfiler):
        remedy = "how long a step takes tells how many records it drew; allowed: None"
        yield "profiler", type(trainer.profiler).__name__, remedy


def check_module(module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Refuses modules that would go around the strategy."""
    name = type(module).__name__
    if module._compiler_ctx is not None:
        raise ModelError(f"{name} is compiled: its training_step cannot be followed; allowed: not compiled")
    if not module.automatic_optimization:
        raise ModelError(
            f"{name}: automatic_optimization=False optimises by hand; allowed: True, with a training_step that "
            "returns its loss, or adadpigu.PrivateLoop for a loop of your own"
        )
    if "dataloader_iter" in type(module).training_step.__code__.co_varnames[:3]:
        raise ModelError(f"{name}.training_step takes dataloader_iter; allowed: batch and batch_idx")
    for hook, remedy in _HOOKS.items():
        for owner in (module, datamodule):
            if owner is not None and hasattr(owner, hook) and is_overridden(hook, owner):
                raise ModelError(f"{type(owner).__name__}.{hook}: not with private training; allowed: {remedy}")
    for path, part in module.named_modules():
        if not part.training and any(True for _ in part.parameters(recurse=False)):
            raise ModelError(
                f"{path or name!r} is in evaluation mode, but the model is trained as a whole; call .train()"
            )
        if type(part).__name__ == "OptimizedModule":
            raise ModelError(
                f"{path!r} is compiled: its gradients cannot be taken record by record; allowed: not compiled"
            )


def check_optimizers(optimizers: list[Any]) -> None:
    """One optimiser, fed by one release a step."""
    if len(optimizers) != 1 or not optimizers[0].param_groups:
        raise InputError(f"configure_optimizers gives {len(optimizers)} optimizers with parameters; allowed: one")


def check_monitors(trainer: pl.Trainer, logged: tuple[str, ...]) -> None:
    """Refuses decisions by what training_step would log: those values do not exist, and would be exact."""
    unknown = {name + suffix for name in logged for suffix in ("", "_step", "_epoch")}
    watching = [(type(each).__name__, getattr(each, "monitor", None)) for each in trainer.callbacks]  # type: ignore[attr-defined]
    watching += [(type(each.scheduler).__name__, each.monitor) for each in trainer.lr_scheduler_configs]
    for owner, monitor in watching:
        if monitor in unknown:
            raise InputError(
                f"{owner}(monitor={monitor!r}): training_step logs it, which would be an un-noised value of private "
                "records; allowed: a metric of validation_step, on records that are not private"
            )


def planned_steps(trainer: pl.Trainer, epoch: int) -> int:
    """T: what max_epochs and max_steps allow, at so many steps an epoch."""
    limits = [trainer.max_steps] if trainer.max_steps != -1 else []
    if trainer.max_epochs not in (None, -1):
        limits.append(epoch * int(trainer.max_epochs or 0))
    if not limits:
        raise InputError("max_epochs=-1, max_steps=-1: a run without end has no plan; allowed: give one of them")
    if min(limits) < 1:
        raise InputError(
            f"max_epochs={trainer.max_epochs}, max_steps={trainer.max_steps}: no step; allowed: at least 1"
        )
    return min(limits)
