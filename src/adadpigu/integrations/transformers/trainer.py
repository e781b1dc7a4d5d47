"""Hugging Face's Trainer, made private: its loop, optimiser and schedule, our draws, bounds, noise and ledger.

    get_train_dataloader   gives one handle a Poisson batch        (charged, never seen)
    training_step          batch.backward(): p.grad is a release   (a `PrivateLoop`, with its guard)
    all that Trainer does afterwards                               (post-processing)

There is no training loss on this side of the line, so what Trainer would log of it is left out, not set to 0.
"""

import contextlib
import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence, Sized
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import ProgressCallback, Trainer, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_utils import TrainOutput

from adadpigu.accounting import Budget
from adadpigu.core.gradients import Loss, Losses
from adadpigu.core.randomness import Randomness, Tier
from adadpigu.data.checking import digests, refuse_copies, refuse_repeated, refuse_shared_records
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.mixing import OWN_GENERATOR
from adadpigu.errors import InputError, PrivacyLineError, require
from adadpigu.integrations.shared import EpochBatches, attributes_put_back, check_options, warn_of_no_effect
from adadpigu.integrations.transformers.columns import LABELS, MASK, Columns
from adadpigu.integrations.transformers.layers import register_rules
from adadpigu.integrations.transformers.losses import LogitsLoss, OwnLoss, usual_loss
from adadpigu.integrations.transformers.settings import ELSEWHERE, check_accelerator, private_settings
from adadpigu.methods import Method
from adadpigu.runs.run import Observer, Run
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.task import synthetic_records, uncompiled

RUN_FOLDER = "private"  # in Trainer's output_dir: ledger, privacy report, statement, checkpoints to go on from
STATEMENT = "privacy_statement.txt"  # beside a saved model: what is claimed for it
WITHHELD = {"loss", "train_loss", "grad_norm", "total_flos", "train_runtime"}
WITHHELD |= {f"train_{what}_per_second" for what in ("samples", "steps", "tokens")}
"""what Trainer logs of training batches: losses, and how long they took, which tells how many records were drawn"""
_EVALUATED = (
    "scores on evaluation records: they are exact, and so is what was chosen by them (load_best_model_at_end, early "
    "stopping, hyper-parameters)"
)
_OWN_LOSS = "what compute_loss, which is the user's own code, keeps or writes of the records that it sees"

_OF_TRAINER = inspect.signature(Trainer).parameters.keys() - {"model_init"}
"""arguments that are handed on; those that the private trainer names itself are not among its options"""


