"""What a run asks of the processes that train it together, and the answers of one that is alone.

What passes between processes before the noise is as sensitive as within one: they are one job, trusted alike, and
nothing of it is written or kept. Coordinates are split evenly: rank r of W owns [r·⌈d/W⌉, (r+1)·⌈d/W⌉), and draws the
noise of these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Processes(Protocol):
    """The processes of one run; all of them call the same methods in the same order. Here: one that is alone."""

    rank: int  # the number of this process, from 0; the first one keeps the ledger and speaks
    size: int  # how many there are, W

    def share_coins(self, taken: Tensor) -> Tensor:
        """Whether the first process's coins have taken each record, for those that live here; False for others."""
        return taken

    def own(self, count: int) -> tuple[slice, ...]:
        """Of so many coordinates those whose noise this process draws, in order."""
        return (slice(0, count),)

    def padding(self, count: int, size: int | None) -> int:
        """Rows to add to so many records, so that all processes that must keep step have equally many micro-batches."""
        return 0

    def reduce_scatter(self, values: Tensor) -> Tensor:
        """Of the sum over all processes the part that this one owns."""
        return values

    def all_gather(self, part: Tensor, count: int) -> Tensor:
        """All owners' parts of a vector of so many numbers, once they may be seen."""
        return part

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether it is raised in any process."""
        return flags

    def first(self, work: Callable[[], T]) -> T | None:
        """Does something in the first process alone, None in the others; what it raises is raised in all."""
        return work()

    def broadcast_object(self, value: T | None) -> T:
        """What the first process says."""
        assert value is not None
        return value

    def check_alike(self, weights: Tensor) -> None:
        """Stops a job where weights that every process holds, which are public, are not the same bit for bit."""
        return

    def all_gather_object(self, value: T) -> list[T]:
        """What each process says, by rank."""
        return [value]

    def broadcast(self, tensor: Tensor) -> None:
        """Writes the first process's numbers into every process's tensor of the same kind."""
        return


class Alone(Processes):
    """One process: everything is its own, and nobody is asked."""

    rank = 0
    size = 1


ALONE = Alone()
