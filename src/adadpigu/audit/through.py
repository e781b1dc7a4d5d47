"""Audits of runs that are trained otherwise than by `train`: a loop of one's own, other libraries, several processes.

The audit makes a run ready, and the integration trains it: its loader, its loop and its optimiser's step are on the
path. What an integration would check or read of the user's code beforehand is not; `assumed` says so.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.audit.result import AuditResult
from adadpigu.audit.subject import Drive, Subject, trained_through
from adadpigu.errors import InputError, unknown
from adadpigu.extras import extra
from adadpigu.gradients import choose_engine
from adadpigu.training.own_loop import PrivateLoop
from adadpigu.training.preparation import Preparation, synthetic_records
from adadpigu.training.run import Run
from adadpigu.training.train import train_prepared

AUDITS = ("white-box", "noise", "replay")
"""that can be made through something else than `train`"""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an integration trains what an audit has made ready."""

    drive: Drive
    means: str
    methods: tuple[str, ...] | None = None
    """that it has; None: all"""
    needs: tuple[str, str] | None = None
    """a module that may not be installed, and the extra it comes with"""
    takes_fronts: bool = True
    """whether fixed features, released normalisation and augmentation go through it"""
    assumed: tuple[str, ...] = ()
    """what of the integration was not on the path"""


def audit_through(name: str, audit: Callable[..., AuditResult], subject: Subject, **options: Any) -> AuditResult:
    """The audit, of runs that are trained in that way."""
    way = way_of(name)
    _check(name, way, subject)
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
    if name not in WAYS:
        raise unknown("way to train (--through)", name, WAYS)
    way = WAYS[name]
    if way.needs is not None:
        module, group = way.needs
        extra(module, group=group, purpose=f"--through {name}")
    return way


def _check(name: str, way: Way, subject: Subject) -> None:
    config = subject.config
    if way.methods is not None and config.method not in way.methods:
        raise InputError(f"method={config.method!r} through {name!r}; allowed there: {', '.join(way.methods)}")
    ready = None if way.takes_fronts else subject.prepare()
    if ready is not None and (ready.front is not None or ready.view.augmentation):
        raise InputError(f"{subject.label}: features, normalisation or augmentation through {name!r}; allowed: none")


