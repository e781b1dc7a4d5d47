"""Throughput of one model trained by several CPU processes, against one single-threaded process. Taken in turns.

python experiments/several_processes.py --processes 2 --rounds 3

MNIST-shaped random records, mnist-cnn, DP-SGD, B = 1000; every process has one thread. Prints one JSON object: medians
of milliseconds a step over the rounds, and how many times the records a second of one process. `ceiling` is what as
many processes reach that have nothing to do with each other, each with its share of the batch: what the machine has to
give. Where it does other work too, the processor's time of rank 0 says more than the clock; the load before is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

import adadpigu as ad
from adadpigu.training.distributed import joined

RECORDS, BATCH, WARM = 20_000, 1000, 5


class Stopwatch:
    """An observer that notes when each step was done."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def begin(self, facts: Any) -> None:
        return None

    def update(self, metrics: Any) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def end(self, run: Any) -> None:
        return None

    def milliseconds(self) -> list[float]:
        """A step after the first few, by the clock and by the processor."""
        steps = len(self.times) - WARM
        return [1000 * (end - start) / steps for start, end in zip(self.times[WARM - 1], self.times[-1], strict=True)]


def measure(steps: int, batch: int) -> None:
    """One process's part of one round; the first one prints milliseconds a step."""
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(RECORDS, 1, 28, 28, generator=chance)
    targets = torch.randint(10, (RECORDS,), generator=chance)
    watch = Stopwatch()
    with joined() as processes:
        model = ad.make_model("mnist-cnn", shape=(1, 28, 28), classes=10, seed=0)
        options: dict[str, Any] = {"batch_size": batch, "steps": steps + WARM, "noise_multiplier": 1.0}
        ad.train(model, (inputs, targets), records=RECORDS, method="dpsgd", observers=[watch], **options)
        if processes.rank == 0:
            print(json.dumps(watch.milliseconds()))


def started(processes: int, steps: int, batch: int = BATCH) -> subprocess.Popen[str]:
    """A job, or a process alone, of its own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    work = [__file__, "--measure", "--steps", str(steps), "--batch", str(batch)]
    return subprocess.Popen(
        [sys.executable, *(launcher if processes > 1 else []), *work],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def milliseconds(begun: subprocess.Popen[str]) -> list[float]:
    """A step's, by the clock and by the processor."""
    printed, told = begun.communicate()
    if begun.returncode:
        sys.exit(told)
    found: list[float] = json.loads(printed.splitlines()[-1])
    return found


def apart(processes: int, steps: int) -> list[float]:
    """Of processes at the same time, each alone with its share of the batch: the slowest one's."""
    begun = [started(1, steps, BATCH // processes) for _ in range(processes)]
    return max(milliseconds(each) for each in begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--measure", action="store_true", help="be one of the processes")
    parser.add_argument("--batch", type=int, default=BATCH, help="of one that measures")
    given = parser.parse_args()
    if given.measure:
        measure(given.steps, given.batch)
        return
    load = os.getloadavg()[0]
    rounds = [
        (
            milliseconds(started(1, given.steps)),
            milliseconds(started(given.processes, given.steps)),
            apart(given.processes, given.steps),
        )
        for _ in range(given.rounds)
    ]
    one, several, free = (
        [statistics.median(column) for column in zip(*times, strict=True)] for times in zip(*rounds, strict=True)
    )
    print(
        json.dumps(
            {
                "net": "mnist-cnn",
                "batch": BATCH,
                "processes": given.processes,
                "ms_one": round(one[0], 2),
                "ms_several": round(several[0], 2),
                "times_the_throughput": round(one[0] / several[0], 3),
                "ceiling": round(one[0] / free[0], 3),
                "processor_ms_one": round(one[1], 2),
                "processor_ms_several": round(several[1], 2),
                "times_by_the_processor": round(one[1] / several[1], 3),
                "rounds": given.rounds,
                "cores": os.cpu_count(),
                "load": round(load, 2),
                "torch": str(torch.__version__),
            }
        )
    )


if __name__ == "__main__":
    main()
