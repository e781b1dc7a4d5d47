"""Hugging Face's Trainer, made private: its loop, optimiser and schedule, our draws, bounds, noise and ledger.

    get_train_dataloader   gives one handle a Poisson batch        (charged, never seen)
    training_step          batch.backward(): p.grad is a release   (a `PrivateLoop`, with its guard)
    all that Trainer does afterwards                               (post-processing)

There is no training loss on this side of the line, so what Trainer would log of it is left out, not set to 0.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput

from adadpigu.accounting import Budget
from adadpigu.compat.transformers.batches import PrivateBatches, steps_an_epoch
from adadpigu.compat.transformers.encoding import encoding_for
from adadpigu.compat.transformers.layers import know_layers_of
from adadpigu.compat.transformers.packed import PackedModel
from adadpigu.compat.transformers.records import Packing, columns_of
from adadpigu.compat.transformers.sealing import refuse_overridden
from adadpigu.compat.transformers.settings import refuse_arguments, refuse_model, refuse_settings
from adadpigu.compat.transformers.tasks import task_of
from adadpigu.data.datasets import DataSet, refuse_unfit_test
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.gradients import Loss, choose_engine
from adadpigu.gradients.rule_engine import ruled
from adadpigu.gradients.state import describe
from adadpigu.gradients.unfolding import has_rule
from adadpigu.methods import Method
from adadpigu.randomness import Randomness, Tier
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.run import Observer, Run

RUN_FOLDER = "private"
"""in Trainer's output_dir: ledger, privacy report, statement, checkpoints to go on from"""
_UNSAID = frozenset({"loss", "train_loss", "grad_norm", "train_samples_per_second", "total_flos"})
"""what Trainer logs of batches; with private steps there is no such number"""
_EVALUATED = (
    "scores on evaluation records: they are exact, and so is what was chosen by them (load_best_model_at_end, early "
    "stopping, hyper-parameters)"
)


