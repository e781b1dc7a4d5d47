"""Moments of a fit: the step, its place in the epoch, and the epoch, as training_step reads them. All of it public.

A loss must be the same function at all of them. That is looked at twice: before the first draw at some moments of the
plan, so that most losses that change cost nothing, and at every step at the moment itself, so that none is overlooked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """Where a fit stands before a step."""

    step: int
    """`global_step`: steps that were made"""
    batch: int
    """`batch_idx`: those of them that belong to this epoch"""
    epoch: int
    """`current_epoch`"""

    def __str__(self) -> str:
        return f"step {self.step} (batch {self.batch} of epoch {self.epoch})"


def moments_of(steps: int, each: int) -> tuple[Moment, ...]:
    """Some moments of a plan of `steps`, `each` an epoch: the first, the last, and others ever further apart.

    >>> [moment.step for moment in moments_of(100, 10)]
    [0, 1, 2, 4, 8, 9, 10, 16, 20, 32, 40, 50, 64, 80, 99]
    """
    chosen = {0, 1, each - 1, steps // 2, steps - 1, *_doubled(1, steps), *_doubled(each, steps)}
    return tuple(Moment(step, step % each, step // each) for step in sorted(chosen) if step < steps)


def _doubled(number: int, most: int) -> Iterator[int]:
    while number < most:
        yield number
        number *= 2
