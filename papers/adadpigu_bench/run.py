"""One call of the bench: for each net and batch size, every contestant is built, warmed up, timed and reported."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Self

import torch

from adadpigu.core.gradients import ENGINES
from adadpigu.errors import require, unknown
from adadpigu.training import TrainingOptions
from adadpigu_bench.contestants import BASELINE, METHODS, PEERS, Contestant, Task, Unavailable, contestants
from adadpigu_bench.nets import NETS, find_net, size
from adadpigu_bench.processes import Stand, Tell, interleaved, steps_for
from adadpigu_bench.report import Absence, Report, Row, device_name, load, versions

SUITES: dict[str, tuple[str, ...]] = {
    "quick": ("mnist-cnn",),
    "paper": ("mnist-cnn", "mnist-cnn-padded", "cifar-small", "cifar-big"),
    "all": tuple(NETS),
}
_QUICK_SECONDS = 35.0
"""from the first process on, after which the quick suite begins no further round"""

_SIDE_BY_SIDE = 1_000_000
"""parameters above which contestants are built one at a time: checking a model takes memory of its own"""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What is timed, and how long."""

    suite: str = "quick"
    nets: tuple[str, ...] = ()
    """instead of the suite's"""
    batches: tuple[int, ...] = ()
    """B; without any, each net's own"""
    methods: tuple[str, ...] = ("dpsgd", "adadpigu")
    engines: tuple[str, ...] = ("ghost", "materialised", "functional")
    peers: tuple[str, ...] = PEERS
    rounds: int = 5
    steps: int | None = None
    """of each contestant in a round; None: as many as take the baseline about 0.15 s"""
    device: str = "auto"
    memory: bool = True

    def __post_init__(self) -> None:
        for kind, given, known in (
            ("suite", (self.suite,), SUITES),
            ("net", self.nets, NETS),
            ("method", self.methods, METHODS),
            ("engine", self.engines, ENGINES),
            ("peer", self.peers, PEERS),
        ):
            for name in given:
                if name not in known:
                    raise unknown(kind, name, known)
        for key, number in (*(("batch", b) for b in self.batches), ("rounds", self.rounds), ("steps", self.steps or 1)):
            require(number >= 1, f"{key}={number} is not at least 1")

    def place(self) -> str:
        """The device, checked to be there."""
        return str(TrainingOptions(steps=1, device=self.device).torch_device())

    def tasks(self) -> list[tuple[str, int]]:
        """Every net with every batch size."""
        nets, device = self.nets or SUITES[self.suite], self.place()
        return [(net, batch) for net in nets for batch in self.batches or (find_net(net).batch(device),)]

    @property
    def seconds(self) -> float:
        """After which no further round begins."""
        return _QUICK_SECONDS if self.suite == "quick" and not self.nets else math.inf


def run_bench(options: BenchOptions, tell: Tell = lambda _: None) -> Report:
    """Times everything that the options ask for; `tell` is kept informed."""
    device, busy = options.place(), load()
    if busy > 0.5:
        tell(f"load average {busy:.2f}: other work is running here, and figures will swing")
    rows: list[Row] = []
    absent: list[Absence] = []
    rounds = 0
    for net, batch in options.tasks():
        comparison = Comparison(Task(net=net, batch=batch, device=device, steps=1), options, tell)
        with comparison:
            comparison.run()
        rows += comparison.rows()
        absent += comparison.absences()
        rounds = comparison.rounds
    return Report(
        rows=tuple(rows),
        unavailable=tuple(absent),
        versions=versions(),
        device=device_name(device),
        threads=torch.get_num_threads(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rounds=rounds,
        load=busy,
    )


class Comparison:
    """All contestants on one net and batch size; their processes end with it."""

    def __init__(self, task: Task, options: BenchOptions, tell: Tell) -> None:
        self._task, self._options = task, options
        self._tell: Tell = lambda text: tell(f"{task.net} B={task.batch}: {text}")
        self._warm_up = 20 if task.device.startswith("cuda") else 2
        self._entered = contestants(options.methods, options.engines, options.peers, task.device)
        self._stands: dict[Contestant, Stand] = {}
        self._peaks: dict[Contestant, float | None] = {}
        self._absent: dict[Contestant, str] = {}
        self._times: dict[Contestant, list[float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for contestant in list(self._stands):
            self._stands.pop(contestant).close()

    def run(self) -> None:
        """Builds, warms up and times; the baseline first, whose time says how many steps make a round."""
        options, start = self._options, time.monotonic()
        self._build([BASELINE])
        why = self._absent.get(BASELINE)
        require(why is None, f"net={self._task.net!r}, batch={self._task.batch}: {why}")
        steps = options.steps or steps_for(self._stands[BASELINE].run(1).seconds)
        self._task = replace(self._task, steps=self._warm_up + options.rounds * steps)
        self._build(self._entered[1:])
        left = options.seconds - (time.monotonic() - start)
        self._times, failed = interleaved(self._stands, self._tell, rounds=options.rounds, steps=steps, seconds=left)
        self._absent |= failed

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return len(self._times[BASELINE])

    def rows(self) -> list[Row]:
        """A row for each contestant that came through."""
        baseline = median(self._times[BASELINE])
        return [
            Row(
                net=self._task.net,
                batch=self._task.batch,
                method=contestant.method,
                engine=contestant.engine,
                peer=contestant.peer,
                ms=median(times),
                ratio_to_nonprivate=median(times) / baseline,
                peak_mib=self._peaks[contestant],
            )
            for contestant, times in self._times.items()
        ]

    def absences(self) -> list[Absence]:
        """What is missing, in the order of the contestants."""
        missing = [contestant for contestant in self._entered if contestant in self._absent]
        return [Absence(peer=c.label, net=self._task.net, reason=self._absent[c]) for c in missing]

    def _build(self, entered: Sequence[Contestant]) -> None:
        """Starts processes, which build side by side unless the net is large; then each takes its first steps alone."""
        large = size(self._task.card.model()) > _SIDE_BY_SIDE
        for group in [[contestant] for contestant in entered] if large else [entered]:
            self._build_together(group)

    def _build_together(self, entered: Sequence[Contestant]) -> None:
        for contestant in entered:
            self._stands[contestant] = Stand(contestant, self._task)
        for act, doing in ((self._built, "building"), (self._warmed, "first steps of")):
            for contestant in [c for c in entered if c in self._stands]:
                self._tell(f"{doing} {contestant.label}")
                try:
                    act(contestant)
                except Unavailable as refusal:
                    self._absent[contestant] = str(refusal)
                    self._stands.pop(contestant).close()

    def _built(self, contestant: Contestant) -> None:
        self._stands[contestant].wait_until_built()

    def _warmed(self, contestant: Contestant) -> None:
        """Warm-up; its memory is the contestant's, since graphs are captured and buffers made in it."""
        peak = self._stands[contestant].run(self._warm_up).peak_mib
        self._peaks[contestant] = peak if self._options.memory else None
