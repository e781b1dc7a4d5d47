"""Poisson batches: every record is taken independently with probability q, in every draw.

One object says both how records are drawn and what event a draw is, so the sampler and the accountant cannot disagree.
Which records were drawn, and how many, is sensitive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from adadpigu.accounting.events import draw_event
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.randomness import Randomness
from adadpigu.records import Records
from adadpigu.sensitive import Sensitive, unseal

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Population(Protocol):
    """Private records that can be gathered by position."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]: ...


class Drawn(Sensitive[Tensor]):
    """The positions of the records one draw has taken."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Takes each record with probability `sample_rate` (q = B/N, from the *declared* record count N).

    The number of coins tossed is the number of records there are; q never depends on it.

    >>> PoissonSampler.expecting(batch_size=250, records=1000).sample_rate
    0.25
    """

    sample_rate: float

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise InputError(f"sample_rate={self.sample_rate} is not in (0, 1]")

    @classmethod
    def expecting(cls, *, batch_size: int, records: int) -> PoissonSampler:
        """The sampler whose draws hold `batch_size` records on average."""
        if not 1 <= batch_size <= records:
            raise InputError(f"batch_size={batch_size} is not between 1 and the declared record count {records}")
        return cls(sample_rate=batch_size / records)

    def draw(self, population: Population, randomness: Randomness) -> Drawn:
        """Tosses one coin a record. An empty draw is legal."""
        coins = randomness.uniform(len(population))
        return Drawn((coins < self.sample_rate).nonzero().flatten())

    def event(self, noise_multipliers: list[float]) -> DpEvent:
        """What one draw costs, whatever number of noisy sums is released from it."""
        return draw_event(self.sample_rate, noise_multipliers)


def gather(population: Population, drawn: Drawn) -> Records:
    """The drawn records themselves: one row a record, or a record could be clipped as several."""
    positions = unseal(drawn)
    inputs, targets = population.take(positions)
    if not len(inputs) == len(targets) == len(positions):
        raise PrivacyLineError(f"{type(population).__name__}.take must return one input and one target a record")
    return Records((inputs, targets))
