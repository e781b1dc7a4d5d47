"""What trainers of other libraries share: options, epochs of batches, code for batches that runs on one record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from adadpigu.core.gradients.losses import multiplying_weights
from adadpigu.core.trees import Tree, count_rows, select
from adadpigu.errors import InputError
from adadpigu.runs.run import Run
from adadpigu.training.options import TrainingOptions, check_names
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop


def check_options(owner: str, options: Mapping[str, Any], elsewhere: Mapping[str, str]) -> None:
    """Refuses a name that is no option, or is settled `elsewhere`, and a value that `train` would refuse.

    >>> check_options("PrivateTrainer", {"lr": 0.1}, elsewhere={"lr": "args.learning_rate"})
    Traceback (most recent call last):
    adadpigu.errors.InputError: lr=0.1: not an option of PrivateTrainer; allowed: args.learning_rate
    """
    for name in options.keys() & elsewhere.keys():
        value = options[name]  # which may be records
        shown = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
        raise InputError(f"{name}={shown}: not an option of {owner}; allowed: {elsewhere[name]}")
    check_names(owner, options, elsewhere)
    TrainingOptions(**{"steps": 1, **options})


class EpochBatches:
    """The batches of a private loop, an epoch at a time; they hold no record."""

    def __init__(self, loop: PrivateLoop, steps_an_epoch: int) -> None:
        self.loop = loop
        self.done = loop.done
        """steps of earlier processes"""
        self._each, self._given = steps_an_epoch, loop.done
        self._behind = loop.done % steps_an_epoch
        """steps of the first epoch that an earlier process has made"""
        self._batches = iter(loop)

    def __len__(self) -> int:
        return self._each

    def __iter__(self) -> Iterator[PrivateBatch]:
        """One epoch; of one that an earlier process began, the rest."""
        end, self._behind = min(self._given + self._each - self._behind, len(self.loop)), 0
        while self._given < end and (batch := next(self._batches, None)) is not None:
            self._given += 1
            yield batch

    @property
    def used_up(self) -> bool:
        """Whether the plan has no batch left."""
        return self._given == len(self.loop)

    def finish(self) -> Run:
        """Ends the run: by itself where all its batches were used, else as interrupted."""
        if self.used_up:
            next(self._batches, None)
        return self.loop.finish()


class OneRecord(TorchFunctionMode):
    """Adapts code for batches to one record: class weights multiply its loss, and values are not printed.

    torch divides a mean by the weights of the batch. For one record that is its own weight, so weights would cancel,
    and a record whose targets are all ignored would be 0/0.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__format__:
            return "(withheld)"
        if func not in (F.cross_entropy, F.nll_loss):
            return func(*args, **(kwargs or {}))
        given = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
        outputs, targets = given.pop("input"), given.pop("target")
        return multiplying_weights(partial(func, **given), targets)(outputs, targets)


def each_alone(loss: Callable[[Any], Tensor], batch: Tree) -> Tensor:
    """[n]: the loss of a batch, called with one record at a time."""
    rows = (select(batch, slice(row, row + 1)) for row in range(count_rows(batch)))
    return torch.stack([loss(row).sum() for row in rows])


def is_mean_or_sum(whole: Tensor, each: Tensor) -> bool:
    """Whether the loss of a batch is the mean or the sum of its records' losses."""
    return any(torch.allclose(whole, total, rtol=1e-3, atol=1e-6) for total in (each.mean(), each.sum()))
