"""The runs behind one `make_private`: a planned one, or a run for every pass; and the loader that shows their batches.

The guard is on from the first moment to the last: nothing but a release moves the weights, also between passes.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from adadpigu.bounding import GradientSum
from adadpigu.compat.opacus.numbers import FromBatch
from adadpigu.compat.opacus.script import SEEN, HeldRecords, PrivateModule, ScriptBatch
from adadpigu.compat.opacus.tracing import ScriptLoss, Traced
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.gradients.interface import SealedEngine
from adadpigu.gradients.state import untouched
from adadpigu.methods import DPSGD
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.preparation import Preparation

_OPEN = (
    "how many passes were made, if that was decided by looking at records, losses or scores: each is charged in full"
)


class PrivateDataLoader:
    """Yields the Poisson batches of a private run, a pass at a time; one more pass costs one more pass."""

    def __init__(self, training: Training, loader: DataLoader[Any]) -> None:
        self._training = training
        self.original = loader
        self.dataset, self.batch_size, self.collate_fn = loader.dataset, loader.batch_size, loader.collate_fn
        self.sample_rate = training.prepared.sample_rate

    def __len__(self) -> int:
        return self._training.length

    def __iter__(self) -> Iterator[tuple[Traced, Traced]]:
        return self._training.one_pass()

    def process_at_once(self, records: int) -> None:
        """So many records are differentiated at a time; changes nothing but memory."""
        self._training.process_at_once(records)


class Training:
    """What engine, loader and model share."""

    def __init__(
        self,
        prepared: Preparation,
        optimizer: torch.optim.Optimizer,
        loss: ScriptLoss,
        *,
        length: int,
        open_ended: bool,
        **how: Any,
    ) -> None:
        """`how`: where and with what the runs are made, as `PrivateLoop.of` takes it."""
        self.prepared, self.length = prepared, length
        self._optimizer, self._loss = optimizer, loss
        optimizer.register_step_pre_hook(_refuse_told_settings)
        self._open_ended = open_ended
        self._how = how
        self.ended: list[PrivateLoop] = []
        self._pass: weakref.ref[Any] | None = None
        """of the script's own: where it lets go of it, it is left"""
        self._begin()

    def _begin(self) -> None:
        self.loop = PrivateLoop.of(self.prepared, self._optimizer, **self._how)
        self.loop.confess(SEEN)
        if self._open_ended:
            self.loop.confess(_OPEN)
        self._batches: Iterator[PrivateBatch] | None = None
        self._batch: PrivateBatch | None = None

    def module(self) -> PrivateModule:
        """The model as the script calls it."""
        inputs, _ = self.prepared.data.train.take(torch.arange(0))
        blank = torch.zeros((1, *inputs.shape[1:]), dtype=inputs.dtype, device=self.prepared.device)
        model = self.prepared.model
        with untouched(model), torch.no_grad():
            output = model.eval()(blank)
        engine = cast(SealedEngine, self.prepared.engine)
        return PrivateModule(model, (output.shape, output.dtype), engine.arranged, lambda: self.loop.ended)

    def process_at_once(self, records: int) -> None:
        """Of this run and of all that follow."""
        options = dataclasses.replace(self.prepared.options, physical_batch_size=records, memory_limit=None)
        self.prepared = dataclasses.replace(self.prepared, options=options)
        self.loop.process_at_once(records)

    def one_pass(self) -> Iterator[tuple[Traced, Traced]]:
        """The batches of one pass; one that was left is ended by the next."""
        self._leave()
        if self.loop.failed:
            raise InputError(
                "the private run has ended by an error, and nothing more is released; what is claimed for it stands in "
                "statement(); allowed: another PrivacyEngine, whose epsilon adds up"
            )
        if self.loop.ended:
            raise InputError(
                f"the {self.prepared.plan.steps} planned steps are done: their epsilon is what was asked for; "
                "allowed: more epochs in make_private_with_epsilon"
            )
        if self._batch is not None and self._batch.drop():
            told = "a batch was drawn and not used; it is charged all the same"
            warnings.warn(told, stacklevel=2)
        self._batches = iter(self.loop) if self._batches is None else self._batches
        shown = self._shown(self.loop, self._batches)
        self._pass = weakref.ref(shown)
        return shown

    def _leave(self) -> None:
        """Ends a pass that somebody still holds and goes on with no more, such as a traceback."""
        if self._pass is not None and (held := self._pass()) is not None:
            held.close()

    def _shown(self, loop: PrivateLoop, batches: Iterator[PrivateBatch]) -> Iterator[tuple[Traced, Traced]]:
        """Each batch charged before it is drawn."""
        records = cast(HeldRecords, self.prepared.data.train)
        query = GradientSum(clip_norm=cast(DPSGD, self.prepared.method).clip_norm)
        try:
            for _ in range(self.length):
                self._batch = next(batches, None)
                if self._batch is None:  # the plan ends within this pass
                    return
                with records.held():
                    yield ScriptBatch(self._batch, records, cast(SealedEngine, self.prepared.engine), self._loss).shown(
                        query
                    )
            if loop.on_last_step:
                next(batches, None)  # ends the run
        finally:
            if self._open_ended and self.loop is loop:
                self._next_run()

    def _next_run(self) -> None:
        if not self.loop.ended and self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
        self.ended.append(self.loop)
        self._begin()

    def finish(self) -> None:
        """Ends the run that is open, if anything was drawn in it."""
        self._leave()
        if not self.loop.ended and self._batches is not None:
            if self._batch is not None:
                self._batch.drop()
            self.loop.finish()

    def loops(self) -> list[PrivateLoop]:
        """All runs, the one that is open last."""
        return [*self.ended, self.loop]


def _refuse_told_settings(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """A number of a batch as a learning rate would stand in the weights as it is."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, FromBatch):
                raise PrivacyLineError(
                    f"{name} of the optimizer is a number of a private batch (item(), a size), which the weights would "
                    "show; allowed: constants and public schedules"
                )
