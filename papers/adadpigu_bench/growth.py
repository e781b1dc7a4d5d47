"""How our step grows with B, with d and with T, the steps taken so far: in proportion, without a jump, or not.

Against B and d a straight line a + b·x is fitted to the medians of interleaved rounds; against T, where nothing should
grow at all, blocks of one run are compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np

from adadpigu.errors import require
from adadpigu_bench.contestants import Contestant, Task
from adadpigu_bench.nets import LADDER, size
from adadpigu_bench.processes import Stand, Tell, interleaved

TOLERANCE = 0.25
"""by how much of a figure the straight line may miss it: single rounds swing by more"""
_BLOCKS, _BLOCK = 8, 5


@dataclass(frozen=True)
class _Pace:
    """How a device is measured: a GPU takes larger batches, more steps, and records its first ones."""

    batches: tuple[int, ...] = (125, 250, 500, 1000)
    ladder_batch: int = 256
    steps: int = 2
    warm_up: int = 2


_CPU, _GPU = _Pace(), _Pace(batches=(1024, 2048, 4096, 8192), ladder_batch=4096, steps=20, warm_up=20)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A step's milliseconds against one quantity."""

    against: str
    points: tuple[tuple[int, float], ...]
    """(value, ms)"""
    worst: float
    """the largest miss of the fitted line, as a share of the figure it misses"""

    @property
    def linear(self) -> bool:
        """Whether a straight line (for T: a level one) tells every figure to within the tolerance."""
        return self.worst <= TOLERANCE

    def to_json(self) -> dict[str, object]:
        """The growth as a JSON object."""
        return {**asdict(self), "linear": self.linear, "tolerance": TOLERANCE}


def measure_growth(*, method: str, engine: str, rounds: int, device: str, tell: Tell) -> list[Growth]:
    """Our step against B, d and T."""
    pace = _GPU if device.startswith("cuda") else _CPU
    ours = Contestant(method=method, engine=engine, peer=None)
    task = Task(net="mnist-cnn", batch=pace.batches[0], device=device, steps=pace.warm_up + rounds * pace.steps)
    batches = {batch: replace(task, batch=batch) for batch in pace.batches}
    nets = {size(net.model()): replace(task, net=name, batch=pace.ladder_batch) for name, net in LADDER.items()}
    return [
        _against("B", batches, ours, pace, rounds, tell),
        _against("d", nets, ours, pace, rounds, tell),
        _against_steps(replace(task, steps=pace.warm_up + _BLOCKS * _BLOCK), ours, pace.warm_up, tell),
    ]


def _against(what: str, tasks: Mapping[int, Task], ours: Contestant, pace: _Pace, rounds: int, tell: Tell) -> Growth:
    stands: dict[Contestant, Stand] = {}
    with ExitStack() as stack:
        for value, task in tasks.items():
            tell(f"first steps at {what}={value}")
            stand = stack.enter_context(closing(Stand(ours, task)))
            stand.wait_until_built()
            stand.run(pace.warm_up)
            stands[replace(ours, engine=f"{what}={value}")] = stand
        found, failed = interleaved(stands, tell, rounds=rounds, steps=pace.steps)
    require(not failed, f"{ours.label} failed in the middle: {'; '.join(failed.values())}")
    return fitted(what, list(zip(tasks, map(median, found.values()), strict=True)))


def _against_steps(task: Task, ours: Contestant, warm_up: int, tell: Tell) -> Growth:
    """Blocks of one run."""
    points = []
    with closing(Stand(ours, task)) as stand:
        stand.wait_until_built()
        stand.run(warm_up)
        for done in range(warm_up, task.steps, _BLOCK):
            tell(f"steps {done + 1} to {done + _BLOCK}")
            points.append((done + _BLOCK, median([1000 * stand.run(1).seconds for _ in range(_BLOCK)])))
    return level("T", points)


def fitted(against: str, points: Sequence[tuple[int, float]]) -> Growth:
    """The straight line of least relative squares, never falling at 0, and its worst miss.

    >>> fitted("B", [(1, 12.0), (2, 14.0), (4, 18.0)]).linear, fitted("B", [(1, 1.0), (2, 4.0), (4, 16.0)]).linear
    (True, False)
    """
    x, y = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    line = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    (constant, slope), *_ = np.linalg.lstsq(line, np.ones_like(y), rcond=None)
    if constant < 0:  # a step cannot take less than nothing at B = 0: bent upwards, then
        constant, slope = 0.0, float((x / y).sum() / ((x / y) ** 2).sum())
    return Growth(against=against, points=tuple(points), worst=float(np.abs((constant + slope * x) / y - 1).max()))


def level(against: str, points: Sequence[tuple[int, float]]) -> Growth:
    """No growth at all: the straight line's rise from the first to the last figure, as a share of their mean.

    >>> level("T", [(1, 10.0), (2, 10.5), (3, 9.8)]).linear, level("T", [(1, 10.0), (2, 20.0), (3, 30.0)]).linear
    (True, False)
    """
    x, y = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    slope = float(np.polyfit(x, y, 1)[0])
    return Growth(against=against, points=tuple(points), worst=abs(slope) * float(x[-1] - x[0]) / float(y.mean()))
