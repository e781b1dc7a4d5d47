"""What a basis of public gradients costs: step time and memory of the projection family beside DP-SGD's.

A step is timed with its basis made; making it is timed apart, and spread over the steps of an epoch, once in which it
is made anew. Memory is what a step takes at its highest above net, data and the stored basis.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from statistics import median

from adadpigu.methods import make_method
from adadpigu.training import Facts, Metrics, Preparation, Run, train_prepared
from adadpigu_bench.contestants import CLIP_NORM, Task, Unavailable, synchronise
from adadpigu_bench.ours import prepared
from adadpigu_bench.processes import Tell, forget_peak, memory_meter

FAMILY = ("projected-dpsgd", "pcdp-sgd", "gep")
EPOCH = 50_000
"""records of an epoch, as CIFAR-10 has"""
TIMES, MEMORY = 1.5, 1.2
"""what a step of the family may take, in DP-SGD's"""
_WARM_UP, _BLOCK = {"cpu": 2, "cuda": 20}, {"cpu": 1, "cuda": 10}
_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ProjectionCost:
    """One method; of DP-SGD, basis and ratios are 0 and 1."""

    net: str
    batch: int
    method: str
    rank: int
    ms: float
    """a step with its basis made, median over rounds"""
    ms_basis: float
    """making it"""
    ms_amortised: float
    """a step and its part of a basis that is made once an epoch"""
    times: float
    """the last in DP-SGD's steps"""
    peak_mib: float
    """of steps, without the stored basis"""
    peak_times: float
    basis_mib: float
    """as it is stored"""
    peak_mib_basis: float
    """while it is made, stored one included"""

    @property
    def within(self) -> bool:
        return self.times <= TIMES and self.peak_times <= MEMORY

    def to_json(self) -> dict[str, object]:
        """As one JSON object."""
        limits = {"times_limit": TIMES, "peak_times_limit": MEMORY, "epoch": EPOCH}
        return {**asdict(self), "within": self.within, **limits}


def measure_projection(
    *, net: str, batch: int, rank: int, rounds: int, device: str, tell: Tell
) -> list[ProjectionCost]:
    """DP-SGD first, then the family, one after the other in this process."""
    kind = "cuda" if device.startswith("cuda") else "cpu"
    task = Task(net=net, batch=batch, device=device, steps=_WARM_UP[kind] + rounds * _BLOCK[kind])
    found = [_measured(task, "dpsgd", 0, kind, tell)]
    for method in FAMILY:
        one = _measured(task, method, rank, kind, tell)
        peak_times = one.peak_mib / max(found[0].peak_mib, 1e-9)
        found.append(replace(one, times=one.ms_amortised / found[0].ms, peak_times=peak_times))
    return found


def _measured(task: Task, name: str, rank: int, kind: str, tell: Tell) -> ProjectionCost:
    """On random records; the basis in bf16 on a GPU, where it is large and products in bf16 are fast."""
    options: dict[str, object] = {"clip_norm": CLIP_NORM}
    if rank:
        options |= {"rank": rank, "basis": "power", "basis_every": 10**9}
        options |= {"basis_precision": "bf16"} if kind == "cuda" else {}
    tell(f"building {name}")
    run = prepared(task, make_method(name, options), "auto", public=f"processes:{2 * rank}" if rank else None)
    ms_basis, basis, peak_basis = _basis(run, task.device, tell) if rank else (0.0, 0.0, 0.0)
    clock = _Clock(task.device, warm_up=_WARM_UP[kind], block=_BLOCK[kind])
    tell(f"steps of {name}")
    train_prepared(run, observers=[clock])
    ms = median(clock.ms)
    return ProjectionCost(
        net=task.net,
        batch=task.batch,
        method=name,
        rank=rank,
        ms=ms,
        ms_basis=ms_basis,
        ms_amortised=ms + ms_basis * task.batch / EPOCH,
        times=1.0,
        peak_mib=clock.peak_mib - basis,
        peak_times=1.0,
        basis_mib=basis,
        peak_mib_basis=peak_basis,
    )


def _basis(run: Preparation, device: str, tell: Tell) -> tuple[float, float, float]:
    """Milliseconds, stored MiB and peak MiB of a basis, made twice: the first one loads kernels."""
    state = run.method.begin(run.run_context())
    seconds, peak = [], 0.0
    for _ in range(2):
        tell(f"a basis of {run.method.name}")
        _forget(state)
        growth = memory_meter(device)
        start = time.perf_counter()
        state.begin_step(run.stages[0], 0, run.engine.layout.read(run.model))
        synchronise(device)
        seconds.append(time.perf_counter() - start)
        peak = growth() / _MIB
        stored = state.basis.bytes / _MIB  # type: ignore[attr-defined]
    del state
    gc.collect()
    return 1000 * seconds[-1], stored, peak


def _forget(state: object) -> None:
    """A basis that is due again."""
    state.basis, state._count = None, 0  # type: ignore[attr-defined]
    gc.collect()


@dataclass
class _Clock:
    """The observer that times blocks of steps after the first ones, and sees how far memory rises over them."""

    device: str
    warm_up: int
    block: int
    ms: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    _growth: Callable[[], float] | None = None
    _start: float = 0.0

    def begin(self, facts: Facts) -> None:
        self._growth = memory_meter(self.device)

    def update(self, metrics: Metrics) -> None:
        done = metrics.step - self.warm_up
        if done < 0 or done % self.block:
            return
        synchronise(self.device)
        now = time.perf_counter()
        if done == 0:
            forget_peak(self.device)
        else:
            self.ms.append(1000 * (now - self._start) / self.block)
            assert self._growth is not None
            self.peak_mib = max(self.peak_mib, self._growth() / _MIB)
        self._start = time.perf_counter()

    def end(self, run: Run) -> None:
        if not self.ms:
            raise Unavailable("no block of steps came through")
