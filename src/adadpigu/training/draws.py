"""Answers a method's queries: charge, draw a Poisson batch, bound it record by record, let the mechanism release.

This is where the sensitive side of a step happens from end to end; what leaves `release` is public. A draw is processed
in micro-batches; where a GPU runs out of memory over one, the same records are processed again in smaller ones: one
draw, one charge, one noise.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from adadpigu.bounding import BoundedSum, Bounder, GradientSum, Query, RecordSum
from adadpigu.diagnostics import Diagnostics
from adadpigu.errors import AdaDPIGUError, InputError, ModelError, PrivacyLineError
from adadpigu.gradients import GradientEngine
from adadpigu.isolation import host_state, isolated
from adadpigu.mechanism import GaussianMechanism, Receipt, Recorded, Release
from adadpigu.randomness import Randomness
from adadpigu.records import (
    GradientBatch,
    PerRecordLosses,
    PerSampleGradients,
    Presence,
    Records,
    losses_of,
)
from adadpigu.sampling import Coins, Drawn, FixedBatch, PoissonSampler, Population, Recorder, gather
from adadpigu.sensitive import unseal
from adadpigu.training.memory import Auto, MemoryWarning, Rehearsal, runs_out
from adadpigu.training.view import View

_RECORDS_AT_ONCE = 4096


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

    | a GPU is out of memory | what happens |
    | --- | --- |
    | over synthetic records, before a draw of a new kind | the size is halved; nothing private was looked at |
    | over drawn records | the size is halved and the draw processed anew; its sums are those of the smaller size |
    | over one record | an error of one line |

    Formal guarantee: neither coins, charge nor noise depend on how often a draw is processed. That it was processed
    again is told (`MemoryWarning`) and takes time. Micro-batches never exceed a public size, and on a GPU that size was
    tried before; so this tells about the device, not about the draw. Without a `physical_batch_size` there is no such
    size: running out of memory then tells that a draw was large, which the guarantee does not cover.
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
        physical_batch_size: int | str | None = None,
        stability: float | None = None,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        self._population = population
        self._model = model
        self._engine = engine
        self._mechanism = mechanism
        self._randomness = randomness
        self._view = view
        self._physical = physical_batch_size
        self._rehearsal = Rehearsal(population, view)
        self._sizes: dict[object, int | None] = {}
        self._most: int | None = None
        self._seen: list[PerSampleGradients] = []
        self._stability = stability
        self._diagnostics = diagnostics
        self._failed = False
        self._planned: dict[str, tuple[PoissonSampler, float]] = {}
        self._stage, self._step = "", -1
        self._batch_size = batch_size
        self._fixed: FixedBatch | None = None
        self._pending: _Paid | None = None
        self._made: list[RecordedDraw] | None = None
        self._host_chance = False

    def begin_step(self, stage: str, step: int, planned: Mapping[str, tuple[PoissonSampler, float]]) -> None:
        """Allows the draws that the plan holds for this step, each once."""
        self._stage, self._step, self._planned = stage, step, dict(planned)

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        """One fresh Poisson batch, one event, a release a query."""
        if not queries:
            raise PrivacyLineError("a draw needs at least one query")
        queries = tuple(self._as_clipped(query) for query in queries)
        size, allowed = self._size(queries), self._most
        if self._made is not None:
            return self._record(queries, draw, size)
        paid = self._paid(queries, draw)
        self._failed = True
        sums = self._discreetly(lambda: self._sums(paid.coins, queries, size))
        self._failed = False
        if self._diagnostics is not None:
            self._diagnostics.end_draw(step=self._step, draw=draw)
        releases = self._mechanism.release(sums, paid.receipt)
        if self._most != allowed:
            _tell(self._most)
        return releases

    def fix_shape(self, recorder: Recorder) -> None:
        """From here on a draw is processed in a shape that does not depend on it, where the queries allow it."""
        if self._fixed is None and len(self._population) > 0:
            sampler, _ = next(iter(self._planned.values()))
            size = FixedBatch.size_for(self._batch_size, sampler.sample_rate)
            self._fixed = FixedBatch(size, self._view.device, recorder.apart())

    @property
    def ran_out(self) -> bool:
        """Whether a GPU has run out of memory over drawn records."""
        return self._most is not None

    @property
    def draws_on_host(self) -> bool:
        """Whether a forward has used a generator of the CPU, so that a recorded one would repeat what it gave."""
        return self._host_chance

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

    def _record(self, queries: tuple[Query, ...], draw: str, size: int | None) -> dict[str, Release]:
        """What `release` does, for the recording device: nothing is looked at, drawn or released."""
        fixed = self._fixed
        if fixed is None or self._made is None or self._made or not self._fits_shape(queries):
            raise RuntimeError("it makes more than one draw, or other sums than one of gradients")
        _, noise_multiplier = self._planned[draw]
        bounders = self._bounders(queries)
        self._process(*fixed.drawn(), queries, bounders, size)
        recorded = self._mechanism.record([bounder.result() for bounder in bounders], noise_multiplier)
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
            return _Paid(receipt, sampler.toss(self._population, self._randomness))
        return _Paid(receipt, self._fixed.toss(sampler, self._population, self._randomness))

    def _fits_shape(self, queries: tuple[Query, ...]) -> bool:
        alone = len(queries) == 1 and isinstance(queries[0], GradientSum)
        return self._fixed is not None and alone and self._diagnostics is None

    def _as_clipped(self, query: Query) -> Query:
        """The query under the run's way of clipping, whatever the method."""
        if self._stability is None or not isinstance(query, GradientSum):
            return query
        return replace(query, stability=self._stability)

    def _size(self, queries: tuple[Query, ...]) -> int | None:
        """How many records are processed at once for such queries: a public number, None for all of them."""
        kind = tuple(map(_kind, queries))
        if kind not in self._sizes:
            self._sizes[kind] = self._first_size(queries)
        return _least(self._sizes[kind], self._most)

    def _first_size(self, queries: tuple[Query, ...]) -> int | None:
        size = self._physical
        if size is None:  # a draw that needs no gradient may take every record there is
            return None if any("gradient" in query.needs for query in queries) else _RECORDS_AT_ONCE
        asked = tuple(replace(query, active=None) if isinstance(query, GradientSum) else query for query in queries)

        def work(records: Records) -> None:
            self._bound(records, asked, self._bounders(asked))

        if isinstance(size, Auto):
            return self._rehearsal.largest(work, size)
        assert isinstance(size, int)
        passing = self._rehearsal.passing(work, size) if self._view.device.type == "cuda" else size
        if passing < size:
            _tell(passing)
        return passing

    def _bounders(self, queries: tuple[Query, ...]) -> list[Bounder]:
        return [Bounder(query, self._engine.layout.size) for query in queries]

    def _sums(self, coins: Coins, queries: tuple[Query, ...], size: int | None) -> list[BoundedSum]:
        """Bounds the batch in a random stream of its own, in smaller parts until these fit."""
        drawn: Drawn
        present: Presence | None = None
        if self._fixed is not None and self._fits_shape(queries):
            drawn, present = self._fixed.drawn() if self._fixed.load() else self._fixed.several(coins)
            size = _least(size, self._fixed.size)
        else:
            if self._fixed is not None:
                self._fixed.wait()
            drawn = coins.drawn()
        with isolated(self._randomness, self._view.device):
            start = host_state()
            while True:
                bounders, self._seen = self._bounders(queries), []
                with _streams_put_back(self._view.device):
                    process = partial(self._process, drawn, present, queries, bounders, size)
                    out_of_memory = runs_out(process)
                    self._host_chance = self._host_chance or (present is not None and host_state() != start)
                if not out_of_memory:
                    break
                size = self._most = _smaller(size)
        if self._diagnostics is not None:
            for part in self._seen:
                self._diagnostics.observe(part)
        return [bounder.result() for bounder in bounders]

    def _process(
        self,
        drawn: Drawn,
        present: Presence | None,
        queries: tuple[Query, ...],
        bounders: list[Bounder],
        size: int | None,
    ) -> None:
        """Gathers and bounds a draw, so many records at a time; an empty one is one empty micro-batch."""
        positions = unseal(drawn)
        at_once = size or max(len(positions), 1)
        parts = torch.split(positions, at_once)
        here: list[Presence | None] = [None] * len(parts)
        if present is not None:
            here = [Presence(part) for part in torch.split(unseal(present), at_once)]
        for part, presence in zip(parts, here, strict=True):
            self._bound(self._view(gather(self._population, Drawn(part), presence)), queries, bounders)

    def _discreetly(self, work: Callable[[], T]) -> T:
        """Errors and warnings that arise amid private records keep their text to themselves: it may quote a record."""
        if self._diagnostics is not None:
            return work()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return work()
        except AdaDPIGUError:
            raise
        except Exception:
            withheld = ModelError(
                "an error amid private records; its message is withheld, since it may quote them; reproduce it on "
                "synthetic records, or with diagnostics on"
            )
        raise withheld  # outside the except block, so that no traceback keeps the records

    def _bound(self, records: Records, queries: tuple[Query, ...], bounders: list[Bounder]) -> None:
        """Adds one micro-batch to the sums, and notes what diagnostics will be shown of it once the draw is through."""
        if len(queries) == 1 and isinstance(queries[0], GradientSum) and self._diagnostics is None:
            bounders[0].add_clipped(self._engine.clipped_sum(records, queries[0]))
            return
        needed = frozenset[str]().union(*(query.needs for query in queries))
        gradients = self._engine.per_sample_gradients(records) if "gradient" in needed else None
        if self._diagnostics is not None and gradients is not None:
            self._seen.append(_norms_and_losses(gradients))
        losses = None
        if "loss" in needed:
            losses = self._engine.per_record_losses(records) if gradients is None else losses_of(gradients)
        for query, bounder in zip(queries, bounders, strict=True):
            if isinstance(query, GradientSum):
                assert gradients is not None
                bounder.add(gradients)
            else:
                at = self._losses_at(records, query)
                bounder.add_records(records, gradients=gradients, losses=losses, losses_at=at)

    def _losses_at(self, records: Records, query: RecordSum) -> PerRecordLosses | None:
        """[b, k] losses at the k parameter vectors that the query names."""
        if not query.losses_at:
            return None
        layout = self._engine.layout
        present = layout.read(self._model)
        columns: list[Tensor] = []
        try:
            for parameters in query.losses_at:
                layout.write(self._model, parameters)
                columns.append(unseal(self._engine.per_record_losses(records)))
        finally:
            layout.write(self._model, present)
        return PerRecordLosses(torch.stack(columns, dim=1))


