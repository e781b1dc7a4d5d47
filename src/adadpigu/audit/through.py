"""Audits of runs that are trained otherwise than by `train`: a loop of one's own, other libraries, several processes.

The audit makes a run ready, and the integration trains it: its loader, its loop and its optimiser's step are on the
path. What an integration would check or read of the user's code beforehand is not; `assumed` says so. No private record
is read: own data is stood in for by random numbers.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.audit.result import AuditResult
from adadpigu.audit.subject import Drive, Subject, trained_through
from adadpigu.audit.watching import label_of
from adadpigu.core.gradients import choose_engine
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import check_known, require
from adadpigu.extras import import_extra
from adadpigu.runs.run import Run
from adadpigu.training.own_loop import PrivateLoop
from adadpigu.training.preparation import Preparation
from adadpigu.training.task import synthetic_records
from adadpigu.training.train import train_prepared

AUDITS = ("white-box", "noise", "replay", "sampler", "accountant")  # that something else than `train` can train for
_CELLS, _KINDS = 2**20, 16  # largest number and number of categories in a table for scikit-learn; float32 holds either


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an integration trains what an audit has made ready."""

    drive: Drive
    methods: tuple[str, ...] | None = None  # that it has; None: all
    needs: tuple[str, str] | None = None  # a module that may not be installed, and the extra it comes with
    takes_fronts: bool = True  # whether fixed features, released normalisation and augmentation go through it
    audits: tuple[str, ...] = AUDITS  # that it can train for
    assumed: tuple[str, ...] = ()  # what of the integration was not on the path


def audit_through(name: str, audit: Callable[..., AuditResult], subject: Subject, **options: Any) -> AuditResult:
    """The audit, of runs that are trained in that way."""
    way, method = way_of(name), subject.config.method
    fits = way.methods is None or method in way.methods
    require(fits, f"method={method!r} through {name!r}; allowed there: {', '.join(way.methods or ())}")
    ready = None if way.takes_fronts else subject.prepare()
    plain = ready is None or (ready.front is None and not ready.view.augmentation and ready.data.owners is None)
    told = f"{subject.label}: features, normalisation, augmentation or owners through {name!r}; allowed: none"
    require(plain, told)
    with trained_through(way.drive):
        result = audit(subject, **options)
    lives = ("a run that is resumed gets its noise as in `train`: it was resumed there",)
    return replace(
        result,
        subject=f"{result.subject}, through {name}",
        assumed=(*result.assumed, *way.assumed, *(lives if result.audit == "noise" and name != "processes" else ())),
        details={**result.details, "through": name},
    )


def way_of(name: str) -> Way:
    """The way of that name; what it needs has to be installed."""
    check_known("way to train (--through)", name, WAYS)
    way = WAYS[name]
    if way.needs is not None:
        module, group = way.needs
        import_extra(module, group=group, purpose=f"--through {name}")
    return way


