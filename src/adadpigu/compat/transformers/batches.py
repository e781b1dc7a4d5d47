"""What stands where Trainer has a data loader: one handle a Poisson batch, and nobody sees a record.

An epoch is N/B steps of the *declared* N. The number of batches is the plan's, so that every step that is trained was
planned, charged and released.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from adadpigu.errors import InputError
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop
from adadpigu.training.run import Run


def steps_an_epoch(records: int, batch_size: int) -> int:
    """⌈N/B⌉, as Trainer counts.

    >>> steps_an_epoch(1000, 64)
    16
    """
    if records < 1 or not 1 <= batch_size <= records:
        raise InputError(f"per_device_train_batch_size={batch_size} is not between 1 and records={records}")
    return math.ceil(records / batch_size)


class PrivateBatches:
    """The batches of a private loop, epoch by epoch."""

    def __init__(self, loop: PrivateLoop, each: int, done: int) -> None:
        """`each`: steps an epoch; `done`: steps of earlier processes."""
        self.loop = loop
        self.done = done
        self._each, self._given = each, done
        self._batches = iter(loop)

    def __len__(self) -> int:
        return self._each

    def __iter__(self) -> Iterator[PrivateBatch]:
        """To the end of the epoch that has begun."""
        end = min((self._given // self._each + 1) * self._each, len(self.loop))
        while self._given < end:
            batch = next(self._batches, None)
            if batch is None:
                return
            self._given += 1
            yield batch

    def finish(self) -> Run:
        """Ends the run: by itself where all its batches were used, else as interrupted."""
        if self._given == len(self.loop):
            next(self._batches, None)
        return self.loop.finish()
