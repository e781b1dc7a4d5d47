"""Each contestant in a process of its own, which stands still until steps are ordered through a pipe.

So each trains in a main thread, as users do, with an allocator of its own; one that runs out of memory takes nobody
along; and the process's resident memory, less what stood there before its first step, is the contestant's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
import multiprocessing
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from adadpigu_bench.contestants import Contestant, Task, Unavailable, one_line, synchronise
from adadpigu_bench.torch_peers import nonprivate

_MIB = 2**20
_LOADED = [
    "adadpigu_bench.ours",
    "adadpigu_bench.processes",
    "dp_accounting.pld.privacy_loss_distribution",
    "torch._dynamo",
    "opacus.grad_sample.utils",
]
"""what is slow to import and starts no thread; what is not installed is passed over"""


@dataclass(frozen=True, kw_only=True)
class Lap:
    """The answer to an order."""

    seconds: float
    peak_mib: float | None
    """memory at its highest above what was taken before; of the first order only, and where it can be told"""


class Stand:
    """A contestant at its stand, seen from outside."""

    def __init__(self, contestant: Contestant, task: Task) -> None:
        """Starts the process; it builds by itself while others are started."""
        context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":  # forked from one that has loaded everything and computed nothing
            context.set_forkserver_preload(_LOADED)
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, contestant, task, torch.get_num_threads()), daemon=True
        )
        self._process.start()
        other.close()

    def wait_until_built(self) -> None:
        """`Unavailable` where it cannot be built."""
        self._answer()

    def run(self, steps: int) -> Lap:
        """Orders so many steps; `Unavailable` where they fail."""
        try:
            self._pipe.send(steps)
        except OSError:
            raise Unavailable("its process is gone") from None
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()  # a run of ours would take SIGTERM as a wish to end after a step that is never ordered
        self._process.join()
        self._pipe.close()

    def _answer(self) -> Lap:
        try:
            answer: Lap | str = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise Unavailable(f"its process ended (code {self._process.exitcode}); too little memory?") from None
        if isinstance(answer, str):
            raise Unavailable(answer)
        return answer


class _Piped:
    """The orders that come through the pipe; memory is watched over the first, which makes all that is kept."""

    def __init__(self, pipe: Connection, device: str, counted: bool) -> None:
        self._pipe = pipe
        self._meter: Callable[[], Callable[[], float]] | None = None
        self._growth: Callable[[], float] | None = None
        if counted:
            self._meter = functools.partial(memory_meter, device)

    def wanted(self) -> int:
        steps: int = self._pipe.recv()
        self._growth = None if self._meter is None else self._meter()
        self._meter = None
        return steps

    def taken(self, seconds: float) -> None:
        self._pipe.send(Lap(seconds=seconds, peak_mib=None if self._growth is None else self._growth() / _MIB))


def _serve(pipe: Connection, contestant: Contestant, task: Task, threads: int) -> None:
    """The process: builds, says so, and trains as ordered; an error is told in one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asked will end this process
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # all contestants build at the same time
    try:
        trainer = contestant.build(task)
        torch.set_num_threads(threads)
        _load_kernels(task)
        pipe.send(Lap(seconds=0.0, peak_mib=None))
        counted = contestant.peer != "jax" or task.device == "cpu"  # torch does not see JAX's memory on a GPU
        trainer(_Piped(pipe, task.device, counted))
    except Unavailable as refusal:
        pipe.send(str(refusal))
    except EOFError:
        return
    except Exception as error:
        pipe.send(one_line(error))


def _load_kernels(task: Task) -> None:
    """A few records through plain training, so that code is loaded before memory is first read."""

    class Once:
        left = 1

        def wanted(self) -> int:
            self.left -= 1
            return self.left + 1

        def taken(self, seconds: float) -> None:
            return None

    few = Task(net=task.net, batch=min(2, task.batch), device=task.device, steps=1)
    nonprivate(few, Contestant(method="sgd", engine=None, peer=None))(Once())


def memory_meter(device: str) -> Callable[[], float]:
    """Starts watching memory; what is returned tells by how many bytes it grew at its highest."""
    return _cuda_meter(device) if device.startswith("cuda") else _resident_meter()


def forget_peak(device: str) -> None:
    """What is highest counts from here on, above what a meter has started from."""
    if device.startswith("cuda"):
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(torch.device(device))
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _cuda_meter(device: str) -> Callable[[], float]:
    synchronise(device)
    place = torch.device(device)
    torch.cuda.reset_peak_memory_stats(place)
    before = torch.cuda.memory_allocated(place)
    return lambda: float(torch.cuda.max_memory_allocated(place) - before)


def _resident_meter() -> Callable[[], float]:
    """The same for this process's resident memory; what earlier work has left unused is handed back first."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
        before = _status("VmRSS")
    except OSError:
        before = _highest()
    return lambda: max(0.0, _highest() - before)


def _highest() -> float:
    try:
        return _status("VmHWM")  # where there is this, not ru_maxrss, which starts at the parent's
    except OSError:
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return float(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


LEAST_ROUNDS = 3
Tell = Callable[[str], None]
"""told what is going on"""


class Runner(Protocol):
    """Whoever takes steps when told to."""

    def run(self, steps: int) -> Lap: ...


def steps_for(seconds_a_step: float, *, wanted: float = 0.15, most: int = 100) -> int:
    """So many steps that the baseline's part of a round takes about the wanted seconds.

    >>> steps_for(0.075), steps_for(10.0), steps_for(0.0005)
    (2, 1, 100)
    """
    return min(most, max(1, round(wanted / max(seconds_a_step, 1e-9))))


def interleaved(
    runners: Mapping[Contestant, Runner], tell: Tell, *, rounds: int, steps: int, seconds: float = math.inf
) -> tuple[dict[Contestant, list[float]], dict[Contestant, str]]:
    """Milliseconds a step of each contestant in each round; a contestant that fails drops out, with the reason.

    After so many seconds no further round begins, once there are three.
    """
    found: dict[Contestant, list[float]] = {contestant: [] for contestant in runners}
    failed: dict[Contestant, str] = {}
    names = list(runners)
    start = time.monotonic()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.monotonic() - start > seconds:
            break
        shift = number % len(names)
        for contestant in names[shift:] + names[:shift]:
            if contestant in failed:
                continue
            tell(f"round {number + 1} of {rounds}: {contestant.label}")
            try:
                found[contestant].append(1000 * runners[contestant].run(steps).seconds / steps)
            except Unavailable as refusal:
                failed[contestant] = str(refusal)
                found.pop(contestant)
    return found, failed
