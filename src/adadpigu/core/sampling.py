"""Poisson batches: every record is taken independently with probability q, in every draw.

One object says both how records are drawn and what event a draw is, so the sampler and the accountant cannot disagree.
Which records were drawn, and how many, is sensitive.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from adadpigu.accounting.events import draw_event
from adadpigu.core.processes import Processes
from adadpigu.core.randomness import Randomness
from adadpigu.core.sensitive import Presence, Records, Sensitive, unseal
from adadpigu.core.trees import Tree, count_rows
from adadpigu.errors import InputError, PrivacyLineError, check_range

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Recording(Protocol):
    """What a device was told to do, to have it done again."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Whoever records."""

    name: str

    def record(self, work: Callable[[], None]) -> Recording:
        """Runs the Python of `work` once; the device does nothing yet."""
        ...

    def apart(self) -> Recorder:
        """Another one, whose recordings may run at the same time."""
        ...


class Population(Protocol):
    """Private records that can be gathered by position."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tree, Tree]: ...


def bytes_of(rows: Tree) -> Iterator[bytes]:
    """The bytes of each record, of any type: records are told apart by them in memory.

    >>> [*bytes_of(torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16))]
    [b'\\x00\\x00\\x80?']
    """
    if not isinstance(rows, Tensor):
        return map(b"".join, zip(*map(bytes_of, tree_leaves(rows)), strict=True))
    plain = rows.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return (row.tobytes() for row in plain.reshape(len(rows), -1 if len(rows) else 0))


class Drawn(Sensitive[Tensor]):
    """The positions of the records one draw has taken."""


class Coins(Sensitive[Tensor]):
    """For every record whether one draw has taken it, [n] of bool."""

    def drawn(self) -> Drawn:
        """The positions of those that were taken; a device waits for their number."""
        return Drawn(unseal(self).nonzero().flatten())

    def shared_by(self, processes: Processes) -> Coins:
        """The first process's coins, as each of several sees them: for the records that live there."""
        return Coins(processes.share_coins(unseal(self)))


class FixedBatch:
    """A draw of fixed shape and place in memory, for steps that a device has recorded.

    `size` positions, the last ones −1 where fewer records were drawn. A larger draw is processed in several batches;
    no record is dropped. A GPU tosses coins on a stream of its own, while the step before still runs.
    """

    def __init__(self, size: int, device: torch.device, recorder: Recorder) -> None:
        self.size = size
        self._device = device
        self._recorder = recorder
        self._positions = Drawn(torch.full((size,), -1, device=device))
        self._tosses: dict[float, tuple[Recording, _Toss]] = {}
        self._tossed: _Toss | None = None
        self._stream, self._taken_over = _stream_and_event(device)

    @staticmethod
    def size_for(batch_size: float, sample_rate: float) -> int:
        """B plus three standard deviations, from public numbers: about one draw in 700 does not fit."""
        return math.ceil((batch_size + 3 * math.sqrt(batch_size * (1 - sample_rate))) / 32) * 32

    def toss(self, sampler: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        """Tosses one coin a record and puts those that were taken into shape; `load` takes them over."""
        with torch.cuda.stream(self._stream):  # None: no other stream
            if self._taken_over is not None:
                self._taken_over.wait(self._stream)
            if sampler.sample_rate not in self._tosses:
                toss = _Toss(len(population), self.size, self._device)
                work = lambda: toss.fill(unseal(sampler.toss(population, randomness)))  # noqa: E731
                self._tosses[sampler.sample_rate] = self._recorder.record(work), toss
            recording, self._tossed = self._tosses[sampler.sample_rate]
            recording.replay()
        return Coins(self._tossed.taken)

    def load(self) -> bool:
        """Takes the records of the latest toss; False, and nothing is changed, where there are too many."""
        assert self._tossed is not None
        self.wait()
        if int(self._tossed.count) > self.size:
            return False
        unseal(self._positions).copy_(self._tossed.positions, non_blocking=True)
        if self._taken_over is not None:
            self._taken_over.record()
        return True

    def wait(self) -> None:
        """Until the latest toss is there."""
        if self._stream is not None:
            self._stream.synchronize()

    def drawn(self) -> tuple[Drawn, Presence]:
        """The positions that were taken over last, and which of them are records; the others name any record."""
        return _drawn(unseal(self._positions))

    def several(self, coins: Coins) -> tuple[Drawn, Presence]:
        """A draw that does not fit, as several batches of this size one after the other."""
        taken = unseal(coins.drawn())
        return _drawn(F.pad(taken, (0, -len(taken) % self.size), value=-1))


def _drawn(positions: Tensor) -> tuple[Drawn, Presence]:
    """−1 is no record; it names the first one, to have something to compute with."""
    return Drawn(positions.clamp(min=0)), Presence(positions >= 0)


class _Toss:
    """Where one recorded toss leaves its coins: sensitive."""

    def __init__(self, records: int, size: int, device: torch.device) -> None:
        self.taken = torch.zeros(records, dtype=torch.bool, device=device)
        self.positions = torch.full((size,), -1, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, pin_memory=device.type == "cuda")

    def fill(self, taken: Tensor) -> None:
        """Keeps the coins, the first of the records they have taken, in order, and how many there are."""
        size = len(self.positions)
        place = taken.cumsum(0)
        slot = torch.where(taken & (place <= size), place - 1, size)
        everyone = torch.arange(len(taken), device=taken.device)
        self.taken.copy_(taken)
        self.positions.copy_(everyone.new_full((size + 1,), -1).scatter_(0, slot, everyone)[:size])
        self.count.copy_(place[-1:], non_blocking=True)


def _stream_and_event(device: torch.device) -> tuple[Any, Any]:
    if device.type != "cuda":
        return None, None
    return torch.cuda.Stream(device), torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Takes each record with probability `sample_rate` (q = B/N, from the *declared* record count N).

    The number of coins tossed is the number of records there are; q never depends on it.

    >>> PoissonSampler.expecting(batch_size=250, records=1000).sample_rate
    0.25
    """

    sample_rate: float

    def __post_init__(self) -> None:
        check_range("sample_rate", self.sample_rate, "in (0, 1]")

    @classmethod
    def expecting(cls, *, batch_size: int, records: int) -> PoissonSampler:
        """The sampler whose draws hold `batch_size` records on average."""
        if not 1 <= batch_size <= records:
            raise InputError(f"batch_size={batch_size} is not between 1 and the declared record count {records}")
        return cls(sample_rate=batch_size / records)

    def toss(self, population: Population, randomness: Randomness) -> Coins:
        """Tosses one coin a record, on the generator's device. A draw of no records is legal."""
        return Coins(randomness.uniform(len(population)) < self.sample_rate)

    def event(self, noise_multipliers: list[float]) -> DpEvent:
        """What one draw costs, whatever number of noisy sums is released from it."""
        return _event(self.sample_rate, tuple(noise_multipliers))


_event = functools.lru_cache(maxsize=64)(draw_event)


def gather(population: Population, drawn: Drawn, present: Presence | None = None) -> Records:
    """The drawn records themselves: one row a record, or a record could be clipped as several."""
    positions = unseal(drawn)
    inputs, targets = population.take(positions)
    rows = len(inputs) if isinstance(inputs, Tensor) else count_rows(inputs)
    if not rows == len(targets) == len(positions):
        raise PrivacyLineError(f"{type(population).__name__}.take must return one input and one target a record")
    return Records((inputs, targets), present=present)
