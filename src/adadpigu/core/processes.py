"""What a run asks of the processes that train it together, and the answers of one that is alone.

What passes between processes before the noise is as sensitive as within one: they are one job, trusted alike, and
nothing of it is written or kept. Coordinates are split evenly: rank r of W owns [r·⌈d/W⌉, (r+1)·⌈d/W⌉), and draws the
noise of these alone.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")


class Processes:
    """The processes of one run; all of them call the same methods in the same order. Here: one that is alone."""

    rank: int = 0  # the number of this process, from 0; the first one keeps the ledger and speaks
    size: int = 1  # how many there are, W

    def share_coins(self, taken: Tensor) -> Tensor:
        """Whether the first process's coins have taken each record, for those that live here; False for others."""
        return taken

    def own(self, count: int) -> tuple[slice, ...]:
        """Returns the slices of a vector of `count` numbers whose noise this process draws."""
        return (slice(0, count),)

    def padding(self, count: int, size: int | None) -> int:
        """Returns the rows to add so that every process runs equally many micro-batches."""
        return 0

    def reduce_scatter(self, values: Tensor) -> Tensor:
        """Returns this process's slice of the sum over all processes."""
        return values

    def all_gather(self, part: Tensor, count: int) -> Tensor:
        """Returns the whole vector from every owner's slice."""
        return part

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether it is raised in any process."""
        return flags

    def first(self, work: Callable[[], T]) -> T | None:
        """Runs `work` in process 0 only; its errors are raised in all."""
        return work()

    def broadcast_object(self, value: T | None) -> T:
        """Returns process 0's object in every process."""
        assert value is not None
        return value

    def check_alike(self, weights: Tensor) -> None:
        """Stops a job where weights that every process holds, which are public, are not the same bit for bit."""

    def all_gather_object(self, value: T) -> list[T]:
        """What each process says, by rank."""
        return [value]

    def broadcast(self, tensor: Tensor) -> None:
        """Writes the first process's numbers into every process's tensor of the same kind."""


ALONE = Processes()