def by_loop(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by a loop of the user's own."""
    optimizer, options = _optimiser(ready)
    loop = PrivateLoop.of(replace(ready, options=options), optimizer, **how)
    for batch in loop:
        optimizer.zero_grad()
        batch.backward()
        optimizer.step()
    return loop.run


def by_opacus(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready as a script for Opacus does, by what `make_private` gives it."""
    from adadpigu.compat.opacus import PrivacyEngine
    from adadpigu.compat.opacus.script import HeldRecords
    from adadpigu.compat.opacus.tracing import ScriptLoss

    optimizer, options = _optimiser(ready)
    records = replace(ready.data, train=HeldRecords(ready.data.train))
    nobody: DataLoader[Any] = DataLoader(TensorDataset(torch.zeros(1)))
    steps, engine = ready.plan.steps, PrivacyEngine()
    made = replace(ready, data=records, options=options)
    model, _, loader = engine._wrapped(made, optimizer, ScriptLoss(), nobody, steps, open_ended=False, **how)
    for given, target in loader:
        optimizer.zero_grad()
        loss: Any = ready.loss(model(given), target).mean()
        loss.backward()
        optimizer.step()
    assert engine._training is not None
    return engine._training.loop.run


def by_sklearn(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready from within `fit` of an estimator, in the place of the table that it is given."""
    import numpy as np

    from adadpigu.compat.sklearn import AdaDPIGUClassifier, estimator

    table = AdaDPIGUClassifier(classes=[0, 1], bounds=(-1, 1), records=2, model="linear", method="dpsgd")
    with _in_place(estimator, "train", lambda *_, **__: train_prepared(ready, **how)):
        run: Run = table.fit(np.zeros((2, 1)), np.array([0, 1])).run_
    return run


def by_lightning(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by a Trainer: a LightningModule around its model, whose training_step is followed."""
    import lightning.pytorch as pl

    from adadpigu.compat.lightning import PrivateStrategy, strategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion = ready.model, _Criterion(ready.loss)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            return self.criterion(self.net(inputs), targets)

        def configure_optimizers(self) -> Any:
            return _optimiser(ready)[0]

    private = PrivateStrategy(records=ready.data.records)
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
    records = TensorDataset(*ready.data.train.take(torch.arange(len(ready.data.train))))
    with _in_place(strategy, "PrivateLoop", partial(_loop_of, ready, how)), _quiet("lightning.pytorch"):
        trainer().fit(Module(), DataLoader(records, batch_size=ready.options.batch_size))
    return private.run


def by_transformers(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by Hugging Face's Trainer: a record is one token, its row in a table that is fixed."""
    from transformers import PreTrainedConfig, PreTrainedModel, PrinterCallback, TrainingArguments
    from transformers.modeling_outputs import SequenceClassifierOutput

    from adadpigu.compat.transformers import PrivateTrainer, trainer

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

    optimizer = _optimiser(ready)[0]
    rows = [{"input_ids": [number], "label": int(target)} for number, target in enumerate(targets)]
    with TemporaryDirectory() as folder, _in_place(trainer, "PrivateLoop", partial(_loop_of, ready, how)):
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
            loss=ready.loss,
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        )
        private.remove_callback(PrinterCallback)
        private.train()
    return private.run


class _Criterion(nn.Module):
    """Asks the auditor's loss anew in every step."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self._loss = loss

    def forward(self, outputs: Tensor, targets: Tensor) -> Any:
        return self._loss(outputs, targets)


def _loop_of(
    ready: Preparation,
    how: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    loss: Any,
    **_: Any,
) -> PrivateLoop:
    """The loop as an integration asks for it, with its model, records and loss, and the audit's plan and noise."""
    options = replace(ready.options, optimizer=lambda _: optimizer, execution="eager")
    example = synthetic_records(data.train, ready.device)
    engine = choose_engine(model, loss, example, engine=options.engine, precision=options.precision)
    made = replace(ready, model=model, data=data, engine=engine, loss=loss, options=options)
    return PrivateLoop.of(made, optimizer, **how)


def _optimiser(ready: Preparation) -> tuple[torch.optim.Optimizer, Any]:
    """The run's optimiser, as the user's own, and options that say so."""
    optimizer = ready.options.factory()([p for p in ready.model.parameters() if p.requires_grad])
    return optimizer, replace(ready.options, optimizer=lambda _: optimizer, execution="eager")


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


@contextlib.contextmanager
def _in_place(module: Any, name: str, value: object) -> Iterator[None]:
    """Within it, an integration finds the audit's run where it would make its own."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


WAYS = {
    "loop": Way(drive=by_loop, means="a loop of one's own (PrivateLoop)"),
    "opacus": Way(
        drive=by_opacus,
        means="a script for Opacus, with our PrivacyEngine",
        methods=("dpsgd",),
        takes_fronts=False,
        assumed=("the loss that a script's backward is taken of is the one that was made ready",),
    ),
    "sklearn": Way(
        drive=by_sklearn,
        means="`fit` of an estimator",
        assumed=("a table's cells are encoded one by one, by what is declared",),
    ),
    "lightning": Way(
        drive=by_lightning,
        means="a Lightning Trainer with our PrivateStrategy",
        needs=("lightning.pytorch", "lightning"),
        takes_fronts=False,
    ),
    "transformers": Way(
        drive=by_transformers,
        means="Hugging Face's Trainer (PrivateTrainer)",
        needs=("transformers", "transformers"),
        takes_fronts=False,
        assumed=("a text is packed into a row by itself (records were numbers here, looked up in a fixed table)",),
    ),
    "processes": Way(drive=train_prepared, means="two processes on this machine, as torchrun starts them"),
}
