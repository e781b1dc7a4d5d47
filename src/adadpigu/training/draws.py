"""Answers a method's queries: charge, draw a Poisson batch, bound it record by record, let the mechanism release.

This is where the sensitive side of a step happens from end to end; what leaves `release` is public. One draw, one
charge, one noise, however often its micro-batches are processed.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import nn

from adadpigu.bounding import BoundedSum, GradientSum, Query
from adadpigu.diagnostics import Diagnostics
from adadpigu.distributed.processes import Alone, Processes
from adadpigu.errors import AdaDPIGUError, ModelError, PrivacyLineError
from adadpigu.gradients import GradientEngine
from adadpigu.isolation import isolated
from adadpigu.mechanism import GaussianMechanism, Receipt, Recorded, Release
from adadpigu.randomness import Randomness
from adadpigu.recorder import Recorder
from adadpigu.records import Records
from adadpigu.sampling import Coins, FixedBatch, PoissonSampler, Population, gather
from adadpigu.training.memory import Auto
from adadpigu.training.micro_batches import MicroBatches
from adadpigu.training.view import View

T = TypeVar("T")


@dataclass(frozen=True)
class RecordedDraw:
    """A draw within a recorded step: what is paid for before each replay."""

    draw: str
    recorded: Recorded
    kept: object
    """vectors that the recording reads and nobody else may hold"""


@dataclass(frozen=True)
class _Paid:
    """A draw that was charged and tossed, and not yet looked at."""

    receipt: Receipt
    coins: Coins


class Draws:
    """The batches of one run (the `Batches` a method is given).

    Formal guarantee: neither coins, charge nor noise depend on how often a draw is processed (see `MicroBatches`).
    """

    def __init__(
        self,
        *,
        population: Population,
        model: nn.Module,
        engine: GradientEngine,
        mechanism: GaussianMechanism,
        randomness: Randomness,
        view: View,
        batch_size: float,
        at_once: int | Auto | None = None,
        stability: float | None = None,
        diagnostics: Diagnostics | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._processes: Processes = Alone() if processes is None else processes
        self._population = population
        self._engine = engine
        self._mechanism = mechanism
        self._randomness = randomness
        self._view = view
        self._micro_batches = MicroBatches(
            population=population,
            model=model,
            engine=engine,
            randomness=randomness,
            view=view,
            at_once=at_once,
            expected=batch_size,
            diagnostics=diagnostics,
            processes=processes,
        )
        self._stability = stability
        self._diagnostics = diagnostics
        self._failed = False
        self._planned: dict[str, tuple[PoissonSampler, float]] = {}
        self._stage, self._step = "", -1
        self._batch_size = batch_size
        self._fixed: FixedBatch | None = None
        self._pending: _Paid | None = None
        self._made: list[RecordedDraw] | None = None

    def process_at_once(self, records: int) -> None:
        """Bounds so many records at a time."""
        self._micro_batches.process_at_once(records)

    def begin_step(self, stage: str, step: int, planned: Mapping[str, tuple[PoissonSampler, float]]) -> None:
        """Allows the draws that the plan holds for this step, each once."""
        self._stage, self._step, self._planned = stage, step, dict(planned)
        self._pending = None

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        """One fresh Poisson batch, one event, a release a query."""
        if not queries:
            raise PrivacyLineError("a draw needs at least one query")
        queries = tuple(self._as_clipped(query) for query in queries)
        size = self._micro_batches.size(queries)
        if self._made is not None:
            return self._record(queries, draw, size)
        paid = self._paid(queries, draw)
        self._failed = True
        sums = self._discreetly(lambda: self._sums(paid.coins, queries, size))
        self._failed = False
        if self._diagnostics is not None:
            self._diagnostics.end_draw(step=self._step, draw=draw)
        releases = self._mechanism.release(sums, paid.receipt)
        self._micro_batches.tell()
        return releases

    def ahead(self, *queries: Query, draw: str = "gradient") -> Records:
        """Charges for a draw and makes it before the method asks for it: for a script that is shown its records.

        The next `release` answers with it.
        """
        self._pending = self._pay(tuple(self._as_clipped(query) for query in queries), draw)
        return gather(self._population, self._pending.coins.drawn())

    def fix_shape(self, recorder: Recorder) -> None:
        """From here on a draw is processed in a shape that does not depend on it, where the queries allow it."""
        if self._fixed is None and len(self._population) > 0:
            sampler, _ = next(iter(self._planned.values()))
            size = FixedBatch.size_for(self._batch_size, sampler.sample_rate)
            self._fixed = FixedBatch(size, self._view.device, recorder.apart())

    def relieve_with(self, relief: Callable[[], bool]) -> None:
        """What is called first where a GPU runs out of memory: it frees what it can, and says whether it has."""
        self._micro_batches.relief = relief

    @property
    def ran_out(self) -> bool:
        """Whether a GPU has run out of memory over drawn records."""
        return self._micro_batches.ran_out

    @property
    def draws_on_host(self) -> bool:
        """Whether a forward has used a generator of the CPU, so that a recorded one would repeat what it gave."""
        return self._micro_batches.draws_on_host

    @contextmanager
    def recording(self) -> Iterator[list[RecordedDraw]]:
        """Within, the device records: `release` looks at no record, and says here what a replay will release."""
        self._made = []
        try:
            yield self._made
        finally:
            self._made = None

    def replay(self, drawn: RecordedDraw, run: Callable[[], None]) -> bool:
        """Pays for a step that was recorded, draws its batch and runs it; False where the batch does not fit.

        What was paid and drawn is then what the next `release` answers with.
        """
        assert self._fixed is not None
        paid = self._paid(tuple(total.query for total in drawn.recorded.sums), drawn.draw)
        if not self._fixed.load():
            self._pending = paid
            return False
        drawn.recorded.pay(paid.receipt)
        self._failed = True
        with isolated(self._randomness, self._view.device, host=self._view.device.type == "cpu"):
            self._discreetly(run)
        self._failed = False
        return True

    def _record(self, queries: tuple[Query, ...], draw: str, size: int) -> dict[str, Release]:
        """What `release` does, for the recording device: nothing is looked at, drawn or released."""
        fixed = self._fixed
        if fixed is None or self._made is None or self._made or not self._fits_shape(queries):
            raise RuntimeError("it makes more than one draw, or other sums than one of gradients")
        _, noise_multiplier = self._planned[draw]
        sums = self._micro_batches.recorded_sums(*fixed.drawn(), queries, min(size, fixed.size))
        recorded = self._mechanism.record(sums, noise_multiplier)
        self._made.append(RecordedDraw(draw, recorded, self._engine.keepsake()))
        return recorded.releases

    def _paid(self, queries: tuple[Query, ...], draw: str) -> _Paid:
        """The draw that was paid for already, or a new one."""
        paid, self._pending = self._pending, None
        return self._pay(queries, draw) if paid is None else paid

    def _pay(self, queries: tuple[Query, ...], draw: str) -> _Paid:
        """Charges for a draw, then tosses its coins."""
        if draw not in self._planned:
            raise PrivacyLineError(
                f"step {self._step} of stage {self._stage!r} has no draw {draw!r} left (left: {sorted(self._planned)})"
            )
        if self._failed:
            raise PrivacyLineError("an earlier draw of this run failed amid private records: nothing more is released")
        sampler, noise_multiplier = self._planned.pop(draw)
        receipt = self._mechanism.charge(
            queries,
            source=sampler,
            noise_multiplier=noise_multiplier,
            size=self._engine.layout.size,
            stage=self._stage,
            step=self._step,
            draw=draw,
        )
        if self._fixed is None:
            coins = self._processes.coins(self._randomness, sampler.sample_rate)
            return _Paid(receipt, sampler.toss(self._population, coins))
        return _Paid(receipt, self._fixed.toss(sampler, self._population, self._randomness))

    def _fits_shape(self, queries: tuple[Query, ...]) -> bool:
        return self._fixed is not None and self._micro_batches.clipped_by_engine(queries)

    def _sums(self, coins: Coins, queries: tuple[Query, ...], size: int) -> list[BoundedSum]:
        fixed = self._fixed
        if fixed is not None and self._fits_shape(queries):
            drawn, present = fixed.drawn() if fixed.load() else fixed.several(coins)
            return self._micro_batches.sums(drawn, present, queries, min(size, fixed.size))
        if fixed is not None:
            fixed.wait()
        return self._micro_batches.sums(coins.drawn(), None, queries, size)

    def _as_clipped(self, query: Query) -> Query:
        """The query under the run's way of clipping, whatever the method."""
        if self._stability is None or not isinstance(query, GradientSum):
            return query
        return replace(query, stability=self._stability)

    def _discreetly(self, work: Callable[[], T]) -> T:
        """Errors and warnings that arise amid private records keep their text to themselves: it may quote a record."""
        if self._diagnostics is not None:
            return work()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return work()
        except Exception as error:
            if isinstance(error, AdaDPIGUError) and _is_ours(error):
                raise
            withheld = ModelError(
                "an error amid private records; its message is withheld, since it may quote them; reproduce it on "
                "synthetic records, or with diagnostics on"
            )
        raise withheld  # outside the except block, so that no traceback keeps the records


def _is_ours(error: Exception) -> bool:
    """Whether the package itself raised an error: its messages hold nothing private, whatever class others borrow."""
    places = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(places[-1]).split(".")[0] == "adadpigu"
