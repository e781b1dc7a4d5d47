"""A GPU's step, recorded once and replayed: gather, gradients, bound, noise, update and statistics as one graph.

    eager (twice, to warm up) -> record -> replay, replay, …      as long as the method says that nothing else changed

A recording runs nothing. Before every replay the step is charged and its coins are tossed, as for any other step; a
draw that does not fit the recorded shape is processed eagerly, and counts as replayed. What cannot be recorded is run
eagerly, and the run says why.
"""

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from adadpigu.core.bounding import BoundedSum, Query
from adadpigu.core.fixed_batch import FixedBatch, GraphCapture, Work
from adadpigu.core.mechanism import CapturedReleases, Release
from adadpigu.core.randomness import OnDevice, Randomness, default_generator, isolated, rekey
from adadpigu.core.sampling import Coins, Sampler
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import AdaDPIGUError, first_line
from adadpigu.methods.base import MethodState
from adadpigu.training.learned import Learned
from adadpigu.training.preparation import Preparation
from adadpigu.training.step import Draws

_WARM_STEPS = 2  # run eagerly before a step is recorded: libraries and the optimiser have then allocated what they keep
_MOST_RECORDINGS = 16  # of one run: a method whose steps keep changing gains nothing from more


class CudaGraphs:
    """Records on CUDA graphs, all in one memory pool, since no two of them run at a time.

    Graphs that may run at the same time need different generators: `other` is for those made `concurrent`. None: the
    numbers that they draw are counted by the graphs themselves.
    """

    name = "one CUDA graph a step"

    def __init__(
        self, device: torch.device, generator: torch.Generator | None, other: torch.Generator | None = None
    ) -> None:
        self._device, self._generator, self._other = device, generator, other
        self._pool: Any = torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call, unused-ignore]

    def record(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        generators = [] if self._generator is None else [self._generator]
        for generator in generators:
            graph.register_generator_state(generator)  # type: ignore[no-untyped-call, unused-ignore]
        try:
            with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[no-untyped-call, unused-ignore]
                work()
        except BaseException:
            for generator in (*generators, default_generator(self._device)):
                rekey(generator)
            raise
        return graph.replay

    def concurrent(self) -> "CudaGraphs":
        return CudaGraphs(self._device, self._other)


@dataclass(frozen=True)
class CapturedDraw:
    """A draw within a recorded step: what is paid for before each replay."""

    draw: str
    recorded: CapturedReleases
    kept: object  # vectors that the recording reads and nobody else may hold


class ReplayedDraws(Draws):
    """Draws in a shape that does not depend on them, whose computation a device records once and replays."""

    _fixed: FixedBatch | None = None
    _made: list[CapturedDraw] | None = None

    def fix_shape(self, recorder: GraphCapture) -> None:
        """From here on a draw is processed in a shape that does not depend on it, where the queries allow it."""
        if self._fixed is None and len(self._population) > 0:
            sampler, _ = next(iter(self._planned.values()))
            size = FixedBatch.size_for(self._batch_size, sampler)
            self._fixed = FixedBatch(size, self._view.device, recorder.concurrent())

    @contextmanager
    def recording(self) -> Iterator[list[CapturedDraw]]:
        """Within, the device records: `release` looks at no record, and says here what a replay will release."""
        self._made = []
        try:
            yield self._made
        finally:
            self._made = None

    def replay(self, drawn: CapturedDraw, run: Work) -> bool:
        """Pays for a recorded step, draws and runs it. False if the batch does not fit: the next `release` uses it."""
        assert self._fixed is not None
        paid = self._charge_and_sample(tuple(total.query for total in drawn.recorded.sums), drawn.draw)
        if not self._fixed.load():
            self._pending = paid
            return False
        drawn.recorded.check_receipt(paid.receipt)
        with isolated(self._randomness, self._view.device, host=self._view.device.type == "cpu"):
            self._withholding(run)
        return True

    def _answer(self, queries: tuple[Query, ...], draw: str) -> dict[str, Release]:
        if self._made is None:
            return super()._answer(queries, draw)
        # for the recording device: nothing is looked at, drawn or released
        fixed = self._fixed
        if fixed is None or self._made or not self._fits_shape(queries):
            raise RuntimeError("it makes more than one draw, or other sums than one of gradients")
        size, (_, noise_multiplier) = self.micro_batches.size(queries), self._planned[draw]
        sums = self.micro_batches.recorded_sums(*fixed.drawn(), queries, min(size, fixed.size))
        recorded = self._mechanism.record(sums, noise_multiplier)
        self._made.append(CapturedDraw(draw, recorded, self._engine.replay_memory()))
        return recorded.releases

    def _toss(self, sampler: Sampler) -> Coins:
        if self._fixed is None:
            return super()._toss(sampler)
        return self._fixed.toss(sampler, self._population, self._randomness)

    def _sums(self, coins: Coins, queries: tuple[Query, ...], size: int) -> list[BoundedSum]:
        fixed = self._fixed
        if fixed is not None and self._fits_shape(queries):
            drawn, present = fixed.drawn() if fixed.load() else fixed.several(coins)
            return self.micro_batches.sums(drawn, present, queries, min(size, fixed.size))
        if fixed is not None:
            fixed.wait()
        return super()._sums(coins, queries, size)

    def _fits_shape(self, queries: tuple[Query, ...]) -> bool:
        return self._fixed is not None and self.micro_batches.clipped_by_engine(queries)


class CapturedSteps:
    """Takes the steps of a run, replaying those that were recorded."""

    def __init__(self, draws: ReplayedDraws, recorder: GraphCapture) -> None:
        self._draws = draws
        self._recorder: GraphCapture | None = recorder
        self._reason = ""
        self._seen: dict[Hashable, int] = {}
        self._recordings: dict[Hashable, tuple[Work, CapturedDraw]] = {}
        self._replayed = self._taken = 0
        draws.micro_batches.relief = self._free

    @property
    def description(self) -> str:
        """How the steps so far were run, in words."""
        why = f": {self._reason}" if self._reason else ""
        if self._recorder is None or not self._replayed:
            return f"eager{why}"
        eager = self._taken - self._replayed
        recorded = f"{self._recorder.name}, {self._replayed} of {self._taken} steps"
        return f"{recorded}; {eager} eager{why}" if eager else recorded

    def take(self, key: Hashable | None, step: Work) -> None:
        """One step; `key` says what it depends on besides tensors in their place, None that it must run as it is."""
        self._taken += 1
        if self._recorder is None or key is None:
            self._reason = self._reason or "the method changes its steps in Python"
            step()
        elif key in self._recordings:
            self._replay(key, step)
        elif self._seen.get(key, 0) < _WARM_STEPS or len(self._recordings) >= _MOST_RECORDINGS:
            self._seen[key] = self._seen.get(key, 0) + 1
            self._draws.fix_shape(self._recorder)
            step()
            if self._draws.micro_batches.draws_on_host:
                self._give_up("the model draws from a generator of the CPU")
        else:
            self._record(key, step)

    def _replay(self, key: Hashable, step: Work) -> None:
        replay, drawn = self._recordings[key]
        self._replayed += 1  # whether the draw fits or not: how many do is not public
        if not self._draws.replay(drawn, replay):
            step()  # drawn and paid for, but too many records for the recorded shape

    def _record(self, key: Hashable, step: Work) -> None:
        assert self._recorder is not None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with self._draws.recording() as made:
                    replay = self._recorder.record(step)
            (drawn,) = made
        except AdaDPIGUError:
            raise
        except Exception as error:  # whatever a model does that a device cannot record
            cause = error.__context__ or error  # the end of a failed capture raises an error of its own
            self._give_up(f"the step cannot be recorded ({first_line(cause)})")
            step()
            return
        self._recordings[key] = replay, drawn
        self._replay(key, step)

    def _free(self) -> bool:
        """A step that runs out of memory gets that of the recorded ones, which is as much as it needs."""
        held = bool(self._recordings)
        if held:
            self._give_up("the GPU has too little memory for recorded steps beside it")
        return held

    def _give_up(self, reason: str) -> None:
        self._recorder, self._reason = None, reason
        self._recordings.clear()


def choose_recorder(
    prepared: Preparation,
    learned: Learned,
    randomness: Randomness,
    *,
    exposed: bool,
    several: bool,
    recorder: GraphCapture | None = None,
) -> tuple[GraphCapture | None, str]:
    """What records the steps of a run, or None and why none does; `exposed`: something looks at every sum."""
    options, train = prepared.options, prepared.data.train
    if several:
        return None, "several processes add up their sums at every step"
    if recorder is None and prepared.device.type != "cuda":
        return None, "CUDA graphs need a GPU"
    if options.execution == "eager":
        return None, "execution='eager' was asked for"
    if exposed:
        return None, "diagnostics or an audit of sums look at every step"
    if options.perturbation:
        return None, f"perturbation={options.perturbation:g} needs gradients and coins of single records"
    if not isinstance(randomness, OnDevice):
        return None, "noise is drawn on the CPU"
    if not isinstance(train, TensorRecords) or train.device.type != prepared.device.type:
        return None, "records do not lie on the GPU"
    if type(learned.method_state).accept is not MethodState.accept:
        return None, f"{prepared.method.name} decides about each step after it"
    if not learned.optimiser.keep_lr_on_device() and (options.lr_schedule, options.warmup) != ("constant", 0):
        return None, "this optimiser takes a changing learning rate from the CPU"
    return recorder or CudaGraphs(prepared.device, randomness.noise, randomness.coins), ""