class PrivateTrainer(Trainer):  # type: ignore[misc, unused-ignore]  # Any where transformers is not looked at
    """A `Trainer` whose training is differentially private.

    `records` is the public record count N, `max_length` the public length that all records are padded to,
    `args.per_device_train_batch_size` the expected batch B. `privacy`, `method`, `delta`, `seed`, `randomness`,
    `observers`, `ledger` and further `options` (`noise_multiplier`, `physical_batch_size`, `clipping`, `ema`, …) are
    those of `adadpigu.train`; `loss` replaces the model's usual loss by a function of logits and labels, taken record
    by record. `dataset` is the name under which a shared ledger knows the records.

    Formal guarantee: as for `adadpigu.PrivateLoop`, of the model, its checkpoints and all that Trainer logs and writes,
    but for what it says of evaluation records.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        train_dataset: Any,
        records: int,
        eval_dataset: Any = None,
        processing_class: Any = None,
        max_length: int | None = None,
        privacy: Budget | None = None,
        method: Method | str | None = None,
        delta: float = 1e-5,
        loss: Loss | None = None,
        dataset: str = "own data",
        seed: int | None = None,
        randomness: Randomness | Tier | None = None,
        observers: Sequence[Observer] = (),
        ledger: Path | str | None = None,
        compute_metrics: Any = None,
        callbacks: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        **options: Any,
    ) -> None:
        refuse_arguments(options)
        refuse_settings(args)
        refuse_model(model)
        refuse_overridden(type(self), PrivateTrainer)
        self._private = {
            **options,
            "privacy": privacy,
            "method": method,
            "delta": delta,
            "seed": seed,
            "randomness": randomness,
            "observers": observers,
            "ledger": ledger,
        }
        self._batches: PrivateBatches | None = None
        self._run: Run | None = None
        self._resuming = False
        self._opened = contextlib.ExitStack()
        self._each = steps_an_epoch(records, args.per_device_train_batch_size)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self._packing = self._packing_for(train_dataset, max_length, loss)
        self.data_collator = self._packing
        packed = self._packing.packed(train_dataset, "train_dataset")
        for name, held in _evaluation_sets(eval_dataset).items():
            self._refuse_training_records(held, name)
            refuse_unfit_test(packed, self._packing.packed(held, name))
        task, encoding = self._packing.task, self._packing.encoding
        self._data = DataSet(
            name=dataset,
            train=packed,
            records=records,
            classes=task.below if task.shape == () else None,
            shape=tuple(packed.inputs.shape[1:]),
            public=(f"{records:,} records", f"at most {encoding.max_length} tokens a record, each padded to that"),
        )
        self._adapter = PackedModel(model, encoding)

    @property
    def run(self) -> Run:
        """The finished run: its privacy report and statement."""
        if self._run is None:
            raise InputError("run: nothing was trained; allowed: after train()")
        return self._run

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Trains. `resume_from_checkpoint=True` goes on with the run in `output_dir`, as its ledger allows."""
        if isinstance(resume_from_checkpoint, str):
            raise InputError(
                f"resume_from_checkpoint={resume_from_checkpoint!r}: a run goes on from where its ledger says; "
                f"allowed: True, with output_dir={self.args.output_dir!r}"
            )
        if trial is not None:
            self.hyperparameter_search()
        refuse_settings(self.args)  # they may have been changed since
        refuse_model(self.model)
        refuse_overridden(self, PrivateTrainer)
        self._resuming, self._run, self._batches = bool(resume_from_checkpoint), None, None
        output: TrainOutput = super().train(ignore_keys_for_eval=ignore_keys_for_eval)
        self._require_charged()
        return output

    def hyperparameter_search(self, *_: object, **__: object) -> NoReturn:
        raise InputError(
            "hyperparameter_search: every trial would be charged, and the choice among them is exact; allowed: one "
            "PrivateTrainer a trial, with ledger= a shared one"
        )

    def get_train_dataloader(self) -> Any:
        """Handles of Poisson batches; the run is made ready here, before Trainer counts its steps."""
        args = self.args
        if not self.is_in_train or self._batches is not None:
            raise InputError("get_train_dataloader: its batches are charged; allowed: train(), which calls it once")
        self.create_optimizer()
        optimiser: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # under accelerate's
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * self._each)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the run goes on with its weights")  # schedules go on here
            loop = PrivateLoop(
                self._adapter,
                optimiser,
                self._data,
                loss=self._packing.task.loss,
                batch_size=args.per_device_train_batch_size,
                steps=steps,
                device=str(args.device),
                out=Path(args.output_dir) / RUN_FOLDER,
                resume=self._resuming,
                **{**self._private, "engine": self._engine()},
            )
        self._opened.enter_context(loop)
        if _evaluation_sets(self.eval_dataset):
            loop._session.confess(_EVALUATED)
        self._batches = PrivateBatches(loop, self._each, loop._session.done)
        return self._batches

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One release; the number it returns stands for a loss that nobody knows."""
        if not isinstance(inputs, PrivateBatch):
            raise PrivacyLineError(
                f"training_step was given a {type(inputs).__name__}: records that were not drawn and charged"
            )
        self._adapter.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        inputs.backward()
        return torch.zeros((), device=self.args.device)

    def log(self, logs: Mapping[str, float], start_time: float | None = None) -> None:
        """What Trainer logs, without what would tell of batches."""
        super().log({key: value for key, value in logs.items() if key not in _UNSAID}, start_time)

    def num_examples(self, dataloader: Any) -> int:
        """Of training, the declared count."""
        if isinstance(dataloader, PrivateBatches):
            return self._data.records
        return int(super().num_examples(dataloader))

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        for name, held in _evaluation_sets(eval_dataset).items():
            self._refuse_training_records(held, name)
        found: dict[str, float] = super().evaluate(eval_dataset, *args, **kwargs)
        return found

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        self._refuse_training_records(test_dataset, "test_dataset")
        return super().predict(test_dataset, *args, **kwargs)

    def floating_point_ops(self, inputs: Any) -> int:
        return 0 if isinstance(inputs, PrivateBatch) else int(super().floating_point_ops(inputs))

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trainer's loop; an error in it ends the run, and what was spent is reported."""
        with contextlib.ExitStack() as self._opened:
            return super()._inner_training_loop(*args, **kwargs)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        found: tuple[int, int] = super()._init_training_state(*args, **kwargs)
        if self._batches is None or not self._batches.done:
            return found
        self.state.global_step = self._batches.done
        return self._batches.done // self._each, 0

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        made = super()._prepare_for_training(*args, **kwargs)
        if self._batches is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                for _ in range(self._batches.done):  # steps of earlier processes
                    self.lr_scheduler.step()
        return made

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: float) -> TrainOutput:
        """Ends the run first: what is saved, logged and called afterwards has the weights that are kept."""
        if self._batches is not None:
            self._run = self._batches.finish()
        self._require_charged()
        output = super()._finalize_training(trial, num_train_samples, start_time)
        metrics = {key: value for key, value in output.metrics.items() if key not in _UNSAID}
        return TrainOutput(output.global_step, None, metrics)  # type: ignore[arg-type, unused-ignore]

    def _require_charged(self) -> None:
        """No run ends well of which the ledger does not hold every step."""
        done = 0 if self._run is None else self._run.steps_done
        if done == 0 or done != self.state.global_step:
            raise PrivacyLineError(
                f"train() made {self.state.global_step} steps, of which {done} were drawn, charged and released: the "
                "model must not be used"
            )

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Nothing: records were clipped one by one, and the guard takes a release only as it is."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """Nothing: it would be read as the norm of a gradient, and is that of noise."""

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> None:
        """Nobody counts what was drawn."""

    def _packing_for(self, dataset: Any, max_length: int | None, loss: Loss | None) -> Packing:
        self._set_signature_columns_if_needed()
        columns = columns_of(
            dataset, "train_dataset", self._signature_columns or (), bool(self.args.remove_unused_columns)
        )
        bare = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        embeddings = bare.get_input_embeddings().num_embeddings
        encoding = encoding_for(bare.config, embeddings, columns, max_length, self.processing_class)
        task = task_of(
            bare,
            bare.config,
            encoding.max_length,
            vocabulary=embeddings,
            smoothing=self.args.label_smoothing_factor,
            loss=loss,
        )
        return Packing(encoding=encoding, task=task)

    def _engine(self) -> str:
        """The engine for records of several lengths; one that is slow is told."""
        know_layers_of(self.model)
        encoding, task, device = self._packing.encoding, self._packing.task, self.args.device
        found = choose_engine(
            self._adapter,
            task.loss,
            (encoding.example().to(device), task.example(4).to(device)),
            engine=self._private.get("engine", "auto"),
        )
        if found.name in ("functional", "loop") and "engine" not in self._private:
            bare = [describe(path, module) for path, module in ruled(self._adapter) if not has_rule(module)]
            why = f"no layer rule for {bare[0]}" if bare else found.reason
            warnings.warn(f"engine={found.name!r}: slow for a transformer ({why})", stacklevel=2)
        return found.name

    def _refuse_training_records(self, dataset: Any, name: str) -> None:
        if dataset is self.train_dataset:
            raise InputError(f"{name} is the train_dataset: scores on training records are exact; allowed: others")


def _evaluation_sets(given: Any) -> dict[str, Any]:
    """Data sets to evaluate on, by the names that messages call them."""
    if given is None or isinstance(given, str):
        return {}
    if isinstance(given, dict):
        return {f"eval_dataset[{name!r}]": held for name, held in given.items()}
    return {"eval_dataset": given}
