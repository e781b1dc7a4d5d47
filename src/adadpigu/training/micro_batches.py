"""A draw -> bounded sums, in micro-batches of a public size. Before the noise: sensitive in, sensitive out.

Where a GPU runs out of memory over a micro-batch, the same records are processed again in smaller ones. What a draw
costs, which records it took and what noise it gets is decided elsewhere, before and after.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.bounding import BoundedSum, Bounder, GradientSum, Query, RecordSum
from adadpigu.diagnostics import Diagnostics
from adadpigu.distributed.processes import Alone, Processes
from adadpigu.errors import InputError
from adadpigu.gradients import GradientEngine
from adadpigu.gradients.slicing import BLOCK, computes_rows_alike, rounded
from adadpigu.isolation import host_state, isolated
from adadpigu.randomness import Randomness
from adadpigu.records import (
    GradientBatch,
    PerRecordLosses,
    PerSampleGradients,
    Presence,
    Records,
    losses_of,
    padded,
)
from adadpigu.sampling import Drawn, Population, gather
from adadpigu.sensitive import unseal
from adadpigu.training.memory import Auto, MemoryWarning, Rehearsal, runs_out
from adadpigu.training.view import View

_PLACED = 2 * BLOCK
"""rows at most of a micro-batch in which each record has its own place: of more, most would stay empty"""


class MicroBatches:
    """Bounds the draws of one run, so many records at a time.

    | a GPU is out of memory | what happens |
    | --- | --- |
    | over synthetic records, before a draw of a new kind | the size is halved; nothing private was looked at |
    | over drawn records, beside recorded steps | these are given up, and the draw is processed anew |
    | over drawn records | the size is halved and the draw processed anew; its sums are those of the smaller size |
    | over one record | an error of one line |

    That a draw was processed again is told (`MemoryWarning`) and takes time. Micro-batches have a public size; so this
    tells about the device, not about the draw.

    Formal guarantee: all micro-batches of a draw have one shape, that does not depend on the draw, or shapes in which
    each row is computed alike (`rows_alike`). Where a CPU was not seen to compute rows alike at any place, a record's
    place is its position in the population modulo the size, which no draw changes. Rows without a record are absent
    and add zero, whatever they hold. So what a record adds depends on no other record, bit for bit; sums are float64,
    and one record moves them by at most C, up to n·2⁻⁵² of it.
    """

    def __init__(
        self,
        *,
        population: Population,
        model: nn.Module,
        engine: GradientEngine,
        randomness: Randomness,
        view: View,
        at_once: int | Auto | None,
        expected: float,
        diagnostics: Diagnostics | None,
        processes: Processes | None = None,
    ) -> None:
        self._processes: Processes = Alone() if processes is None else processes
        self._population = population
        self._model = model
        self._engine = engine
        self._randomness = randomness
        self._view = view
        self._at_once = at_once
        self._expected = expected / self._processes.size
        self._rehearsal = Rehearsal(population, view)
        self._sizes: dict[object, int] = {}
        self._most: int | None = None
        self._told: int | None = None
        self._seen: list[PerSampleGradients] = []
        self._diagnostics = diagnostics
        self._host_chance = False
        self._relieved = False
        self.relief: Callable[[], bool] = lambda: False
        """frees memory that can be done without, and says whether there was any"""

    @property
    def ran_out(self) -> bool:
        """Whether a GPU has run out of memory over drawn records."""
        return self._most is not None or self._relieved

    @property
    def draws_on_host(self) -> bool:
        """Whether the forward of a draw of fixed shape has used a generator of the CPU."""
        return self._host_chance

    def tell(self) -> None:
        """Warns where a GPU has run out of memory over drawn records since this was called last."""
        if self._most != self._told:
            self._told = self._most
            _tell(self._most)

    def clipped_by_engine(self, queries: tuple[Query, ...]) -> bool:
        """Whether nobody but the engine looks at single records: for one sum of gradients, without diagnostics."""
        return len(queries) == 1 and isinstance(queries[0], GradientSum) and self._diagnostics is None

    def size(self, queries: tuple[Query, ...]) -> int:
        """How many rows each micro-batch has for such queries: a public number."""
        kind = tuple(map(_kind, queries))
        if kind not in self._sizes:
            self._sizes[kind] = self._first_size(queries)
        return self._sizes[kind] if self._most is None else min(self._sizes[kind], self._most)

    def process_at_once(self, records: int) -> None:
        """From here on so many: it changes nothing but memory."""
        self._at_once = records
        self._sizes.clear()

    def sums(self, drawn: Drawn, present: Presence | None, queries: tuple[Query, ...], size: int) -> list[BoundedSum]:
        """Bounds a draw in a random stream of its own, in smaller parts until these fit."""
        rows = self._in_step(*self._placed(drawn, present, size), size)
        with isolated(self._randomness, self._view.device):
            start = host_state()
            while True:
                bounders, self._seen = self._bounders(queries), []
                with _streams_put_back(self._view.device):
                    process = partial(self._process, *rows, queries, bounders, size)
                    out_of_memory = runs_out(process)
                    self._host_chance = self._host_chance or (present is not None and host_state() != start)
                if not out_of_memory:
                    break
                if self.relief():
                    self._relieved = True
                else:
                    size = self._most = _smaller(size)
                    if self._places_matter(size):
                        rows = self._placed(drawn, present, size)
        if self._diagnostics is not None:
            for part in self._seen:
                self._diagnostics.observe(part)
        return [bounder.result() for bounder in bounders]

    def recorded_sums(self, drawn: Drawn, present: Presence, queries: tuple[Query, ...], size: int) -> list[BoundedSum]:
        """What `sums` does, once and in the stream that is there: for a device that records it."""
        bounders = self._bounders(queries)
        self._process(drawn, present, queries, bounders, size)
        return [bounder.result() for bounder in bounders]

    def _in_step(self, drawn: Drawn, present: Presence | None, size: int) -> tuple[Drawn, Presence | None]:
        """Rows that are no records, where processes must run the model equally often."""
        positions = unseal(drawn)
        added = self._processes.padding(len(positions), size)
        if added == 0:
            return drawn, present
        here = torch.ones_like(positions, dtype=torch.bool) if present is None else unseal(present)
        return Drawn(F.pad(positions, (0, added))), Presence(F.pad(here, (0, added)))

    def _placed(self, drawn: Drawn, present: Presence | None, size: int) -> tuple[Drawn, Presence | None]:
        """Each record at its own place, the k-th of those drawn for a place in the k-th micro-batch."""
        if present is not None or not self._places_matter(size):
            return drawn, present
        positions = unseal(drawn)
        place, order = torch.sort(positions % size, stable=True)
        first = torch.searchsorted(place, place)
        turn = torch.arange(len(place), device=place.device) - first
        table = positions.new_full((int(turn.max()) + 1 if len(turn) else 0, size), -1)
        table[turn, place] = positions[order]
        return Drawn(table.flatten().clamp(min=0)), Presence(table.flatten() >= 0)

    def _places_matter(self, size: int) -> bool:
        """Whether a CPU may round a row by its place: unless it was rehearsed that it does not."""
        if self._view.device.type != "cpu":
            return False
        rehearsed = size % BLOCK == 0 or size == self._longest()
        return not (rehearsed and self._alike)

    @cached_property
    def _alike(self) -> bool:
        """Whether engine and front compute a row alike wherever it lies; the front is tried here, on synthetic rows."""
        front = self._view.front
        if front is None or not self._engine.rows_alike:
            return self._engine.rows_alike
        variants = self._view.variants
        example = self._population.take(torch.arange(0))[0] if variants is None else variants[:0, 0]
        if self._view.device.type != "cpu" or not example.is_floating_point():
            return False
        rows, copies = torch.zeros(3, *example.shape[1:], dtype=example.dtype), self._view.augmentation.copies
        with torch.no_grad():
            return computes_rows_alike(
                lambda x, y: front(x).reshape(len(y), -1), rows, torch.zeros(3), self._longest(), copies
            )

    def _longest(self) -> int:
        return self._engine.slice_length(self._expected, self._view.augmentation.copies)

    def _first_size(self, queries: tuple[Query, ...]) -> int:
        size = self._at_once
        most = self._longest()
        if self._places_matter(most):
            most = min(most, _PLACED)
        if size is None:
            return most
        asked = tuple(replace(query, active=None) if isinstance(query, GradientSum) else query for query in queries)

        def work(records: Records) -> None:
            self._bound(records, asked, self._bounders(asked))

        if isinstance(size, Auto):
            return rounded(self._rehearsal.largest(work, replace(size, most=min(most, size.most))))
        size = rounded(min(size, most))
        passing = self._rehearsal.passing(work, size) if self._view.device.type == "cuda" else size
        if passing < size:
            _tell(passing)
        return passing

    def _bounders(self, queries: tuple[Query, ...]) -> list[Bounder]:
        return [Bounder(query, self._engine.layout.size) for query in queries]

    def _process(
        self,
        drawn: Drawn,
        present: Presence | None,
        queries: tuple[Query, ...],
        bounders: list[Bounder],
        size: int,
    ) -> None:
        """Gathers and bounds a draw in micro-batches of `size` rows; an empty one is one empty micro-batch."""
        parts = torch.split(unseal(drawn), size)
        here: list[Presence | None] = [None] * len(parts)
        if present is not None:
            here = [Presence(part) for part in torch.split(unseal(present), size)]
        with self._engine.watched() if self.clipped_by_engine(queries) else nullcontext():
            for part, presence in zip(parts, here, strict=True):
                records = padded(gather(self._population, Drawn(part), presence), self._rows(len(part), size))
                self._bound(self._view(records), queries, bounders)

    def _rows(self, records: int, size: int) -> int:
        """How many rows a micro-batch of so many records gets."""
        alike = self._alike
        return min(size, -(-records // BLOCK) * BLOCK) if alike else size

    def _bound(self, records: Records, queries: tuple[Query, ...], bounders: list[Bounder]) -> None:
        """Adds one micro-batch to the sums, and notes what diagnostics will be shown of it once the draw is through."""
        if self.clipped_by_engine(queries):
            assert isinstance(queries[0], GradientSum)
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


def _smaller(size: int) -> int:
    """The size after one that did not fit."""
    if size == 1:
        raise InputError(
            "physical_batch_size=1: the GPU ran out of memory over one record; allowed: a smaller model, fewer copies, "
            "another engine or device"
        )
    return rounded(size // 2)


def _tell(size: int | None) -> None:
    warnings.warn(f"the GPU ran out of memory; physical_batch_size is {size} from here on", MemoryWarning, stacklevel=3)


def _norms_and_losses(gradients: PerSampleGradients) -> PerSampleGradients:
    """All that diagnostics look at, in few bytes: rows of one entry, the norm, kept until the draw is through."""
    batch = unseal(gradients).records_only()
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
