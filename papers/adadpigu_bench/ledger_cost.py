"""What the ledger takes of a step: the time that a real run spends in writing its charges, over all of its time.

A GPU works on while the program waits for the disk, so there the share is an upper bound.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

from adadpigu.accounting.journal import Journal
from adadpigu.accounting.ledger_reading import LEDGER_FILE, read_ledger
from adadpigu.training import Facts, Metrics, Run, train_prepared
from adadpigu.training.pace import SHARE
from adadpigu_bench.contestants import Task, synchronise
from adadpigu_bench.ours import method_of, prepared
from adadpigu_bench.processes import Tell

_STEPS = {"cpu": 40, "cuda": 2000}
_WARM_UP = {"cpu": 4, "cuda": 300}


@dataclass(frozen=True, kw_only=True)
class LedgerCost:
    """The ledger's part of a run."""

    net: str
    batch: int
    method: str
    steps: int
    reserve: int
    """steps that are charged at once"""
    ms_step: float
    ms_record: float
    """until a record is on disk, its head too"""
    share: float
    """of the time of a step"""

    @property
    def within(self) -> bool:
        """Whether that is at most 2 %."""
        return self.share <= SHARE

    def to_json(self) -> dict[str, object]:
        """As one JSON object."""
        return {**asdict(self), "within": self.within, "limit": SHARE}


def measure_ledger(*, net: str, batch: int, method: str, engine: str, device: str, tell: Tell) -> LedgerCost:
    """Trains on random records, in a folder of its own, and looks at the clock."""
    kind = "cuda" if device.startswith("cuda") else "cpu"
    task = Task(net=net, batch=batch, device=device, steps=_WARM_UP[kind] + _STEPS[kind])
    run = prepared(task, method_of(method), engine)
    with tempfile.TemporaryDirectory() as folder:
        tell(f"{task.steps} steps of {net}, B={batch}")
        clock = _Clock(device, warm_up=_WARM_UP[kind])
        with clock.watching():
            train_prepared(run, out=Path(folder) / "run", observers=[clock])
        reserve = int(read_ledger(Path(folder) / "run" / LEDGER_FILE).header["reserve"])
    total = clock.end_time - clock.start_time
    return LedgerCost(
        net=net,
        batch=batch,
        method=method,
        steps=_STEPS[kind],
        reserve=reserve,
        ms_step=1000 * total / _STEPS[kind],
        ms_record=1000 * sum(clock.writing) / max(len(clock.writing), 1),
        share=sum(clock.writing) / total,
    )


@dataclass
class _Clock:
    """The observer that times the steps after the first ones, and what is written meanwhile."""

    device: str
    warm_up: int
    start_time: float = 0.0
    end_time: float = 0.0
    writing: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        append = Journal.append

        def timed(journal: Journal, body: dict[str, object]) -> None:
            start = time.perf_counter()
            append(journal, body)
            if self.start_time and not self.end_time:
                self.writing.append(time.perf_counter() - start)

        with mock.patch.object(Journal, "append", timed):
            yield

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        if metrics.step in (self.warm_up, metrics.steps):
            synchronise(self.device)
            now = time.perf_counter()
            if metrics.step == self.warm_up:
                self.start_time = now
            else:
                self.end_time = now

    def end(self, run: Run) -> None:
        return None