def by_loop(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by a loop of the user's own."""
    optimizer = _optimiser(ready)
    loop = PrivateLoop.of(_stepped_by(ready, optimizer), optimizer, **how)
    for batch in loop:
        optimizer.zero_grad()
        batch.backward()
        optimizer.step()
    return loop.run


def by_opacus(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready as a script for Opacus does, by what `make_private` gives it."""
    from adadpigu.integrations.opacus import PrivacyEngine, engine

    optimizer = _optimiser(ready)
    privacy_engine = PrivacyEngine(records=ready.data.records)
    privacy_engine._how.update(how, introduce=None)
    loss: Any = ready.loss
    with patch.object(engine, "prepare", lambda _, data, **__: replace(_stepped_by(ready, optimizer), data=data)):
        model, _, criterion, loader = privacy_engine.make_private(
            module=ready.model,
            optimizer=optimizer,
            criterion=lambda outputs, target: loss(outputs, label_of(target)),
            data_loader=_loader(ready),
            noise_multiplier=ready.noise_multiplier,
            max_grad_norm=1.0,
            total_steps=ready.plan.steps,
        )
    while not loader.loop.ended:
        for given, target in loader:
            optimizer.zero_grad()
            criterion(model(given), target).backward()
            optimizer.step()
    return loader.loop.run


def by_sklearn(ready: Preparation, **how: Any) -> Run:
    """By `fit`: a row of the table is a record's number, in a numeric and a categorical column. What the estimator
    encodes is read back, and those records are trained on."""
    import numpy as np

    from adadpigu.integrations.sklearn import AdaDPIGUClassifier, estimator

    inputs, targets = ready.data.train.take(torch.arange(len(ready.data.train)))
    labels, classes = targets.cpu().unique(return_inverse=True)  # an audit's may be large numbers

    def trained(_: nn.Module, table: Any, **__: Any) -> Run:
        rows = ((table.train.inputs[:, 0] + 1) * _CELLS / 2).round().long() * _KINDS
        rows = (rows + table.train.inputs[:, 1:].argmax(1)).clamp(max=len(inputs) - 1)
        own = labels[table.train.targets.cpu()].to(targets)
        records = TensorRecords(inputs[rows.to(inputs.device)], own, name=ready.data.name)
        return train_prepared(replace(ready, data=replace(ready.data, train=records)), **how)

    fitted = AdaDPIGUClassifier(
        classes=range(len(labels) + 1),
        bounds={0: (0, _CELLS)},
        categories={1: range(_KINDS)},
        records=2,
        model="linear",
        method="dpsgd",
    )
    with patch.object(estimator, "train", trained), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The number of unique classes")
        run: Run = fitted.fit(np.stack(np.divmod(np.arange(len(inputs)), _KINDS), axis=1), classes.numpy()).run_
    return run


def by_lightning(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by a Trainer: a LightningModule around its model, whose training_step is run."""
    import lightning.pytorch as pl

    from adadpigu.integrations.lightning import PrivateStrategy, strategy

    loss: Any = ready.loss

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = ready.model

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            return loss(self.net(inputs), targets)

        def configure_optimizers(self) -> Any:
            return _optimiser(ready)

    private, own_loop = PrivateStrategy(records=ready.data.records), partial(_loop_of, ready, how)
    trainer = partial(
        pl.Trainer,
        strategy=private,
        max_steps=ready.plan.steps,
        accelerator="gpu" if ready.device.type == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with patch.object(strategy, "PrivateLoop", own_loop), _quiet("lightning.pytorch"):
        trainer().fit(Module(), _loader(ready))
    return private.run


def by_transformers(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by Hugging Face's Trainer: a record is one token, its row in a table that is fixed."""
    from transformers import PreTrainedConfig, PreTrainedModel, PrinterCallback, TrainingArguments
    from transformers.modeling_outputs import SequenceClassifierOutput

    from adadpigu.integrations.transformers import PrivateTrainer, trainer

    inputs, targets = ready.data.train.take(torch.arange(len(ready.data.train)))
    table = inputs.to(ready.device)

    class Tabled(PreTrainedModel):  # type: ignore[misc, unused-ignore]  # Any where transformers is not looked at
        def __init__(self) -> None:
            super().__init__(PreTrainedConfig(pad_token_id=0, max_position_embeddings=1))
            self.net = ready.model

        def get_input_embeddings(self) -> Any:
            return SimpleNamespace(num_embeddings=len(inputs))

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
            return SequenceClassifierOutput(logits=self.net(table[input_ids[:, 0] % len(table)]))

    optimizer = _optimiser(ready)
    rows = [{"input_ids": [number], "label": int(target)} for number, target in enumerate(targets)]
    with TemporaryDirectory() as folder, patch.object(trainer, "PrivateLoop", partial(_loop_of, ready, how)):
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=ready.options.batch_size,
            max_steps=ready.plan.steps,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=ready.device.type == "cpu",
        )
        private = PrivateTrainer(
            Tabled(),
            arguments,
            train_dataset=rows,
            records=ready.data.records,
            max_length=1,
            loss=ready.loss,
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        )
        private.remove_callback(PrinterCallback)
        private.train()
    return private.run


def _loop_of(
    ready: Preparation,
    how: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    loss: Any = None,
    losses: Any = None,
    **_: Any,
) -> PrivateLoop:
    """The loop as an integration asks for it, with its model, records and loss, and the audit's plan and noise."""
    options, example = ready.options, synthetic_records(data.train, ready.device)
    engine = choose_engine(model, loss, example, losses=losses, engine=options.engine, precision=options.precision)
    made = replace(_stepped_by(ready, optimizer), model=model, data=data, engine=engine, loss=loss)
    return PrivateLoop.of(made, optimizer, **how)


def _optimiser(ready: Preparation) -> torch.optim.Optimizer:
    return ready.options.factory()([p for p in ready.model.parameters() if p.requires_grad])


def _stepped_by(ready: Preparation, optimizer: torch.optim.Optimizer) -> Preparation:
    """The run, with options that say that the user's own optimiser steps."""
    return replace(ready, options=replace(ready.options, optimizer=lambda _: optimizer, execution="eager"))


def _loader(ready: Preparation) -> Any:
    records = TensorDataset(*ready.data.train.take(torch.arange(len(ready.data.train))))
    return DataLoader(records, batch_size=ready.options.batch_size)


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Within it, a library tells of no run: an audit makes many."""
    told = logging.getLogger(logger)
    before = told.level
    told.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told.setLevel(before)


WAYS = {
    "loop": Way(drive=by_loop),
    "opacus": Way(
        drive=by_opacus,
        methods=("dpsgd",),
        takes_fronts=False,
        assumed=("the loss that a script's backward is taken of is the one that was made ready",),
    ),
    "sklearn": Way(drive=by_sklearn, assumed=("a table of two columns, a number and a category, stands for others",)),
    "lightning": Way(drive=by_lightning, needs=("lightning.pytorch", "lightning"), takes_fronts=False),
    "transformers": Way(
        drive=by_transformers,
        needs=("transformers", "transformers"),
        takes_fronts=False,
        assumed=("a text is packed into a row by itself (records were numbers here, looked up in a fixed table)",),
    ),
    "processes": Way(drive=train_prepared, audits=("white-box", "noise", "replay")),
}
