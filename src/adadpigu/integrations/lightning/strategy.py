"""The strategy under which a Trainer trains privately: it owns the loader, the gradients and the optimiser's step.

    loader ─▶ handles of Poisson batches (`PrivateLoop`) ─▶ backward: charged, bounded, noised ─▶ the user's optimiser

The user's loss runs inside `PrivateLoop`, one record at a time (`losses`). What Lightning logs, shows or stores comes
after the noise; the loss that it hands to callbacks is NaN.
"""

import contextlib
import math
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
from adadpigu.core.randomness import Randomness, Tier
from adadpigu.errors import InputError, require
from adadpigu.integrations.lightning import settings
from adadpigu.integrations.lightning.loading import PrivateLoader
from adadpigu.integrations.lightning.losses import Layers, ModuleLosses
from adadpigu.integrations.shared import check_options
from adadpigu.methods import Method
from adadpigu.runs.run import Observer, Run
from adadpigu.training.own_loop import PrivateLoop
from adadpigu.training.preparation import trained_models
from adadpigu.training.task import synthetic_records

_VALIDATED = "the validation records: metrics on them are exact, and what they choose (stopping, checkpoints) too"


class PrivateStrategy(SingleDeviceStrategy):
    """Trains one LightningModule privately, on one device, in one `fit`.

    `records` is the public record count N. The other arguments are those of `train` (method, privacy, noise_multiplier,
    physical_batch_size, …), but what the Trainer, the DataLoader and configure_optimizers say. After `fit`, `run` and
    `privacy` tell what was spent; with `out` there is a run folder with its ledger.

    The loss of a record is `private_losses(self, batch) -> [n]` of the module, or `training_step` of a batch of one.

    Formal guarantee: as for `PrivateLoop`, of the module's weights and of everything that the Trainer writes of them,
    provided that the user's own code writes no records.
    """

    strategy_name = "private"
    num_nodes = 1

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
        check_options("PrivateStrategy", options, settings.ELSEWHERE, named=locals().keys(), method=method)
        self.parallel_devices: list[torch.device] = []  # filled in by the Trainer
        self._records = records
        self._settings = {"method": method, "privacy": privacy, "delta": delta, "seed": seed, **options}
        self._settings |= {"out": out, "observers": observers, "randomness": randomness, "ledger": ledger}
        self._loader: PrivateLoader | None = None
        self._loop: PrivateLoop | None = None
        self._run: Run | None = None
        self._evaluated: list[tuple[str, object]] = []  # what loaders are called, and their data sets
        self._begun = self._fitting = False
        self._accumulated = 1  # batches of the loader in one logical batch

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
    def _module(self) -> Any:
        return self.lightning_module

    @property
    def _trainer(self) -> Any:
        return self._module.trainer

    def connect(self, model: pl.LightningModule) -> None:
        super().connect(model)
        if model.trainer.state.fn == TrainerFn.FITTING:
            if self._begun:
                raise InputError("a PrivateStrategy is charged for one fit; allowed: another Trainer with another one")
            self._begun = self._fitting = True

    def setup_environment(self) -> None:
        if self._fitting:  # before any callback is set up
            trainer = self._trainer
            settings.check_trainer(trainer)
            by_rules = self._settings.get("engine") in ("ghost", "materialised")
            settings.take_over_precision(self, self._settings, by_rules=by_rules)
            self._accumulated, trainer.accumulate_grad_batches = trainer.accumulate_grad_batches, 1
        super().setup_environment()

    def setup(self, trainer: pl.Trainer) -> None:
        if self._fitting:
            settings.check_module(self._module, self._trainer.datamodule)
        super().setup(trainer)
        if self._fitting and (len(self.optimizers) != 1 or not self.optimizers[0].param_groups):
            fault = f"configure_optimizers gives {len(self.optimizers)} optimizers with parameters"
            raise InputError(f"{fault}; allowed: one (with several parameter groups, if need be)")

    def process_dataloader(self, dataloader: object) -> object:
        trainer = self._trainer
        if self._fitting and trainer.training:
            require(self._loader is None, "train_dataloader: several loaders; allowed: one DataLoader")
            self._loader = PrivateLoader(dataloader, self._records, self._accumulated)
            for name, dataset in self._evaluated:
                self._loader.refuse_training_records(dataset, name)
            return self._loader
        stage = "test" if trainer.testing else "predict" if trainer.predicting else "val"
        self._evaluated.append((f"{stage}_dataloader", getattr(dataloader, "dataset", None)))
        if self._loader is not None:
            self._loader.refuse_training_records(self._evaluated[-1][1], self._evaluated[-1][0])
        return dataloader

    def on_train_start(self) -> None:
        """The plan is fixed and the ledger opened, before the first batch is asked for."""
        super().on_train_start()
        module, loader, trainer = self._module, self._loader, self._trainer
        assert loader is not None
        layers, losses = Layers(module), ModuleLosses(module)
        if not losses.declared and self._settings.get("engine") in ("ghost", "materialised"):
            raise InputError(f"engine={self._settings['engine']!r}: {losses.why_alone}")
        losses.rehearse(layers, synthetic_records(loader.data.train, self.root_device)[0])
        if self._accumulated > 1:
            self._settings.setdefault("physical_batch_size", loader.batch_size // self._accumulated)
        steps = trainer.estimated_stepping_batches
        endless = "max_epochs=-1, max_steps=-1: a run without end has no plan; allowed: one of them"
        require(math.isfinite(steps), endless)
        self._loop = PrivateLoop(
            layers,
            self.optimizers[0],
            loader.data,
            losses=losses,
            batch_size=loader.batch_size,
            steps=int(steps),
            device=str(self.root_device),
            **self._settings,
        )
        self._loop.__enter__()
        settings.check_monitors(trainer, losses.logged)
        losses.warn_of_withheld()
        self._loop.add_caveat(
            f"what {type(module).__name__}, its callbacks and profilers write by themselves of records, time and "
            "memory: they are the user's code"
        )
        if trainer.enable_validation:
            self._loop.add_caveat(_VALIDATED)
        loader.start(self._loop)

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Handles stay where they are: the loop takes records to the device."""
        drawn = self._fitting and self._trainer.training
        return batch if drawn else super().batch_to_device(batch, *args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """In the place of a loss, which would be un-noised: callbacks get NaN."""
        return torch.full((), torch.nan, device=self.root_device)

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Charges the draw and puts one release into `p.grad`."""
        assert self._loader is not None
        self.precision_plugin.pre_backward(closure_loss, self._module)  # on_before_backward
        self._loader.batch.backward()
        self.precision_plugin.post_backward(closure_loss, self._module)  # on_after_backward
        return closure_loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """The closure comes first, since an optimiser's step takes no closure of records."""
        closure()
        self.precision_plugin._after_closure(self._module, optimizer)  # on_before_optimizer_step, gradient_clip_val
        return optimizer.step(**kwargs)

    def on_train_end(self) -> None:
        super().on_train_end()
        if self._loader is not None and self._loop is not None:
            self._keep(self._loader.finish())

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        if self._fitting:
            fault = "a checkpoint of Lightning's holds no ledger, so what its weights have cost is not known"
            remedy = "a new fit, or adadpigu.PrivateLoop, which resumes"
            raise InputError(f"ckpt_path={str(checkpoint_path)!r}: {fault}; allowed: {remedy}")
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
        self._fitting = False
        if self._accumulated > 1:
            self._trainer.accumulate_grad_batches = self._accumulated
        super().teardown()

    def _keep(self, run: Run) -> None:
        trained_models.update(self._module.modules())
        self._run = replace(run, model=self._module, weights=None)
        rank_zero_info(run.privacy.statement().splitlines()[0])