class PrivateTrainer(Trainer):  # type: ignore[misc, unused-ignore]  # Any where transformers is not looked at
    """A `Trainer` whose training is differentially private.

    `records` is the public record count N, `max_length` the public length that all records are padded to,
    `args.per_device_train_batch_size` (times `gradient_accumulation_steps`) the expected batch B. `privacy`, `method`,
    `delta`, `seed`, `randomness`, `observers`, `ledger` and further `options` (`noise_multiplier`,
    `physical_batch_size`, `clipping`, `ema`, …) are those of `adadpigu.train`. `loss` is a function of logits and
    labels that takes the place of the model's usual loss; an overridden `compute_loss` and `compute_loss_func` are
    called with one record at a time. `dataset` is the name under which a shared ledger knows the records. Further
    arguments of `Trainer` (`callbacks`, `compute_metrics`, `optimizers`, …) are handed on.

    Formal guarantee: as for `adadpigu.PrivateLoop`, of the model, its checkpoints and all that Trainer logs and writes,
    but for what it says of evaluation records.
    """

    args: Any
    data_collator: Any

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        data_collator: Any = None,
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
        compute_loss_func: Any = None,
        **options: Any,
    ) -> None:
        model = uncompiled(model)
        bare: Any = getattr(model, "get_base_model", lambda: model)()  # under peft
        own = compute_loss_func is not None or type(self).compute_loss is not Trainer.compute_loss
        require(loss is None or not own, "loss= beside a compute_loss of your own; allowed: one of them")
        self._loss = None if own else loss or usual_loss(bare, bare.config, args.label_smoothing_factor)
        """of logits and labels; None: compute_loss, one record at a time"""
        of_trainer = {name: options.pop(name) for name in _OF_TRAINER & options.keys()}
        named = _OF_TRAINER | inspect.signature(PrivateTrainer).parameters.keys()
        check_options("PrivateTrainer", options, ELSEWHERE, named=named, method=method)
        args = private_settings(args, options, by_rules=self._loss is not None)
        if args.dataloader_num_workers:
            read = "training records are read once, in this process, before the first step"
            warn_of_no_effect(f"dataloader_num_workers={args.dataloader_num_workers}", read)
        places = set((getattr(model, "hf_device_map", None) or {}).values())
        require(len(places) < 2, f"model={type(model).__name__} is spread over several devices; allowed: one")
        private = {"privacy": privacy, "method": method, "delta": delta, "seed": seed, "randomness": randomness}
        self._private: dict[str, Any] = {**options, **private, "observers": observers, "ledger": ledger}
        self._batches: EpochBatches | None = None
        self._run: Run | None = None
        self._resuming = self._sees_records = False
        self._opened = contextlib.ExitStack()
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_loss_func=compute_loss_func,
            **of_trainer,
        )
        if self.pop_callback(DEFAULT_PROGRESS_CALLBACK) is not None:
            self.add_callback(StepBar)
        check_accelerator(self.accelerator)
        self._set_signature_columns_if_needed()
        self.data_collator = self._columns = Columns(
            bare,
            self._get_collator_with_removed_columns(self.data_collator),
            taken=self._signature_columns or (),
            tokeniser=processing_class,
            max_length=max_length,
            check_labels=not own and loss is None,
            shown=bool(options.get("diagnostics")),
        )
        refuse_repeated(train_dataset, "train_dataset")
        rows = self._columns.of(train_dataset, "train_dataset")
        length = self._columns.max_length
        self._data = DataSet(
            name=dataset,
            train=TensorRecords.of(rows, name="train_dataset", origin=train_dataset),
            records=records,
            public=(f"{records:,} records", f"records padded to {length} tokens" if length else "records of one shape"),
        )
        self._evaluated: list[Any] = []  # found to be other records than those that are trained on
        for name, held in eval_dataset.items() if isinstance(eval_dataset, dict) else [("", eval_dataset)]:
            self._refuse_training_records(held, f"eval_dataset[{name!r}]" if name else "eval_dataset")

    @property
    def run(self) -> Run:
        """The finished run: its privacy report and statement."""
        if self._run is None:
            raise InputError("run: nothing was trained; allowed: after train()")
        return self._run

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains. `resume_from_checkpoint=True` goes on with the run in `output_dir`, as its ledger allows."""
        folder, out = Path(self.args.output_dir) / RUN_FOLDER, f"output_dir={self.args.output_dir!r}"
        fault = f"resume_from_checkpoint={resume_from_checkpoint!r}: a run goes on from where its ledger says"
        require(not isinstance(resume_from_checkpoint, str), f"{fault}; allowed: True, with {out}")
        there = folder.is_dir() and any(folder.iterdir())
        remedy = "another output_dir, or train(resume_from_checkpoint=True) to go on with that run"
        require(resume_from_checkpoint or not there, f"{out} holds a private run already; allowed: {remedy}")
        self.args = private_settings(self.args, self._private, by_rules=self._loss is not None)  # they may have changed
        self._resuming, self._run, self._batches = bool(resume_from_checkpoint), None, None
        return super().train(None, *args, **kwargs)  # type: ignore[no-any-return, unused-ignore]

    def get_train_dataloader(self) -> Any:
        """Handles of Poisson batches; the run is made ready here, before Trainer counts its steps."""
        args = self.args
        first = self.is_in_train and self._batches is None
        require(first, "get_train_dataloader: its batches are charged; allowed: train(), which calls it once")
        self.accelerator.prepare_model(self.model)  # as Trainer will: from here on the model stays as it is
        self.create_optimizer()
        optimiser: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # under accelerate's
        each = math.ceil(self._data.records / args.per_device_train_batch_size)
        register_rules(self.model)
        with warnings.catch_warnings(), self._withholding():  # the model is probed
            warnings.filterwarnings("ignore", message="the run goes on with its weights")  # schedules go on here
            loop = PrivateLoop(
                self.model,
                optimiser,
                self._data,
                losses=self._losses(),
                batch_size=args.per_device_train_batch_size,
                steps=args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * each),
                device=str(args.device),
                out=Path(args.output_dir) / RUN_FOLDER,
                resume=self._resuming,
                **self._private,
            )
        self._opened.enter_context(loop)
        if loop.gradients.startswith("one record at a time") and "engine" not in self._private:
            warnings.warn(f"slow for a transformer: {loop.gradients}", stacklevel=2)
        if self.eval_dataset is not None:
            loop.add_caveat(_EVALUATED)
        if self._loss is None:
            loop.add_caveat(_OWN_LOSS)
        if self._columns.draw_by_their_own(self.train_dataset):
            loop.add_caveat(OWN_GENERATOR)
        self._batches = EpochBatches(each)
        self._batches.start(loop)
        return self._batches

    def _losses(self) -> Losses:
        """The loss of each record, tried on synthetic records."""
        example: Any = synthetic_records(self._data.train, self.args.device)[0]
        if MASK in example:
            example[MASK].fill_(1)
        if self._loss is not None:
            return LogitsLoss.on(self.model, self._loss, example)
        own = OwnLoss(self.compute_loss)
        own.refuse_cancelling(self.model, example, getattr(self.model.config, "num_labels", 0))
        return own

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One release; the number it returns stands for a loss that nobody knows."""
        if not isinstance(inputs, PrivateBatch):
            given = type(inputs).__name__
            raise PrivacyLineError(f"training_step was given a {given}: records that were not drawn and charged")
        self.model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        with self._withholding():
            inputs.backward()
        return torch.zeros((), device=self.args.device)

    @contextlib.contextmanager
    def _withholding(self) -> Iterator[None]:
        """Within, code of the user's runs on records: what it logs or keeps on the trainer is un-noised: dropped."""
        with attributes_put_back(self, lambda name, value: value is not self.model and _may_keep(name, value)):
            self._sees_records = True
            yield

    def log(self, logs: Mapping[str, float], start_time: float | None = None) -> None:
        """What Trainer logs, without what would tell of batches."""
        if not self._sees_records:
            super().log(_public(logs), start_time)

    def _get_dataloader(self, dataset: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        """Trainer's, of records that are not trained on: `evaluate` and `predict` ask for it."""
        self._refuse_training_records(dataset, "test_dataset" if description == "test" else "eval_dataset")
        return super()._get_dataloader(dataset, description, *args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Trainer's card, with what is claimed for the model."""
        super().create_model_card(*args, **kwargs)
        card = Path(self.args.output_dir) / "README.md"
        if card.is_file() and (claim := self._claim()):
            card.write_text(f"{card.read_text(encoding='utf-8')}\n## Privacy\n\n```\n{claim}\n```\n", encoding="utf-8")

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Trainer's files of a model, with what is claimed for it: whoever is given the folder can read it."""
        super()._save(output_dir, state_dict)
        if claim := self._claim():
            (Path(output_dir or self.args.output_dir) / STATEMENT).write_text(claim + "\n", encoding="utf-8")

    def _claim(self) -> str:
        """The statement of a run that has ended; of one that has not, the claim of its whole plan."""
        if self._run is not None:
            return self._run.privacy.statement()
        if self._batches is None:
            return ""
        loop = self._batches.loop
        return (
            f"Of a run that has not ended: after {loop.done} of {len(loop)} steps. The claim is that of the whole "
            f"plan, epsilon = {loop.epsilon:.4g} at delta = {loop.delta:g}, and its statement is written when it ends."
        )

    def floating_point_ops(self, inputs: Any) -> int:
        return 0 if isinstance(inputs, PrivateBatch) else int(super().floating_point_ops(inputs))

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trainer's loop; an error in it ends the run, and what was spent is reported. After Ctrl-C there is a run."""
        try:
            with contextlib.ExitStack() as self._opened:
                return super()._inner_training_loop(*args, **kwargs)
        except KeyboardInterrupt:
            if self._batches is not None:
                self._run = self._batches.loop.run
            raise

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        found: tuple[int, int] = super()._init_training_state(*args, **kwargs)
        if self._batches is None or not self._batches.done:
            return found
        self.state.global_step = self._batches.done
        return self._batches.done // len(self._batches), 0

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
        done = 0 if self._run is None else self._run.steps_done
        if done == 0 or done != self.state.global_step:
            fault = f"train() made {self.state.global_step} steps, of which {done} were drawn, charged and released"
            raise PrivacyLineError(f"{fault}: the model must not be used")
        output = super()._finalize_training(trial, num_train_samples, start_time)
        metrics = {**_public(output.metrics), "epoch": self.state.epoch, "train_steps": output.global_step}
        return TrainOutput(output.global_step, None, metrics)  # type: ignore[arg-type, unused-ignore]

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Records were clipped one by one, the norm would be that of noise, and nobody counts what was drawn."""

    _clip_grad_norm = _get_grad_norm = _get_num_items_in_batch = _nothing

    def _refuse_training_records(self, dataset: Any, name: str) -> None:
        """By where records lie, and by their tokens."""
        if dataset is None or any(dataset is checked for checked in self._evaluated):
            return
        refuse_shared_records(self.train_dataset, dataset, name)
        if isinstance(dataset, Sized) and len(dataset):
            refuse_copies(self._trained_digests, self._digests(dataset, name), len(dataset), name)
        self._evaluated.append(dataset)

    @cached_property
    def _trained_digests(self) -> Any:
        return self._digests(self.train_dataset, "train_dataset")

    def _digests(self, dataset: Any, name: str) -> Any:
        """Of each record without its labels, which records to predict on need not have."""
        columns = self._columns.of(dataset, name, comparable=True)
        return digests(TensorRecords.of({key: rows for key, rows in columns.items() if key != LABELS}))


def _may_keep(name: str, value: Any) -> bool:
    """Whether an attribute may be a log: not records, nor parts of the run, which a step moves."""
    own = name in {"lr_scheduler", "_evaluated", "_private", "_opened"} | _OF_TRAINER - {"compute_loss_func"}
    library = type(value).__module__.partition(".")[0] in ("accelerate", "adadpigu", "datasets", "transformers")
    return name == "state" or not (own or library or isinstance(value, Dataset | torch.optim.Optimizer))


def _public(logs: Mapping[str, float]) -> dict[str, float]:
    """What is public of these values.

    >>> _public({"loss": 0.7, "learning_rate": 0.1, "train_runtime": 12.0})
    {'learning_rate': 0.1}
    """
    return {key: value for key, value in logs.items() if key not in WITHHELD}


class StepBar(ProgressCallback):  # type: ignore[misc, unused-ignore]  # Any where transformers is not looked at
    """Trainer's bar, of steps and not of time."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **further: Any) -> None:
        super().on_train_begin(args, state, control, **further)
        self.training_bar.bar_format = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}"
