"""The loader that `make_private` returns, and the runs behind it: a planned one, or a run for every pass.

The guard is on from the first moment to the last: nothing but a release moves the weights, also between passes.
"""

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Generator, Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from adadpigu.core.bounding import GradientSum
from adadpigu.errors import require
from adadpigu.integrations.opacus.script import SEEN, ScriptBatch, WholeBatch
from adadpigu.methods import DPSGD
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.preparation import Preparation
from adadpigu.training.reporting import print_path

_OPEN = "how many passes were made, if records, losses or scores decided that: each is charged in full"


class PrivateDataLoader:
    """Yields the Poisson batches of a private run, a pass at a time; one more pass costs one more pass."""

    def __init__(
        self,
        loader: DataLoader[Any],
        prepared: Preparation,
        optimizer: torch.optim.Optimizer,
        *,
        length: int,
        open_ended: bool,
        batches: type[ScriptBatch] | type[WholeBatch] = ScriptBatch,
        **how: Any,
    ) -> None:
        """`length`: steps of a pass; `how`: as for `PrivateLoop.of`."""
        self.original, self.dataset, self.batch_size = loader, loader.dataset, loader.batch_size
        self.batch: ScriptBatch | WholeBatch | None = None
        self._kind = batches
        self.prepared, self._optimizer, self._how = prepared, optimizer, how
        self._length, self._open_ended = length, open_ended
        clip_norm = cast(DPSGD, prepared.method).clip_norm
        self._query = GradientSum(clip_norm=clip_norm)
        self._fixed = {"noise_multiplier": prepared.noise_multiplier, "max_grad_norm": clip_norm}
        """what Opacus has as attributes of an optimizer: scripts print them, and schedulers of theirs change them"""
        vars(optimizer).update(self._fixed)
        self._ended: list[PrivateLoop] = []
        self._pass: weakref.ref[Generator[Any]] | None = None  # held by the script alone: if it lets go, the pass ends
        self._begin()

    def _begin(self) -> None:
        how = {"introduce": None if self._ended else print_path, **self._how}
        self.loop = PrivateLoop.of(self.prepared, self._optimizer, **how)
        self.loop.add_caveat(SEEN)
        if self._open_ended:
            self.loop.add_caveat(_OPEN)
        self._batches: Generator[PrivateBatch] | None = None
        self._drawn: PrivateBatch | None = None

    def loops(self) -> list[PrivateLoop]:
        """All runs, the one that is open last."""
        return [*self._ended, self.loop]

    def __len__(self) -> int:
        return self._length

    def process_at_once(self, records: int) -> None:
        """Differentiates so many records at a time from here on; changes nothing but memory."""
        options = dataclasses.replace(self.prepared.options, physical_batch_size=records, memory_limit=None)
        self.prepared = dataclasses.replace(self.prepared, options=options)
        self.loop.process_at_once(records)

    def __iter__(self) -> Iterator[Any]:
        """The batches of one pass, which ends the one before."""
        self._leave()
        fault = "the private run has ended by an error, and nothing more is released; its claim stands in statement()"
        require(not self.loop.failed, f"{fault}; allowed: another PrivacyEngine, whose epsilon adds up")
        fault = f"the {self.prepared.plan.steps} planned steps are done: their epsilon is what was asked for"
        require(not self.loop.ended, f"{fault}; allowed: more epochs in make_private_with_epsilon")
        if self._drawn is not None and self._drawn.drop():
            warnings.warn("a batch was drawn and not used; it is charged all the same", stacklevel=2)
        if self._batches is None:
            self._batches = cast("Generator[PrivateBatch]", iter(self.loop))
        shown = self._shown(self._batches)
        self._pass = weakref.ref(shown)
        return shown

    def _shown(self, batches: Generator[PrivateBatch]) -> Generator[Any]:
        """Each batch charged before it is drawn."""
        try:
            for _ in range(self._length):
                self._check_fixed()
                self._drawn = next(batches, None)
                if self._drawn is None:  # the plan ends within this pass
                    return
                self.batch = self._kind(self._drawn, self._query, self.prepared)
                yield self.batch.shown()
            if self.loop.done == self.prepared.plan.steps - 1:
                next(batches, None)  # ends the run
        finally:
            self.batch = None
            if self._open_ended:
                if not self.loop.ended:
                    batches.close()
                self._ended.append(self.loop)
                self._begin()

    def _check_fixed(self) -> None:
        for name, value in self._fixed.items():
            given = getattr(self._optimizer, name, value)
            fault = f"optimizer.{name}={given!r}: the plan was made and charged for {value}"
            remedy = f"leave it, or {name}={given!r} in make_private of another PrivacyEngine, whose epsilon adds up"
            require(given == value, f"{fault}; allowed: {remedy}")

    def _leave(self) -> None:
        """Ends a pass that somebody still holds and goes on with no more, such as a traceback."""
        if self._pass is not None and (held := self._pass()) is not None:
            held.close()

    def finish(self) -> None:
        """Ends the run that is open, if anything was drawn in it."""
        self._leave()
        if not self.loop.ended and self._batches is not None:
            if self._drawn is not None:
                self._drawn.drop()
            self.loop.finish()


@contextlib.contextmanager
def BatchMemoryManager(  # noqa: N802  as Opacus calls it
    *, data_loader: PrivateDataLoader, max_physical_batch_size: int, optimizer: torch.optim.Optimizer
) -> Iterator[PrivateDataLoader]:
    """Differentiates a logical batch in parts of a public size; the script goes through whole batches."""
    data_loader.process_at_once(max_physical_batch_size)
    yield data_loader