def _kind(query: Query) -> object:
    """What decides about the memory that a query takes; its mask aside, for which as much is kept as without one."""
    if isinstance(query, GradientSum):
        return query.name, query.top_k < 1, query.center is None, query.scale is None
    return query.name, query.needs, len(query.losses_at)


def _least(*sizes: int | None) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _smaller(size: int | None) -> int:
    """The size after one that did not fit. It must not tell the size of the draw, so all at once becomes a constant."""
    if size == 1:
        raise InputError(
            "physical_batch_size=1: the GPU ran out of memory over one record; allowed: a smaller model, fewer copies, "
            "another engine or device"
        )
    return _RECORDS_AT_ONCE if size is None else size // 2


def _tell(size: int | None) -> None:
    warnings.warn(f"the GPU ran out of memory; physical_batch_size is {size} from here on", MemoryWarning, stacklevel=3)


def _norms_and_losses(gradients: PerSampleGradients) -> PerSampleGradients:
    """All that diagnostics look at, in few bytes: rows of one entry, the norm, kept until the draw is through."""
    batch = unseal(gradients)
    norms = torch.linalg.vector_norm(batch.gradients, dim=1, keepdim=True, dtype=torch.float64)
    return PerSampleGradients(GradientBatch(norms.cpu(), batch.losses.detach().cpu()))


@contextmanager
def _streams_put_back(device: torch.device) -> Iterator[None]:
    """Global generators are afterwards where they were, so that a second attempt at a draw sees the same numbers."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
