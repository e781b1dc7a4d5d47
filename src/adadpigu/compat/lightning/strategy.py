"""The strategy under which a Trainer trains privately: it owns the loader, the gradients and the optimiser's step.

    loader ─▶ handles of Poisson batches (`PrivateLoop`) ─▶ backward: charged, bounded, noised ─▶ the user's optimiser

`training_step` is never run on a record: its code was followed beforehand (`tracing`). So nothing that Lightning logs,
shows or stores has seen one. A `fit` that returns has charged the ledger for each of its steps.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.compat.lightning.hooks import check_kept, check_readers
from adadpigu.compat.lightning.loading import PrivateLoader, data_of, refuse_copied
from adadpigu.compat.lightning.moments import Moment, moments_of
from adadpigu.compat.lightning.settings import (
    check_module,
    check_monitors,
    check_optimizers,
    check_trainer,
    planned_steps,
)
from adadpigu.compat.lightning.silence import silenced
from adadpigu.compat.lightning.splitting import PrivateStep, split
from adadpigu.compat.lightning.tracing import Traced, follow, trace
from adadpigu.compat.options import check_options
from adadpigu.data.overlap import refuse_shared_records
from adadpigu.errors import InputError, ModelError, PrivacyLineError
from adadpigu.methods import Method
from adadpigu.randomness import Randomness, Tier
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.preparation import trained_models
from adadpigu.training.run import Observer, Run

_VALIDATION = (
    "the validation records: metrics on them are exact, and so is what is chosen by them (stopping, checkpoints)"
)
_ELSEWHERE = {
    "batch_size": "the DataLoader's",
    "steps": "max_epochs and max_steps of the Trainer",
    "epochs": "max_epochs of the Trainer",
    "device": "accelerator and devices of the Trainer",
    "loss": "what training_step returns",
    "front": "a fixed module in the LightningModule",
    "test": "trainer.test",
    "lr": "configure_optimizers",
    "momentum": "configure_optimizers",
    "weight_decay": "configure_optimizers",
    "optimizer": "configure_optimizers",
    "lr_schedule": "configure_optimizers",
    "warmup": "configure_optimizers",
    "execution": "none; steps are run as they are",
    "evaluate_every": "val_check_interval of the Trainer",
    "resume": "a new fit; a run in Lightning cannot go on (adadpigu.PrivateLoop can)",
}
"""options of `train` that are settled by Lightning"""


class PrivateStrategy(SingleDeviceStrategy):
    """Trains one LightningModule privately, on one device, in one `fit`.

    `records` is the public record count N. The other arguments are those of `train` (method, privacy, noise_multiplier,
    physical_batch_size, …), but what the Trainer, the DataLoader and configure_optimizers say. After `fit`, `run` and
    `privacy` tell what was spent; with `out` there is a run folder with its ledger.

    Formal guarantee: as for `PrivateLoop`, of the module's weights and of everything that the Trainer writes of them,
    provided that hooks and callbacks of the user's look at private records only through the batches they are given.
    """

    strategy_name = "private"

    def __init__(
        self,
        *,
        records: int,
        method: Method | str | None = None,
        privacy: Budget | None = None,
        delta: float = 1e-5,
        seed: int | None = None,
        out: Path | str | None = None,
        observers: Sequence[Observer] = (),
        randomness: Randomness | Tier | None = None,
        ledger: Path | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name in options.keys() & _ELSEWHERE.keys():
            raise InputError(f"{name}={options[name]!r}: not an option of PrivateStrategy; allowed: {_ELSEWHERE[name]}")
        check_options("PrivateStrategy", options, _ELSEWHERE)
        if records < 1:
            raise InputError(f"records={records} is not at least 1")
        self.parallel_devices: list[torch.device] = []
        """filled in by the Trainer, as is the next"""
        self.num_nodes = 1
        self._records = records
        self._settings: dict[str, Any] = {
            "method": method,
            "privacy": privacy,
            "delta": delta,
            "seed": seed,
            "out": out,
            "observers": observers,
            "randomness": randomness,
            "ledger": ledger,
            **options,
        }
        self._loader: PrivateLoader | None = None
        self._sample: Any = None
        """a batch of zeros, of the form that batches have"""
        self._traced: Traced | None = None
        self._step: PrivateStep | None = None
        self._loop: PrivateLoop | None = None
        self._run: Run | None = None
        self._evaluated: list[tuple[str, object]] = []
        """what loaders are called, and their data sets"""
        self._steps_made = 0
        self._begun = self._fitting = False
        self._watches: list[Any] = []

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0] if self.parallel_devices else self._root_device

    @property
    def run(self) -> Run:
        """The finished run; its model is the LightningModule."""
        if self._run is None:
            raise InputError("run: this strategy has finished no fit; allowed: after trainer.fit")
        return self._run

    @property
    def privacy(self) -> PrivacyReport:
        """What was spent and what is claimed, after `fit`."""
        return self.run.privacy

    @property
    def epsilon(self) -> float:
        """The ε to cite: of the whole plan."""
        return self.run.epsilon

    @property
    def _trainer(self) -> pl.Trainer:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    def connect(self, model: pl.LightningModule) -> None:
        super().connect(model)
        if model.trainer.state.fn == TrainerFn.FITTING:
            if self._begun:
                raise InputError("a PrivateStrategy is charged for one fit; allowed: another Trainer with another one")
            self._begun = self._fitting = True
            self._watch(model)

    def setup_environment(self) -> None:
        if self._fitting:  # before any callback is set up
            check_trainer(self._trainer)
        super().setup_environment()

    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            super().setup(trainer)
            return
        assert self.lightning_module is not None
        check_module(self.lightning_module, trainer.datamodule)  # type: ignore[attr-defined]
        super().setup(trainer)
        check_optimizers(self.optimizers)
        self._watch(self.lightning_module)
        self._watches.append(self.optimizers[0].register_step_post_hook(self._count))

    def process_dataloader(self, dataloader: object) -> object:
        trainer = self._trainer
        if trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            stage = "test" if trainer.testing else "predict" if trainer.predicting else "val"
            evaluated = (f"{stage}_dataloader", getattr(dataloader, "dataset", None))
            self._refuse_training_records([evaluated])
            self._evaluated.append(evaluated)
            return dataloader
        if self._loader is not None:
            raise InputError("train_dataloader: several loaders; allowed: one DataLoader")
        self._loader = PrivateLoader(dataloader, self._records)
        self._refuse_training_records(self._evaluated)
        return self._loader

    def on_train_start(self) -> None:
        """The plan is fixed and the ledger opened, before the first batch is asked for."""
        super().on_train_start()
        trainer, module, loader = self._trainer, self.lightning_module, self._loader
        if module is None or loader is None:
            raise PrivacyLineError("training begins without the strategy's loader: something has taken its place")
        steps = planned_steps(trainer, len(loader))
        self._sample = loader.sample()
        self._traced = trace(module, self._sample, moments_of(steps, len(loader)))
        step = self._step = split(module, self._traced)
        self._refuse_training_records(self._evaluated)
        check_monitors(trainer, step.logged)
        check_readers(trainer, module)
        check_kept(module, self._traced.kept)
        _tell_unlogged(step.logged)
        with silenced(module):  # the model is probed
            self._loop = PrivateLoop(
                step.model,
                self.optimizers[0],
                data_of(loader.source, self._records, step.inputs, step.targets),
                loss=step.loss,
                batch_size=loader.batch_size,
                steps=steps,
                device=str(self.root_device),
                **self._settings,
            )
        self._loop.__enter__()
        if trainer.enable_validation:
            self._loop.confess(_VALIDATION)
        loader.open(self._loop)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Before every step it is looked whether training_step still computes what was taken from it."""
        super().on_train_batch_start(batch, batch_idx)
        module, traced = self.lightning_module, self._traced
        if module is None or traced is None:
            return
        moment = Moment(self._trainer.global_step, batch_idx, self._trainer.current_epoch)
        if follow(module, self._sample, moment).differs_from(traced):
            raise ModelError(
                f"{type(module).__name__}.training_step computes another loss at {moment} than when fit began (step, "
                "epoch or an attribute that it reads has changed); allowed: the same in all steps"
            )

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Handles stay where they are: the loop takes records to the device."""
        if self._fitting and self._trainer.training:
            return batch
        return super().batch_to_device(batch, device, dataloader_idx)

    def training_step(self, *args: Any, **kwargs: Any) -> None:
        """Gives no loss: the batch is a handle, and the user's training_step must not see what is behind it."""
        if not any(isinstance(given, PrivateBatch) for given in (*args, *kwargs.values())):
            raise PrivacyLineError(
                "training_step on a batch that is none of the strategy's: training would not be private; allowed: one "
                "DataLoader (no list of them), and no callback that replaces it"
            )

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        raise PrivacyLineError("a backward pass on a loss of the batch: it would leave un-noised gradients in p.grad")

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: pl.LightningModule | torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """One release in `p.grad`, and one step of the user's optimiser along it."""
        batch = None if self._loader is None else self._loader.batch
        if batch is None or self.lightning_module is None:
            raise PrivacyLineError("an optimizer step before the first batch: there is no release to step along")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*training_step. returned .None.")
            closure()
        with silenced(self.lightning_module):
            batch.backward()
        self.precision_plugin.post_backward(torch.zeros(()), self.lightning_module)  # on_after_backward
        self.precision_plugin._after_closure(self.lightning_module, optimizer)  # on_before_optimizer_step
        return optimizer.step(**kwargs)

    def on_train_end(self) -> None:
        super().on_train_end()
        self._finish()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        if self._fitting:
            raise InputError(
                f"ckpt_path={str(checkpoint_path)!r}: a checkpoint of Lightning's holds no ledger, so what its weights "
                "have cost is not known; allowed: a new fit, or adadpigu.PrivateLoop, which resumes"
            )
        return super().load_checkpoint(checkpoint_path, weights_only)

    def on_exception(self, exception: BaseException) -> None:
        """What was spent until then is reported."""
        super().on_exception(exception)
        self._fitting = False
        if self._loop is not None and self._run is None:
            self._loop.__exit__(type(exception), exception, exception.__traceback__)
            if isinstance(exception, KeyboardInterrupt):
                with contextlib.suppress(InputError):  # interrupted amid a draw: the run has failed
                    self._keep(self._loop.run)

    def teardown(self) -> None:
        fitting, self._fitting = self._fitting, False
        for watch in self._watches:
            watch.remove()
        self._watches.clear()
        super().teardown()
        if fitting and self._run is None:
            raise PrivacyLineError(
                "fit ends without a private run: nothing was charged, so nothing may have been trained"
            )

    def _watch(self, module: pl.LightningModule) -> None:
        """From the start no backward pass may reach `p.grad`, whatever takes the strategy's place."""
        for watch in self._watches:
            watch.remove()
        watched: list[Any] = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._watches = [parameter.register_post_accumulate_grad_hook(_refuse_backward) for parameter in watched]

    def _count(self, *_: object) -> None:
        self._steps_made += 1

    def _refuse_training_records(self, evaluated: list[tuple[str, object]]) -> None:
        """By where records lie; and by their values too, where both sets are tensors and the input is known."""
        if self._loader is None:
            return
        for name, dataset in evaluated:
            refuse_shared_records(self._loader.source, dataset, name)
            if self._step is not None:
                refuse_copied(self._loader.source, dataset, self._step.inputs, name)

    def _finish(self) -> None:
        """Ends the run, and compares the steps that were made with those that were charged."""
        if self._loader is None or self._loop is None:
            raise PrivacyLineError("training ends without the strategy's loop: something has taken its place")
        self._loader.close()
        run = self._loop.run
        if not self._steps_made == run.steps_done <= run.privacy.steps_charged or not run.steps_done:
            raise PrivacyLineError(
                f"{self._steps_made} optimizer steps were made, {run.privacy.steps_charged} were charged; a private "
                "fit has a charge for each of its steps, and at least one"
            )
        self._keep(run)

    def _keep(self, run: Run) -> None:
        assert self.lightning_module is not None
        assert self._step is not None
        trained_models.update(self._step.model.modules())
        self._run = replace(run, model=self.lightning_module, weights=None)
        rank_zero_info(run.privacy.statement().splitlines()[0])


def _tell_unlogged(names: tuple[str, ...]) -> None:
    if names:
        warnings.warn(
            f"{', '.join(map(repr, names))}: not logged, since training_step would log un-noised values of private "
            "records; diagnostics=True with out= keeps losses in a file of its own, outside the guarantee",
            stacklevel=3,
        )


def _refuse_backward(_: Tensor) -> None:
    raise PrivacyLineError(
        "a backward pass reached a parameter's grad during a private fit: it would hold un-noised gradients; allowed: "
        "training by the PrivateStrategy alone, or torch.autograd.grad for values that stay out of the training"
    )
