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
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_utils import TrainOutput

from adadpigu.accounting import Budget
from adadpigu.compat.options import check_options
from adadpigu.compat.transformers.batches import PrivateBatches, steps_an_epoch
from adadpigu.compat.transformers.encoding import encoding_for
from adadpigu.compat.transformers.layers import known_layers
from adadpigu.compat.transformers.packed import packed_model
from adadpigu.compat.transformers.records import Packing, columns_of
from adadpigu.compat.transformers.sealing import refuse_overridden
from adadpigu.compat.transformers.settings import (
    ARGUMENTS,
    refuse_accelerator,
    refuse_arguments,
    refuse_model,
    refuse_rate,
    refuse_settings,
)
from adadpigu.compat.transformers.tasks import task_of
from adadpigu.compat.transformers.telling import StepBar, sayable, silenced
from adadpigu.data.checking import digests, refuse_copies
from adadpigu.data.datasets import DataSet
from adadpigu.data.overlap import refuse_repeated, refuse_shared_records
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.gradients import Loss, choose_engine
from adadpigu.gradients.rule_engine import ruled
from adadpigu.gradients.state import describe
from adadpigu.gradients.unfolding import has_rule
from adadpigu.methods import Method
from adadpigu.randomness import Randomness, Tier
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.run import Observer, Run, check_free

RUN_FOLDER = "private"
"""in Trainer's output_dir: ledger, privacy report, statement, checkpoints to go on from"""
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
        check_options("PrivateTrainer", options, ARGUMENTS)
        refuse_settings(args)
        if optimizers[0] is None:
            refuse_rate(args)
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
        if self.pop_callback(DEFAULT_PROGRESS_CALLBACK) is not None:
            self.add_callback(StepBar)
        refuse_accelerator(self.accelerator)
        self._packing = self._packing_for(train_dataset, max_length, loss)
        self.data_collator = self._packing
        refuse_repeated(train_dataset, "train_dataset")
        packed = self._packing.packed(train_dataset, "train_dataset")
        self._evaluated: list[Any] = []
        """found to be other records than those that are trained on"""
        task, encoding = self._packing.task, self._packing.encoding
        self._data = DataSet(
            name=dataset,
            train=packed,
            records=records,
            classes=task.below if task.shape == () else None,
            shape=tuple(packed.inputs.shape[1:]),
            public=(f"{records:,} records", f"at most {encoding.max_length} tokens a record, each padded to that"),
        )
        self._adapter = packed_model(model, encoding)
        for name, held in _evaluation_sets(eval_dataset).items():
            self._refuse_training_records(held, name)

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
        refuse_accelerator(self.accelerator)
        refuse_model(self.model)
        refuse_overridden(self, PrivateTrainer)
        if not resume_from_checkpoint:
            self._refuse_used_folder()
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
        self.accelerator.prepare_model(self.model)  # as Trainer will: from here on the model stays as it is
        self.create_optimizer()
        optimiser: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # under accelerate's
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * self._each)
        with warnings.catch_warnings(), silenced(self.state):  # the model is probed
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
            loop.confess(_EVALUATED)
        self._batches = PrivateBatches(loop, self._each, loop.done)
        return self._batches

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's, of a model that is as it was inspected: callbacks may have changed it before the first draw."""
        refuse_model(self.model)
        return super().get_batch_samples(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One release; the number it returns stands for a loss that nobody knows."""
        if not isinstance(inputs, PrivateBatch):
            raise PrivacyLineError(
                f"training_step was given a {type(inputs).__name__}: records that were not drawn and charged"
            )
        refuse_model(self.model)  # callbacks may have changed it since it was drawn
        self._require_model()
        self._adapter.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        with silenced(self.state):
            inputs.backward()
        return torch.zeros((), device=self.args.device)

    def log(self, logs: Mapping[str, float], start_time: float | None = None) -> None:
        """What Trainer logs, without what would tell of batches."""
        super().log(sayable(logs), start_time)

    def num_examples(self, dataloader: Any) -> int:
        """Of training, the declared count."""
        if isinstance(dataloader, PrivateBatches):
            return self._data.records
        return int(super().num_examples(dataloader))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Trainer's, of records that are not trained on; `evaluate` asks for it."""
        given = self.eval_dataset if eval_dataset is None or isinstance(eval_dataset, str) else eval_dataset
        for name, held in _evaluation_sets(given).items():
            self._refuse_training_records(held, name)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Trainer's, of records that are not trained on; `predict` asks for it."""
        self._refuse_training_records(test_dataset, "test_dataset")
        return super().get_test_dataloader(test_dataset)

    def floating_point_ops(self, inputs: Any) -> int:
        return 0 if isinstance(inputs, PrivateBatch) else int(super().floating_point_ops(inputs))

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trainer's loop; an error in it ends the run, and what was spent is reported."""
        with known_layers(self.model), contextlib.ExitStack() as self._opened:
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
        return TrainOutput(output.global_step, None, sayable(output.metrics))  # type: ignore[arg-type, unused-ignore]

    def _require_model(self) -> None:
        if self.model is not self._adapter.model:
            raise PrivacyLineError(
                f"trainer.model is another {type(self.model).__name__} than the one that was made private: what it has "
                "seen is not known; allowed: the model that the trainer was made with"
            )

    def _require_charged(self) -> None:
        """No run ends well of which the ledger does not hold every step, or with another model in its place."""
        self._require_model()
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
        encoding, task, device = self._packing.encoding, self._packing.task, self.args.device
        with known_layers(self.model):
            found = choose_engine(
                self._adapter,
                task.loss,
                (encoding.example().to(device), task.example(4).to(device)),
                engine=self._private.get("engine", "auto"),
            )
            bare = [describe(path, module) for path, module in ruled(self._adapter) if not has_rule(module)]
        if found.name in ("functional", "loop") and "engine" not in self._private:
            why = f"no layer rule for {bare[0]}" if bare else found.reason
            warnings.warn(f"engine={found.name!r}: slow for a transformer ({why})", stacklevel=2)
        return found.name

    def _refuse_used_folder(self) -> None:
        try:
            check_free(Path(self.args.output_dir) / RUN_FOLDER)
        except InputError:
            raise InputError(
                f"output_dir={str(self.args.output_dir)!r} already holds a run, in {RUN_FOLDER}/; allowed: another "
                "folder, or train(resume_from_checkpoint=True), which goes on with that run"
            ) from None

    def _refuse_training_records(self, dataset: Any, name: str) -> None:
        """By where records lie, and by their tokens."""
        if any(dataset is checked for checked in self._evaluated):
            return
        refuse_shared_records(self.train_dataset, dataset, name)
        if isinstance(dataset, Sized) and len(dataset):
            others = self._packing.unlabelled(dataset, name)
            refuse_copies(digests(self._data.train), digests(others), len(others), name)
        self._evaluated.append(dataset)


def _evaluation_sets(given: Any) -> dict[str, Any]:
    """Data sets to evaluate on, by the names that messages call them."""
    if given is None:
        return {}
    if isinstance(given, dict):
        return {f"eval_dataset[{name!r}]": held for name, held in given.items()}
    return {"eval_dataset": given}
