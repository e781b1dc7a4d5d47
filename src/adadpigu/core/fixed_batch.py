"""Draws for steps that a device captures as a graph: their shape and place in memory do not depend on who is drawn."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import Coins, Drawn, Population, Sampler
from adadpigu.core.sensitive import Presence, unseal

Work = Callable[[], None]


class GraphCapture(Protocol):
    """Captures work as a graph, which a device can replay."""

    name: str

    def record(self, work: Work) -> Work:
        """Runs the Python of `work` once, while the device does nothing yet; returns what replays it there."""

    def concurrent(self) -> "GraphCapture":
        """Another one, whose recordings may run at the same time."""


class FixedBatch:
    """A draw of fixed shape and place in memory, for steps that a device has recorded.

    `size` positions, the last ones −1 where fewer records were drawn. A larger draw is processed in several batches;
    no record is dropped. A GPU tosses coins on a stream of its own, while the step before still runs.
    """

    def __init__(self, size: int, device: torch.device, recorder: GraphCapture) -> None:
        self.size = size
        self._device = device
        self._recorder = recorder
        self._positions = Drawn(torch.full((size,), -1, device=device))
        self._tosses: dict[float, tuple[Work, _Toss]] = {}
        self._tossed: _Toss | None = None
        gpu = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if gpu else None  # type: ignore[no-untyped-call, unused-ignore]
        self._taken_over: Any = torch.cuda.Event() if gpu else None  # type: ignore[no-untyped-call, unused-ignore]

    @staticmethod
    def size_for(batch_size: float, sampler: Sampler) -> int:
        """B plus three standard deviations, from public numbers: about one draw in 700 does not fit."""
        deviation = math.sqrt(batch_size * sampler.per_owner * (1 - sampler.sample_rate))
        return math.ceil((batch_size + 3 * deviation) / 32) * 32

    def toss(self, sampler: Sampler, population: Population, randomness: Randomness) -> Coins:
        """Tosses one coin a record and puts those that were taken into shape; `load` takes them over."""
        with torch.cuda.stream(self._stream):  # None: no other stream
            if self._taken_over is not None:
                self._taken_over.wait(self._stream)
            if sampler.sample_rate not in self._tosses:
                toss = _Toss(len(population), self.size, self._device)
                work = lambda: toss.fill(unseal(sampler.toss(population, randomness)))  # noqa: E731
                self._tosses[sampler.sample_rate] = self._recorder.record(work), toss
            replay, self._tossed = self._tosses[sampler.sample_rate]
            replay()
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
